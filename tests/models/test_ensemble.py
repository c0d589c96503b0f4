import warnings

import pytest
import torch
from torch import nn

import anode
from anode.models.ensemble import from_seed
from helpers.draws import normal

MEMBERS = 4
BUILDERS = {
    "NeuralODE": lambda: anode.NeuralODE(2, 3, 8, activation="tanh"),
    "augmented NeuralODE": lambda: anode.NeuralODE(2, 1, 8, augment=2),
    "timeless NeuralODE": lambda: anode.NeuralODE(2, 1, 8, time=False, activation="silu"),
    "ResNet": lambda: anode.ResNet(2, 1, 8, 3),
    "Flow": lambda: anode.Flow(anode.MLPField(3, 8, activation="softplus"), augment=1),
}
each_model = pytest.mark.parametrize("name", BUILDERS)


def models_of(name: str, members: int = MEMBERS) -> list:
    torch.manual_seed(0)
    return [BUILDERS[name]().double() for _ in range(members)]


def same_parameters(a: nn.Module, b: nn.Module) -> bool:
    ours, theirs = dict(a.named_parameters()), dict(b.named_parameters())
    return list(ours) == list(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)


# Stacking


@each_model
def test_a_stack_computes_what_each_member_does_alone(name):
    models, x = models_of(name), normal(MEMBERS, 5, 2)
    x[1] *= 10
    together = anode.stack(models)
    assert together.members == MEMBERS
    assert type(together) is type(models[0])
    outcome = together.run(x)
    for i, model in enumerate(models):
        alone = model.run(x[i])
        torch.testing.assert_close(outcome.prediction[i], alone.prediction, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(outcome.features[i], alone.features, rtol=1e-10, atol=1e-10)
        if alone.solution is not None:
            for cost in ("nfe", "accepted", "rejected"):
                assert getattr(outcome.solution.stats, cost)[i] == getattr(alone.solution.stats, cost)


@each_model
def test_a_stacks_gradient_is_that_of_each_member_alone(name):
    models, x = models_of(name), normal(MEMBERS, 5, 2)
    together = anode.stack(models)
    together(x).square().sum().backward()
    for i, model in enumerate(models):
        model(x[i]).square().sum().backward()
        for (what, stacked), (_, alone) in zip(together.named_parameters(), model.named_parameters(), strict=True):
            torch.testing.assert_close(stacked.grad[i], alone.grad, rtol=1e-9, atol=1e-9, msg=what)


@each_model
def test_the_order_of_members_does_not_matter(name):
    models, x = models_of(name), normal(MEMBERS, 5, 2)
    order = [2, 0, 3, 1]
    expected = anode.stack(models)(x)[order]
    torch.testing.assert_close(anode.stack([models[i] for i in order])(x[order]), expected, rtol=1e-12, atol=1e-12)


@each_model
def test_unstack_gives_the_members_back(name):
    models = models_of(name)
    together = anode.stack(models)
    members = anode.unstack(together)
    assert len(members) == MEMBERS
    for member, model in zip(members, models, strict=True):
        assert type(member) is type(model)
        assert member.members is None
        assert repr(member) == repr(model)
        assert same_parameters(member, model)
    assert same_parameters(anode.stack(members), together)


@each_model
def test_a_stack_of_one_is_a_stack(name):
    (model,), x = models_of(name, 1), normal(1, 5, 2)
    together = anode.stack([model])
    assert together.members == 1
    torch.testing.assert_close(together(x)[0], model(x[0]), rtol=1e-10, atol=1e-10)
    (member,) = anode.unstack(together)
    assert same_parameters(member, model)


def test_fields_can_be_stacked_by_themselves():
    torch.manual_seed(0)
    fields = [anode.MLPField(2, 8).double() for _ in range(3)]
    together, h = anode.stack(fields), normal(3, 5, 2)
    assert together.members == 3
    t = torch.tensor(0.3, dtype=torch.float64)
    for i, field in enumerate(fields):
        torch.testing.assert_close(together(t, h)[i], field(t, h[i]))
    assert [same_parameters(a, b) for a, b in zip(anode.unstack(together), fields, strict=True)] == [True] * 3


@each_model
def test_stacking_copies_and_changes_nothing(name):
    models = models_of(name)
    before = [[p.clone() for p in model.parameters()] for model in models]
    together = anode.stack(models)
    with torch.no_grad():
        for parameter in together.parameters():
            parameter += 1
    members = anode.unstack(together)
    with torch.no_grad():
        for parameter in members[0].parameters():
            parameter += 1
    for model, values in zip(models, before, strict=True):
        assert model.members is None
        assert all(torch.equal(p, value) for p, value in zip(model.parameters(), values, strict=True))
    assert not same_parameters(anode.unstack(together)[0], members[0])


def test_stacks_are_leaves_that_can_be_trained():
    together = anode.stack(models_of("NeuralODE"))
    assert all(p.is_leaf and p.requires_grad and p.grad is None for p in together.parameters())
    assert [name for name, _ in together.named_parameters()] == [
        name for name, _ in models_of("NeuralODE")[0].named_parameters()
    ]


def test_frozen_parameters_stay_frozen_in_a_stack_and_out_of_it():
    models = models_of("NeuralODE")
    for model in models:
        model.head.requires_grad_(False)
    together = anode.stack(models)
    for model in (together, *anode.unstack(together)):
        assert not any(p.requires_grad for p in model.head.parameters())
        assert all(p.requires_grad for p in model.flow.parameters())


def test_a_stack_is_restored_from_its_state_dict():
    together, other = anode.stack(models_of("NeuralODE")), anode.seeded(BUILDERS["NeuralODE"], range(4)).double()
    assert other.load_state_dict(together.state_dict()) == ([], [])
    assert same_parameters(together, other)


def test_the_dtype_of_a_stack_is_that_of_its_members():
    assert all(p.dtype == torch.float64 for p in anode.stack(models_of("ResNet")).parameters())
    assert all(p.dtype == torch.float32 for p in anode.seeded(BUILDERS["ResNet"], range(2)).parameters())


def test_models_may_come_from_any_iterable():
    assert anode.stack(iter(models_of("ResNet"))).members == MEMBERS


# What cannot be stacked


def test_nothing_cannot_be_stacked():
    with pytest.raises(ValueError, match="models: takes at least one model, got none"):
        anode.stack([])
    with pytest.raises(ValueError, match="at least one"):
        anode.seeded(BUILDERS["ResNet"], [])


@pytest.mark.parametrize(
    "others",
    [
        {"hidden": 16},
        {"augment": 1},
        {"layers": 3},
        {"time": False},
        {"activation": "tanh"},
        {"rtol": 1e-5},
        {"t1": 2.0},
        {"max_steps": 7},
        {"control": "joint"},
    ],
    ids=str,
)
def test_models_built_differently_cannot_be_stacked(others):
    with pytest.raises(ValueError, match="models: takes models with the same architecture and frozen"):
        anode.stack([anode.NeuralODE(2, 1), anode.NeuralODE(2, 1, **others)])


def test_models_of_different_classes_or_dtypes_cannot_be_stacked():
    with pytest.raises(ValueError, match="models: "):
        anode.stack([anode.NeuralODE(2, 1), anode.ResNet(2, 1)])
    with pytest.raises(ValueError, match="models: "):
        anode.stack([anode.NeuralODE(2, 1), anode.NeuralODE(2, 1).double()])


class Own(anode.Model):
    """A model that has a parameter beside its parts."""

    def __init__(self):
        super().__init__()
        self.flow, self.scale = anode.Flow(anode.MLPField(2, 4)), nn.Parameter(torch.ones(1))

    def run(self, x, **options):
        return self.flow.run(x * self.scale, **options)


def test_a_model_with_parameters_beside_its_parts_cannot_be_stacked():
    with pytest.raises(
        ValueError, match=r"models: takes models all of whose parameters belong to their parts.*'scale'"
    ):
        anode.stack([Own(), Own()])


def test_stacks_cannot_be_stacked():
    with pytest.raises(ValueError, match="models: "):
        anode.stack([anode.stack(models_of("ResNet")), anode.stack(models_of("ResNet"))])


@each_model
def test_a_model_that_is_no_stack_cannot_be_unstacked(name):
    with pytest.raises(ValueError, match=r"model: takes a stack made by anode\.stack"):
        anode.unstack(BUILDERS[name]())


@pytest.mark.parametrize(
    "build",
    [lambda: anode.NeuralODE(4, 4, 4), lambda: anode.ResNet(4, 4, 4), lambda: anode.MLPField(4, 4)],
    ids=["NeuralODE", "ResNet", "MLPField"],
)
def test_a_model_all_of_whose_sizes_are_equal_cannot_be_unstacked_either(build):
    model = build()
    assert model.members is None
    with pytest.raises(ValueError, match=r"model: takes a stack made by anode\.stack"):
        anode.unstack(model)


# Seeds


@each_model
def test_a_seeded_member_depends_on_its_seed_alone(name):
    one = anode.unstack(anode.seeded(BUILDERS[name], [3, 5, 7]))
    other = anode.unstack(anode.seeded(BUILDERS[name], [7, 9, 3, 3]))
    assert same_parameters(one[0], other[2])
    assert same_parameters(one[0], other[3])
    assert same_parameters(one[2], other[0])
    assert not same_parameters(one[0], one[1])


def test_a_seeded_member_is_the_model_built_after_manual_seed():
    torch.manual_seed(5)
    expected = anode.ResNet(2, 1)
    assert same_parameters(anode.unstack(anode.seeded(lambda: anode.ResNet(2, 1), [4, 5]))[1], expected)


def test_seeding_leaves_the_global_random_numbers_alone():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    anode.seeded(BUILDERS["ResNet"], range(3))
    assert torch.equal(torch.get_rng_state(), state)

    def fail():
        torch.rand(3)
        raise RuntimeError("no model today")

    with pytest.raises(RuntimeError, match="no model today"):
        anode.seeded(fail, range(3))
    assert torch.equal(torch.get_rng_state(), state)


@each_model
def test_a_model_from_a_seed_is_the_one_built_after_manual_seed_and_a_member_of_a_stack(name):
    torch.manual_seed(5)
    expected = BUILDERS[name]()
    torch.manual_seed(99)
    found = from_seed(BUILDERS[name], 5)
    assert found.members is None
    assert same_parameters(found, expected)
    assert same_parameters(found, anode.unstack(anode.seeded(BUILDERS[name], [4, 5]))[1])
    assert not same_parameters(found, from_seed(BUILDERS[name], 6))


def test_a_model_from_a_seed_leaves_the_global_random_numbers_alone():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    from_seed(lambda: anode.ImageNeuralODE((1, 4, 4), 10, 2), 3)
    assert torch.equal(torch.get_rng_state(), state)

    def fail():
        torch.rand(3)
        raise RuntimeError("no model today")

    with pytest.raises(RuntimeError, match="no model today"):
        from_seed(fail, 3)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_model_from_a_seed_is_built_once():
    made = []
    from_seed(lambda: made.append(torch.initial_seed()) or BUILDERS["ResNet"](), 11)
    assert made == [11]


# Modules that know nothing of members


class Tied(nn.Module):
    """A field with tied weights, a buffer, and its time as a number."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(3, 3), nn.Linear(3, 3)
        self.down.weight = self.up.weight
        self.register_buffer("shift", torch.randn(3))

    def forward(self, t, h):
        assert t.ndim == 0
        return torch.tanh(self.down(torch.sin(self.up(h) + self.shift * t)))


class Lift(anode.Augment):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(2, 1)

    def forward(self, x):
        return torch.cat([x, self.line(x)], -1)

    def remove(self, h):
        return h[..., :2]


def composed():
    head = nn.Sequential(nn.Flatten(), nn.Linear(3, 4))
    return anode.NeuralODE(field=Tied(), head=head, augment=Lift(), rtol=1e-6, atol=1e-6)


def test_members_made_of_ones_own_modules_compute_what_they_do_alone():
    models = [composed() for _ in range(3)]
    stacked, x = anode.stack(models), torch.rand(3, 5, 2)
    assert stacked.members == 3
    outcome = stacked.run(x)
    for i, model in enumerate(models):
        alone = model.run(x[i])
        torch.testing.assert_close(outcome.prediction[i], alone.prediction, atol=1e-5, rtol=1e-4)
        assert outcome.solution.stats.nfe[i] == alone.solution.stats.nfe
    torch.testing.assert_close(stacked.flow.inverse(outcome.features), x, atol=1e-4, rtol=1e-4)


def test_members_made_of_ones_own_modules_have_the_gradients_they_have_alone():
    models = [composed() for _ in range(3)]
    stacked, x = anode.stack(models), torch.rand(3, 5, 2)
    stacked(x).square().sum().backward()
    own = dict(stacked.named_parameters())
    for i, model in enumerate(models):
        model(x[i]).square().sum().backward()
        expected = {name: p.grad for name, p in model.named_parameters()}
        names = {name.replace("module.", ""): name for name in own}
        for name, gradient in expected.items():
            torch.testing.assert_close(own[names[name]].grad[i], gradient, atol=1e-4, rtol=1e-3)


def test_unstacking_gives_ones_own_modules_back_with_ties_and_buffers():
    models = [composed() for _ in range(2)]
    for model, found in zip(models, anode.unstack(anode.stack(models)), strict=True):
        assert repr(found) == repr(model)
        assert found.flow.field.down.weight is found.flow.field.up.weight
        for (name, a), (other, b) in zip(model.state_dict().items(), found.state_dict().items(), strict=True):
            assert name == other
            assert torch.equal(a, b)


def test_any_module_can_be_stacked():
    nets = [nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), nn.ReLU()).eval() for _ in range(2)]
    x = torch.rand(2, 4, 2)
    torch.testing.assert_close(anode.stack(nets)(x)[1], nets[1](x[1]))


def test_modules_of_one_class_with_other_parts_cannot_be_stacked():
    other = composed()
    other.head[0] = nn.Identity()
    with pytest.raises(ValueError, match="models: takes models with the same architecture and frozen"):
        anode.stack([composed(), other])


class Scaled(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale, self.line = scale, nn.Linear(2, 2)

    def forward(self, t, h):
        return self.scale * self.line(h)


@pytest.mark.parametrize("scales", [(1.0, 5.0), (torch.ones(2), torch.zeros(2))], ids=["numbers", "tensors"])
def test_modules_that_differ_in_an_attribute_cannot_be_stacked(scales):
    with pytest.raises(ValueError, match=r"got two that differ in Scaled\.scale"):
        anode.stack([anode.Flow(Scaled(scale)) for scale in scales])


def test_models_whose_parts_share_parameters_cannot_be_stacked():
    def build():
        field = Scaled(1.0)
        return anode.NeuralODE(field=field, head=field.line)

    with pytest.raises(ValueError, match="models: takes models whose parts do not share parameters"):
        anode.seeded(build, range(2))


# Modules with buffers, and mistakes


class Reassigning(nn.Module):
    """Counts the rows it has seen in a buffer, to which it assigns another tensor every time."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(2, 2)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen = self.seen + x.detach().sum()
        return self.line(x)


def test_buffers_that_a_module_reassigns_are_kept_in_a_stack():
    modules = [Reassigning() for _ in range(3)]
    x = torch.rand(3, 5, 2)
    stacked = anode.stack(modules)
    for _ in range(2):
        stacked(x)
        for module, part in zip(modules, x, strict=True):
            module(part)
    for module, found in zip(modules, anode.unstack(stacked), strict=True):
        torch.testing.assert_close(found.seen, module.seen)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: anode.stack(anode.ResNet(2, 1)), "models: takes a list of modules, got a ResNet"),
        (lambda: anode.stack([1, 2]), "models: takes a list of modules, got a int in it"),
        (lambda: anode.unstack(5), r"model: takes a stack made by anode\.stack, got a int that is not stacked"),
        (lambda: anode.seeded(lambda: anode.ResNet(2, 1), 5), r"seeds: takes whole numbers, one per member, .*got 5"),
        (lambda: anode.seeded(lambda: anode.ResNet(2, 1), "ab"), "seeds: takes whole numbers, .*got 'ab'"),
        (lambda: anode.seeded(anode.ResNet(2, 1), [1]), r"build: takes a function .*; pass lambda: ResNet\(\.\.\.\)"),
        (lambda: anode.seeded(lambda n: n, [1]), "build: takes a function without arguments .*argument: 'n'"),
        (lambda: anode.seeded(lambda: None, [1]), "models: takes a list of modules, got a NoneType in it"),
    ],
    ids=range(8),
)
def test_a_mistake_in_what_is_stacked_is_named(call, said):
    with pytest.raises((TypeError, ValueError), match=said):
        call()


