"""Iterations by the compiled engine against those in Python."""

import numpy as np
import pytest
import torch
from torch import nn

import anode
from anode.engine import native as engine
from anode.train.eligible import moves_by_adam, parts_of
from helpers.trainings import killed, same, spoil, values_of

pytestmark = pytest.mark.skipif(not engine.instruction_sets(), reason="there is no compiled engine")


def data_of(points=100, classes=0, seed=0, dtype=torch.float64, outputs=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(points, 3, generator=generator, dtype=torch.float64)
    if classes:
        return x.to(dtype), (x.sum(1).abs() * 2).long().clamp_max(classes - 1)
    return x.to(dtype), torch.stack([x.sum(1).sin() + i for i in range(outputs)], 1).to(dtype)


def model_of(members=None, outputs=1, dtype=torch.float64, **options):
    def build():
        return anode.NeuralODE(3, outputs, 8, augment=2, **options)

    model = anode.models.ensemble.from_seed(build, 0) if members is None else anode.seeded(build, range(members))
    return model.to(dtype)


def train(model, data, **options):
    return anode.fit(model, data, **{"epochs": 3, "batch_size": 32, "lr": 1e-2, "progress": False, **options})


def both(data, members=None, model=None, **options):
    """Models and histories of both engines, the compiled one first."""
    results = []
    for which in ("auto", "torch"):
        one = model_of(members, engine=which, **(model or {}))
        results.append((one, train(one, data, **options)))
    return results


def assert_same(results, tolerance=1e-8):
    (one, history), (other, expected) = results
    for name in ("loss", "accuracy", "validation"):
        np.testing.assert_allclose(getattr(history, name), getattr(expected, name), rtol=tolerance, atol=1e-7)
    for name in ("nfe", "accepted", "rejected"):
        np.testing.assert_array_equal(getattr(history, name), getattr(expected, name))
    for value, expected_value in zip(values_of(one), values_of(other), strict=True):
        torch.testing.assert_close(value, expected_value, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("members", [None, 3])
@pytest.mark.parametrize("loss", ["huber", "mse", "cross_entropy"])
def test_training_is_the_same_as_in_python(loss, members):
    classes = 4 if loss == "cross_entropy" else 0
    data = data_of(classes=classes, outputs=2)
    options = {"lr": 1e-2 if members is None else [1e-2, 3e-3, 1e-3], "weight_decay": 1e-3, "validation": data}
    results = both(data, members, model={"outputs": classes or 2}, loss=loss, **options)
    assert results[0][1].loss.shape[0] == 12
    assert_same(results, 1e-5)


@pytest.mark.parametrize("members", [None, 2])
def test_weights_of_points_count_as_in_python(members):
    x, y = data_of()
    weights = torch.rand(100, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert_same(both((x, y, weights), members), 1e-5)


def test_members_may_have_data_of_their_own():
    assert_same(both([data_of(seed=0), data_of(seed=1)], 2), 1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"time": False},
        {"activation": "softplus"},
        {"layers": 1},
        {"method": "rk4", "step_size": 0.3},
        {"method": "bosh3", "rtol": 1e-5},
    ],
)
def test_models_of_every_kind_are_trained_the_same(options):
    assert_same(both(data_of(), model=options), 1e-5)


def test_a_member_ends_as_it_would_have_ended_alone():
    data, together = data_of(), model_of(3)
    train(together, data)
    alone = model_of()
    train(alone, data)
    assert same(values_of(anode.unstack(together)[0]), values_of(alone))


def test_bits_do_not_depend_on_the_number_of_threads(threads):
    data, found = data_of(points=600), []
    for members in (None, 3):
        for count in (1, 2):
            threads(count)
            model = model_of(members)
            train(model, data, batch_size=300)
            found.append(values_of(model))
    assert same(found[0], found[1])
    assert same(found[2], found[3])


def test_a_member_that_fails_is_frozen_and_the_others_go_on():
    results = []
    for which in ("auto", "torch"):
        model = spoil(model_of(3, engine=which, max_steps=50), member=1)
        results.append((model, train(model, data_of())))
    (_, history), (_, expected) = results
    for one in (history, expected):
        assert [(f.member, f.iteration, f.status) for f in one.failures] == [(1, 0, "MAX_STEPS")]
        assert np.isnan(one.loss[:, 1]).all()
        assert (one.nfe[:, 1] == 0).all()
    assert_same(results, 1e-5)


def test_training_ends_when_no_member_is_left():
    for which in ("auto", "torch"):
        history = train(spoil(model_of(2, engine=which, max_steps=50)), data_of())
        assert len(history) == 1
        assert history.stopped == "all members have failed"


@pytest.mark.parametrize("on_failure", ["stop", "skip", "raise"])
def test_a_model_by_itself_that_fails_does_what_was_asked_for(on_failure):
    x, y = data_of()
    y[40] = 1e200  # the square of which is infinite
    for which in ("auto", "torch"):
        model = model_of(engine=which)
        options = {"on_failure": on_failure, "loss": "mse"}
        if on_failure == "raise":
            with pytest.raises(FloatingPointError, match="the loss is not finite"):
                train(model, (x, y), **options)
            continue
        history = train(model, (x, y), **options)
        assert [failure.status for failure in history.failures] == ["LOSS"] * (3 if on_failure == "skip" else 1)
        assert len(history) == (12 if on_failure == "skip" else history.failures[0].iteration + 1)


def strided(data):
    """The same numbers, lying scattered."""
    return tuple(torch.stack([part, part + 7], -1)[..., 0] for part in data)


@pytest.mark.parametrize("members", [None, 2])
@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_data_may_lie_scattered(loss, members):
    classes = 3 if loss == "cross_entropy" else 0
    weights = torch.rand(100, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    data = strided((*data_of(classes=classes), weights))
    assert not any(part.is_contiguous() for part in data)
    assert_same(both(data, members, model={"outputs": classes or 1}, loss=loss), 1e-5)


def test_one_target_for_all_points_is_no_reason_to_read_beyond_it():
    x, _ = data_of(points=4096)
    labels = torch.ones(1, dtype=torch.int64).expand(4096)
    assert_same(both((x, labels), model={"outputs": 3}, loss="cross_entropy", epochs=1), 1e-5)


def test_points_of_several_rows_are_left_to_python():
    x = torch.randn(32, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    results = both((x, x.sum(-1, keepdim=True)), batch_size=8)
    assert_same(results, 1e-6)


def test_parameters_may_be_replaced_or_frozen_on_the_way():
    results = []
    for which in ("auto", "torch"):
        model = model_of(engine=which)

        def change(report, model=model):
            if report.done == 3:
                for parameter in model.parameters():
                    parameter.data = parameter.data.clamp(-0.1, 0.1)
            if report.done == 6:
                model.head.weight.requires_grad_(False)

        results.append((model, train(model, data_of(), progress=change)))
    assert_same(results, 1e-5)


def test_a_graph_from_before_notices_that_parameters_were_changed():
    model, data = model_of(), data_of()
    loss = model(data[0]).sum()
    train(model, data)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


class Seen(anode.Callback):
    """Keeps the training run that it is called in."""

    def begin(self, training):
        self.training = training


def course_of(model, data, **options):
    """The training run of a model, of which no iteration is made."""
    seen = Seen()
    anode.fit(model, data, epochs=0, progress=False, callbacks=[seen], **options)
    return seen.training


def hooked():
    model = model_of()
    model.head.register_forward_hook(lambda module, inputs, output: output * 2)
    return model


def with_hook():
    model = model_of()
    model.head.weight.register_hook(lambda gradient: gradient * 0)
    return model


def with_shared_weights():
    model = anode.NeuralODE(3, 5, 5, augment=2).double()
    model.head.weight = model.flow.field.weights[-1]
    return model


def with_a_part_of_another_weight():
    model = anode.NeuralODE(3, 1, 5, augment=2).double()
    del model.head.weight
    model.head.weight = model.flow.field.weights[-1][:1]
    return model


@pytest.mark.parametrize(
    ("why", "build", "options"),
    [
        ("not a NeuralODE", lambda: anode.ResNet(3, 1).double(), {}),
        ("the model has hooks", hooked, {}),
        ('engine is "torch"', lambda: model_of(engine="torch"), {}),
        ("is not compiled", lambda: model_of(gradient="continuous"), {}),
        ("control is not", lambda: model_of(control="sample"), {}),
        ("have hooks", with_hook, {}),
        ("head: f uses tensors that are computed outside of it", with_a_part_of_another_weight, {}),
        ("the loss is not a built-in one", model_of, {"loss": nn.MSELoss(reduction="none")}),
    ],
)
def test_what_the_engine_cannot_do_is_done_in_python(why, build, options):
    history = train(build(), data_of(), epochs=1, **options)
    assert history.engine.startswith("torch (")
    assert why in history.engine


@pytest.mark.parametrize("name", ["run", "_run_once", "flow.run", "flow.start_and_solve", "flow.solve_from"])
def test_a_model_whose_method_was_replaced_is_trained_in_python(name):
    model, calls = model_of(), []
    owner, method = (model.flow, name[5:]) if name.startswith("flow.") else (model, name)
    replaced = getattr(owner, method)
    setattr(owner, method, lambda *args, **options: calls.append(None) or replaced(*args, **options))
    history = train(model, data_of(), epochs=1)
    assert history.engine == "torch (the model was modified)"
    assert len(calls) >= len(history.loss)


def test_shared_weights_are_left_to_python():
    training = course_of(with_shared_weights(), data_of(outputs=5))
    assert "shared" in parts_of(training).obstacle


def test_a_listener_of_the_callers_sees_the_model_after_every_iteration():
    model, seen = model_of(), []
    train(model, data_of(), progress=lambda report: seen.append((report.done, model.head.bias.item())), epochs=1)
    assert [done for done, _ in seen] == [1, 2, 3, 4]
    assert len({bias for _, bias in seen}) == 4


def test_evaluations_and_snapshots_are_made_when_they_should_be():
    x = torch.zeros(1, 3, dtype=torch.float64)
    options = {"evaluate_every": 5, "snapshots": anode.Snapshots(x, [0, 3, 7]), "validation": data_of()}
    (_, history), (_, expected) = both(data_of(), **options)
    assert history.validation_at.tolist() == expected.validation_at.tolist() == [5, 10, 12]
    assert [s.iteration for s in history.snapshots] == [0, 3, 7]
    for a, b in zip(history.snapshots, expected.snapshots, strict=True):
        np.testing.assert_allclose(a.features, b.features, rtol=1e-6)


SCRIPT = """
import sys
import conftest  # which takes the engine of `make test-native`, if that is what is tested
from tests.train.test_course import keep_training
keep_training(sys.argv[1], checkpoint_every=0.02)
"""


def keep_training(folder, **options):
    """A model that is trained, from its last state in a folder if there is one."""
    model = model_of(2)
    train(model, data_of(), epochs=1500, checkpoint=folder, **options)
    return model


def test_killed_and_taken_up_again_it_gives_the_same_bits(tmp_path):
    killed(SCRIPT, tmp_path / "state")
    resumed, whole = (keep_training(tmp_path / name) for name in ("state", "another"))
    assert same(values_of(resumed), values_of(whole))


@pytest.mark.parametrize("name", ["rtol", "t1"])
def test_a_solver_that_is_changed_on_the_way_is_obeyed(name):
    histories = []
    for which in ("auto", "torch"):
        model = model_of(engine=which, activation="tanh")

        def change(report, model=model):
            if report.done == 4 and name == "rtol":
                model.flow.solver = model.flow.solver.but(rtol=1e-5, atol=1e-5)
            elif report.done == 4:
                model.flow.t1 = 9.0

        histories.append(train(model, data_of(), progress=change))
    np.testing.assert_array_equal(histories[0].nfe, histories[1].nfe)
    np.testing.assert_allclose(histories[0].loss, histories[1].loss, rtol=1e-8)
    assert histories[0].nfe[4] > histories[0].nfe[3]


class Slower(anode.Callback):
    """Lowers the learning rate after every iteration, by hand."""

    def iteration(self, training):
        training.optimizer.param_groups[0]["lr"] *= 0.5


def test_a_learning_rate_that_a_callback_changes_counts():
    histories = [train(model_of(engine=name), data_of(), callbacks=[Slower()]) for name in ("auto", "torch")]
    assert histories[0].engine == "native"
    np.testing.assert_allclose(histories[0].loss, histories[1].loss, rtol=1e-5)
    assert not np.allclose(histories[0].loss, train(model_of(), data_of()).loss, rtol=1e-5)


class Changes(anode.Callback):
    """Does something to a run after its second iteration."""

    def __init__(self, change):
        self.change = change

    def iteration(self, training):
        if training.report.done == 2:
            self.change(training)


def to_tanh(training):
    training.model.flow.field.activation = "tanh"


def hook(training):
    training.model.head.weight.register_hook(lambda gradient: gradient * 0)


def decay(training):
    training.optimizer.param_groups[0]["weight_decay"] = 1.0


def bound(training):
    def clamp(*_):
        with torch.no_grad():
            for parameter in training.parameters:
                parameter.clamp_(-0.2, 0.2)

    training.optimizer.register_step_post_hook(clamp)


def stay(training):
    training.optimizer.step = lambda: None


@pytest.mark.parametrize("change", [to_tanh, hook, decay, bound, stay])
def test_what_a_callback_changes_counts_for_the_engine_too(change):
    histories = [train(model_of(engine=name), data_of(), callbacks=[Changes(change)]) for name in ("auto", "torch")]
    np.testing.assert_allclose(histories[0].loss, histories[1].loss, rtol=1e-5)


def smaller(training):
    for state in training.optimizer.state.values():
        state["mean"] = state["mean"].reshape(-1)[:1].clone()


def test_a_state_of_the_optimizer_that_does_not_fit_is_not_written_to():
    seen = Seen()
    with pytest.raises(RuntimeError):
        train(model_of(), data_of(), callbacks=[seen, Changes(smaller)])
    assert not moves_by_adam(seen.training)


def test_a_budget_of_steps_beyond_all_numbers_of_the_engine_is_none():
    assert len(train(model_of(max_steps=10**20), data_of(), epochs=1)) > 0


def test_points_on_another_device_are_left_to_torch():
    x, y = data_of()
    training = course_of(model_of(), (x, y))
    assert parts_of(training).obstacle == ""
    object.__setattr__(training.protocol.data, "x", x.to("meta"))
    assert parts_of(training).obstacle == "the points are on another device"
