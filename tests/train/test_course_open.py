"""Iterations by the compiled engine on models, optimizers and data of the user's own, against those in Python."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

import anode
from anode.engine import native as engine
from anode.models.ensemble import from_seed
from anode.models.family import FAMILY
from anode.train.optimizers import OPTIMIZERS
from helpers.trainings import assert_same_history, assert_trained_alike, same, values_of

pytestmark = pytest.mark.skipif(not engine.instruction_sets(), reason="there is no compiled engine")


def data_of(points=100, classes=0):
    x = torch.randn(points, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = (x.sum(1).abs() * 2).long().clamp_max(classes - 1) if classes else x.sum(1, keepdim=True).sin()
    return x, y


def usual(engine, outputs=1):
    return anode.NeuralODE(3, outputs, 8, augment=2, engine=engine)


def train(model, data, **options):
    return anode.fit(model, data, **{"epochs": 3, "batch_size": 32, "lr": 1e-2, "progress": False, **options})


def both(build=usual, members=None, data=data_of, **options):
    """Models and histories of both engines, the compiled one first. Transforms are made anew for each."""
    results = []
    for which in ("auto", "torch"):
        make = partial(build, which)
        one = (from_seed(make, 0) if members is None else anode.seeded(make, range(members))).double()
        given = {name: value() if name == "transform" else value for name, value in options.items()}
        results.append((one, train(one, data(), **given)))
    return results


def assert_same(results, engine="native"):
    assert results[0][1].engine == engine
    assert_trained_alike(results)


@pytest.mark.parametrize("members", [None, 3])
@pytest.mark.parametrize("name", FAMILY)
def test_every_member_of_the_family_is_trained_as_in_python(name, members):
    def build(engine):
        solver = anode.Solver(atol=1e-3, max_steps=1000, engine=engine)
        return anode.family.build(name, 3, 1, augment=2, hidden=8, solver=solver)

    assert_same(both(build, members))


class Squares(anode.Augment):
    """Appends squares, scaled by a parameter; counts its calls."""

    def __init__(self):
        super().__init__()
        self.scale, self.calls = nn.Parameter(torch.tensor(0.5)), 0

    def forward(self, x):
        self.calls += 1
        return torch.cat([x, self.scale * x**2], dim=-1)


class Deep(nn.Module):
    """A head with a hidden layer; counts its calls."""

    def __init__(self, outputs=1):
        super().__init__()
        self.net, self.calls = nn.Sequential(nn.Linear(6, 7), nn.SiLU(), nn.LayerNorm(7), nn.Linear(7, outputs)), 0

    def forward(self, h):
        self.calls += 1
        return self.net(h)


def own(engine, head=Deep, outputs=1):
    return anode.NeuralODE(3, augment=Squares(), head=head(outputs), hidden=8, engine=engine)


@pytest.mark.parametrize("members", [None, 3])
@pytest.mark.parametrize("loss", ["huber", "mse", "cross_entropy"])
def test_own_augmentations_and_heads_are_trained_as_in_python(loss, members):
    classes = 4 if loss == "cross_entropy" else 0
    data = data_of(classes=classes)
    results = both(lambda engine: own(engine, outputs=classes or 1), members, lambda: data, loss=loss, validation=data)
    assert_same(results)


def test_counters_of_all_parts_count_the_iterations():
    (one, _), (other, _) = both(own)
    calls = [(model.flow.augment.calls, model.head.calls) for model in (one, other)]
    assert calls[0] == calls[1]


class Warming(Deep):
    """A head that grows with the number of calls."""

    def forward(self, h):
        return super().forward(h) * (1 - 0.5**self.calls)


@pytest.mark.parametrize("head", ["Warming", "Normalised"])
def test_looking_at_a_part_that_is_left_to_python_does_not_count(head):
    results = both(partial(own, head=globals()[head]))
    assert_same(results, results[0][1].engine)
    assert results[0][0].head.calls == results[1][0].head.calls


class Listing(Deep):
    """A head that keeps the number of points of every batch."""

    def __init__(self, outputs=1):
        super().__init__(outputs)
        self.seen = []

    def forward(self, h):
        self.seen.append(len(h))
        return super().forward(h) / len(self.seen)


class Averaging(Deep):
    """A head that subtracts a moving average, a tensor that is no buffer."""

    def __init__(self, outputs=1):
        super().__init__(outputs)
        self.average = torch.zeros(6, dtype=torch.float64)

    def forward(self, h):
        self.average.lerp_(h.detach().mean(0), 0.5)
        return super().forward(h - self.average)


@pytest.mark.parametrize("head", [Listing, Averaging])
def test_looking_at_a_part_that_is_left_to_python_leaves_its_memory_alone(head):
    results = both(partial(own, head=head))
    assert_same(results, results[0][1].engine)
    assert results[0][1].engine.startswith("torch (head: f ")


@pytest.mark.parametrize("part", ["flow.augment", "head.net.0", "head"])
def test_frozen_parameters_of_any_part_stay_where_they_are(part):
    def build(engine):
        model = own(engine)
        model.get_submodule(part).requires_grad_(False)
        return model

    results = both(build)
    assert_same(results)
    before = from_seed(lambda: own("torch"), 0).double().get_submodule(part)
    assert same(values_of(results[0][0].get_submodule(part)), values_of(before))


class Dropping(Deep):
    """A head with dropout."""

    def forward(self, h):
        return nn.functional.dropout(super().forward(h), training=self.training)


class Batched(Deep):
    """A head that subtracts the mean over the batch."""

    def forward(self, h):
        return super().forward(h) - h.mean()


class Flat(Deep):
    """A head that returns numbers instead of rows."""

    def forward(self, h):
        return super().forward(h)[:, 0]


class Normalised(Deep):
    """A head with batch normalisation, which needs several points."""

    def __init__(self, outputs=1):
        super().__init__()
        self.norm = nn.BatchNorm1d(outputs)

    def forward(self, h):
        return self.norm(super().forward(h))


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (Dropping, "head: f draws random numbers"),
        (Batched, "head: f mixes"),
        (Flat, "head: f does not return"),
        (Normalised, "head: f raises ValueError for a single point"),
    ],
)
def test_heads_that_cannot_be_compiled_are_left_to_python(head, why):
    data = data_of() if head is not Flat else (data_of()[0], data_of()[1][:, 0])
    torch.manual_seed(0)
    history = train(own("auto", head).double(), data, epochs=1)
    assert history.engine.startswith(f"torch ({why}")


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_batch_normalisation_counts_every_batch_once(mode):
    def build(engine):
        return getattr(own(engine, Normalised), mode)()

    results = both(build)
    assert_same(results, results[0][1].engine)
    for one, other in zip(results[0][0].buffers(), results[1][0].buffers(), strict=True):
        torch.testing.assert_close(one, other)


class Counting(Deep):
    """A head that computes something else for few points."""

    def forward(self, h):
        return super().forward(h) * (2 if len(h) < 5 else 1)


class CountingField(nn.Linear):
    """A field that does so."""

    def forward(self, t, h):
        return torch.tanh(super().forward(h)) * (2 if len(h) < 5 else 1)


def counting_field(engine):
    return anode.NeuralODE(field=CountingField(5, 5), augment=2, head=nn.Linear(5, 1), engine=engine)


@pytest.mark.parametrize("members", [None, 3])
@pytest.mark.parametrize("build", [partial(own, head=Counting), counting_field])
def test_a_part_that_computes_something_else_for_a_last_batch_is_left_to_python(build, members):
    results = both(build, members)
    assert "f does not do the same with 4 points" in results[0][1].engine
    assert_same(results, results[0][1].engine)
    assert_same(both(build, members, batch_size=25))


@pytest.mark.parametrize("members", [None, 3])
@pytest.mark.parametrize("build", [partial(own, head=Counting), counting_field])
def test_batches_of_a_loader_that_are_computed_otherwise_are_left_to_python(build, members):
    assert_same(both(build, members, lambda: DataLoader(TensorDataset(*data_of()), 32), batch_size=None))


def test_a_state_that_is_a_tuple_is_left_to_python():
    class Pair(anode.Augment):
        def forward(self, x):
            return x, x

    class Swap(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, t, state):
            return self.linear(state[1]), -state[0]

    class Both(nn.Linear):
        def forward(self, state):
            return super().forward(torch.cat(state, -1))

    model = anode.NeuralODE(field=Swap(), augment=Pair(), head=Both(6, 1)).double()
    assert train(model, data_of(), epochs=1).engine.startswith("torch (augment: ")


def in_groups(parameters):
    return torch.optim.Adam([{"params": parameters[:2], "lr": 1e-2}, {"params": parameters[2:], "lr": 1e-3}])


@pytest.mark.parametrize("members", [None, 3])
@pytest.mark.parametrize(
    "options",
    [
        *({"optimizer": name} for name in OPTIMIZERS if name != "adam"),
        {"optimizer": in_groups, "lr": None},
        {"optimizer": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "lr": None},
        {"scheduler": lambda adam: ExponentialLR(adam, 0.9)},
        {"clip": 0.1},
        {"clip": 0.1, "weight_decay": 0.1, "scheduler": lambda adam: ExponentialLR(adam, 0.9)},
        {"transform": lambda: torch.neg},
    ],
    ids=lambda options: " and ".join(f"{k} {v}" if isinstance(v, str | float) else k for k, v in options.items()),
)
def test_optimizers_schedules_clipping_and_transforms_do_the_same_as_in_python(options, members):
    assert_same(both(members=members, **options))


class Keeping(torch.optim.Optimizer):
    """Extrapolates the gradient from the last one, which it keeps without a copy."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p -= 0.1 * (1.5 * p.grad - 0.5 * self.state[p].get("last", p.grad))
            self.state[p]["last"] = p.grad