def test_the_tensor_in_which_models_differ_is_named():
    one, other = anode.ResNet(2, 1), anode.ResNet(2, 1)
    other.head.bias.requires_grad_(False)
    said = r"got two that differ in head\.bias: \(1,\) torch\.float32, trained and \(1,\) torch\.float32, not trained"
    with pytest.raises(ValueError, match=said):
        anode.stack([one, other])


def test_models_built_differently_are_named_by_the_first_line_in_which_they_differ():
    said = r"differ in how they are built: 2, hidden=4, [^\n]* and 2, hidden=5, [^\n]*$"
    with pytest.raises(ValueError, match=said):
        anode.stack([anode.NeuralODE(2, 1, hidden=width) for width in (4, 5)])


def test_a_stack_of_modules_that_know_of_no_members_names_the_shape_it_takes():
    stacked = anode.stack([anode.Flow(Scaled(1.0)) for _ in range(3)])
    said = r"x: takes shape \[members, \.\.\.\] = \[3, \.\.\.\] for a stack of 3, got a tensor of shape \(8, 2\)"
    with pytest.raises(ValueError, match=said):
        stacked(torch.rand(8, 2))


class Attention(nn.Module):
    """Attention over the features, each a point of its own."""

    def __init__(self):
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.attention(x, x, x)[0].mean(-2))


def test_stacked_attention_is_evaluated_without_torchs_warning_about_mapping():
    stack, x = anode.stack([Attention(), Attention()]), torch.rand(8, 3, 4)
    points = (x, x[:, 0, :1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        anode.fit(stack, points, validation=points, epochs=1, progress=False)
    attention = nn.MultiheadAttention(4, 2, batch_first=True).eval().requires_grad_(False)
    with pytest.warns(UserWarning, match="performance drop"):  # of others, it is theirs to see
        torch.vmap(lambda x: attention(x, x, x)[0])(torch.rand(2, 8, 3, 4))


def test_parametrized_layers_are_refused_by_the_name_of_their_class():
    with pytest.raises(
        ValueError, match=r"class of a part: each has its own ParametrizedLinear, as [\w.]+ makes them$"
    ):
        anode.seeded(lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2)), seeds=range(2))