def test_an_optimizer_may_keep_gradients_of_earlier_iterations():
    assert_same(both(optimizer=Keeping, lr=None))


class Replacing(torch.optim.Optimizer):
    """Gives every parameter new memory."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.data = p.data - 0.1 * p.grad


@pytest.mark.parametrize("build", [usual, own])
def test_an_optimizer_may_give_parameters_new_memory(build):
    assert_same(both(build, optimizer=Replacing, lr=None))


def test_a_transform_may_change_the_flow_and_freeze_parameters():
    models = []

    def build(engine):
        models.append(usual(engine))
        return models[-1]

    def longer():
        model = models[-1]

        def transform(x):
            model.flow.t1 *= 1.2
            model.head.bias.requires_grad_(model.flow.t1 < 3)
            return x

        return transform

    (one, history), (other, expected) = both(build, transform=longer)
    np.testing.assert_allclose(history.loss, expected.loss, rtol=1e-6)
    np.testing.assert_array_equal(history.nfe, expected.nfe)
    assert one.flow.t1 == other.flow.t1


def another_activation_of_the_field(model):
    model.flow.field.activation = "tanh"


def another_field(model):
    model.flow.field = from_seed(lambda: anode.MLPField(5, hidden=8), 1).double()


def another_head(model):
    model.head = from_seed(lambda: nn.Linear(5, 1), 1).double()


def hooked(model):
    model.head.register_forward_hook(lambda module, inputs, output: 2 * output)


def with_hooked_parameters(model):
    for p in model.parameters():
        p.register_hook(lambda gradient: 0.5 * gradient)


def with_a_norm(model):
    model.flow.norm = lambda x: x.abs().max()


@pytest.mark.parametrize(
    "change",
    [another_activation_of_the_field, another_field, another_head, hooked, with_hooked_parameters, with_a_norm],
)
def test_what_a_transform_changes_of_the_model_counts(change):
    models, calls = [], []

    def build(engine):
        models.append(usual(engine))
        calls.append(0)
        return models[-1]

    def transform(x):
        calls[-1] += 1
        if calls[-1] == 4:
            change(models[-1])
        return x

    results = both(build, transform=lambda: transform)
    assert_same(results, results[0][1].engine)
    assert not np.allclose(results[0][1].loss, both()[0][1].loss)


class Choosing(Deep):
    """A head that picks some of its features by a buffer."""

    def __init__(self, outputs=1):
        super().__init__(outputs)
        self.register_buffer("mask", torch.arange(6) < 5)

    def forward(self, h):
        return super().forward(torch.where(self.mask, h, -h))


def test_another_mask_of_one_member_counts():
    def invert(model):
        model.head.module.mask[-1] = ~model.head.module.mask[-1]

    results = both(partial(own, head=Choosing), 3, callbacks=[Replaces(invert)])
    assert "the members have different whole numbers" in results[0][1].engine
    assert_same(results, results[0][1].engine)


def test_autocast_is_left_to_python():
    model, data = from_seed(lambda: on_sets("auto", whole), 0), sets_of(torch.arange(70) % 2)()
    data = data[0].float(), data[1]
    assert train(model, data, epochs=1).engine == "native"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert train(model, data, epochs=1).engine == "torch (autocast is on)"


def test_gradients_of_parameters_that_the_optimizer_does_not_hold_do_not_add_up():
    def some(parameters):
        return torch.optim.SGD(parameters[:2], lr=0.1)

    assert_same(both(optimizer=some, lr=None, clip=0.05))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_parameters_that_nothing_uses_are_trained_as_in_python(optimizer):
    def build(engine, gradient):
        model = anode.NeuralODE(3, 1, 8, augment=2, engine=engine, gradient=gradient)
        model.flow.augment.spare = nn.Parameter(torch.ones(2))
        return model

    for gradient in ("discrete", "stored"):
        assert_same(both(partial(build, gradient=gradient), optimizer=optimizer, weight_decay=0.1))


def test_a_schedule_that_follows_the_validation_loss_does_the_same_as_in_python():
    def plateau(adam):
        return ReduceLROnPlateau(adam, factor=0.1, patience=0, threshold=0.5)

    assert_same(both(scheduler=plateau, validation=data_of(40), epochs=5))


@pytest.mark.parametrize("members", [None, 3])
@pytest.mark.parametrize("classes", [0, 4])
def test_batches_of_a_loader_are_trained_as_in_python(classes, members):
    def loader():
        generator = torch.Generator().manual_seed(1)
        return DataLoader(TensorDataset(*data_of(classes=classes)), 32, shuffle=True, generator=generator)

    results = both(lambda engine: usual(engine, classes or 1), members, loader, batch_size=None)
    assert_same(results)
    assert len(results[0][1].loss) == 12


def test_batches_may_have_any_size_and_weights():
    x, y = data_of()
    weights = torch.linspace(0, 2, 100, dtype=torch.float64)
    batches = [tuple(part[a:b] for part in (x, y, weights)) for a, b in ((0, 7), (7, 50), (50, 100))]
    assert_same(both(data=lambda: batches, batch_size=None))


def test_a_label_beyond_the_classes_is_refused_as_in_python():
    x, y = data_of(classes=4)
    bad = y.clone()
    bad[60] = 7
    batches = [(x[:50], y[:50]), (x[50:], bad[50:])]
    for which in ("auto", "torch"):
        with pytest.raises(ValueError, match="data"):
            train(usual(which, 4).double(), batches, batch_size=None)


@pytest.mark.parametrize(("classes", "dtype"), [(4, torch.float64), (4, torch.int32), (0, torch.complex128)])
def test_targets_of_another_dtype_are_refused_as_in_python(classes, dtype):
    x, y = data_of(classes=classes)
    batches = [(x[:50], y[:50]), (x[50:], y[50:].to(dtype))]
    for which in ("auto", "torch"):
        with pytest.raises(TypeError, match="data"):
            train(usual(which, classes or 1).double(), batches, batch_size=None)


class Shaky:
    """A transform that draws random numbers and counts its calls."""

    def __init__(self):
        self.calls, self.generator = 0, torch.Generator().manual_seed(0)

    def __call__(self, x):
        self.calls += 1
        return x + 0.1 * torch.randn(x.shape, generator=self.generator, dtype=x.dtype)


def test_a_transform_is_called_once_for_every_batch():
    calls = []

    def shaky():
        calls.append(Shaky())
        return calls[-1]

    assert_same(both(transform=shaky))
    assert calls[0].calls == calls[1].calls


@pytest.mark.parametrize("options", [{"optimizer": "sgd", "lr": 1e80}, {"clip": 1e9, "lr": [1e-2, 1e80, 1e-3]}])
def test_a_run_that_fails_ends_as_in_python(options):
    members = 3 if isinstance(options["lr"], list) else None
    (one, history), (other, expected) = both(members=members, **options)
    assert history.engine == "native"
    assert [(f.member, f.iteration, f.status) for f in history.failures] == [
        (f.member, f.iteration, f.status) for f in expected.failures
    ]
    assert history.failures
    for a, b in zip(values_of(one), values_of(other), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("options", [{"optimizer": "sgd"}, {"scheduler": lambda adam: ExponentialLR(adam, 0.9)}])
def test_a_run_that_is_taken_up_again_ends_with_the_same_bits(tmp_path, options):
    models = [from_seed(lambda: own("auto"), 0).double() for _ in range(2)]
    whole = train(models[0], data_of(), **options)
    train(models[1], data_of(), epochs=1, checkpoint=tmp_path, **options)
    resumed = train(models[1], data_of(), checkpoint=tmp_path, **options)
    assert same(values_of(models[0]), values_of(models[1]))
    assert_same_history(whole, resumed)


class Replaces(anode.Callback):
    """Replaces something after the second iteration."""

    def __init__(self, change):
        self.change = change

    def iteration(self, training):
        if training.report.done == 2:
            self.change(training.model)


def another_scale(model):
    model.flow.augment.scale = nn.Parameter(torch.tensor(-1.0, dtype=torch.float64))


def another_activation(model):
    model.head.net[1] = nn.Tanh()


def doubled(model):
    with torch.no_grad():
        model.head.net[0].weight.mul_(2)


@pytest.mark.parametrize("change", [another_activation, doubled])
def test_what_a_callback_changes_of_augmentation_or_head_counts(change):
    results = both(own, callbacks=[Replaces(change)])
    assert_same(results)
    assert not np.allclose(results[0][1].loss, both(own)[0][1].loss)


@pytest.mark.parametrize("members", [None, 3])
def test_points_that_a_callback_changes_in_place_count(members):
    (x, y), given = data_of(), []

    def data():  # neither is in the layout of the engine
        given[:] = x.t().contiguous().t(), y.float()
        return tuple(given)

    results = both(members=members, data=data, callbacks=[Replaces(lambda model: [part.mul_(0.5) for part in given])])
    assert_same(results)
    assert not np.allclose(results[0][1].loss, both(members=members, data=data)[0][1].loss)


@pytest.mark.parametrize("label", [-(10**9), 10**9])
def test_a_label_that_a_callback_puts_beyond_the_classes_is_refused_as_in_python(label):
    for which in ("auto", "torch"):
        data = data_of(classes=4)
        with pytest.raises(IndexError, match="out of bounds"):
            train(usual(which, 4).double(), data, callbacks=[Replaces(lambda model, y=data[1]: y.fill_(label))])


def test_a_parameter_that_a_callback_replaces_is_not_trained_as_in_python():
    (_, history), (_, expected) = both(own, callbacks=[Replaces(another_scale)])
    np.testing.assert_allclose(history.loss, expected.loss, rtol=1e-6)


def test_a_program_of_the_head_that_is_wrong_is_noticed(monkeypatch):
    evaluated = engine.evaluated
    calls = []

    def wrong(field, x):
        calls.append(len(field.program.slope))
        return evaluated(field, x) * (1.5 if len(field.program.slope) == 1 else 1.0)

    monkeypatch.setattr(engine, "evaluated", wrong)
    (_, history), (_, expected) = both(own, epochs=1)
    assert 1 in calls
    np.testing.assert_allclose(history.loss, expected.loss, rtol=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
def test_bits_do_not_depend_on_the_number_of_threads(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        one = from_seed(lambda: own("auto"), 0).double()
        train(one, data_of(1000), batch_size=500, optimizer="sgd")
    finally:
        torch.set_num_threads(before)
    other = from_seed(lambda: own("auto"), 0).double()
    train(other, data_of(1000), batch_size=500, optimizer="sgd")
    assert same(values_of(one), values_of(other))


class Among(nn.Module):
    """Attention among the elements of a set."""

    def __init__(self):
        super().__init__()
        self.mix = nn.MultiheadAttention(4, 1, batch_first=True)

    def forward(self, t, h):
        return torch.tanh(self.mix(h, h, h, need_weights=False)[0]) * torch.cos(t)


def on_sets(engine, head):
    return anode.NeuralODE(field=Among(), head=head(), augment=2, engine=engine)


def sets_of(targets):
    generator = torch.Generator().manual_seed(0)
    return lambda: (torch.rand(70, 3, 2, generator=generator.manual_seed(0), dtype=torch.float64), targets)


def whole():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 4, 2))


def elementwise():
    return nn.Linear(4, 2)


@pytest.mark.parametrize("members", [None, 3])
@pytest.mark.parametrize(
    ("head", "targets"),
    [(whole, torch.arange(70) % 2), (elementwise, torch.linspace(-1, 1, 420).reshape(70, 3, 2).double())],
)
def test_points_of_several_dimensions_are_trained_as_in_python(head, targets, members):
    assert_same(both(partial(on_sets, head=head), members, sets_of(targets)))


def test_points_of_several_dimensions_come_from_a_loader_too():
    def data():
        x, y = sets_of(torch.arange(70) % 2)()
        return DataLoader(TensorDataset(x, y), batch_size=32)

    assert_same(both(partial(on_sets, head=whole), data=data, batch_size=None))


def test_several_classes_for_a_point_are_left_to_python():
    x, _ = sets_of(None)()
    history = train(on_sets("auto", elementwise).double(), (x, torch.arange(210).reshape(70, 3) % 2), epochs=1)
    assert history.engine == "torch (head: it predicts several classes for a point)"
