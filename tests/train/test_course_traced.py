"""Iterations by the compiled engine on fields of the user's own, against those in Python."""

import numpy as np
import pytest
import torch
from torch import nn

import anode
from anode.engine import native as engine
from anode.engine.watch.guard import Guard
from anode.models.ensemble import from_seed
from helpers.own_fields import TRACED, Decay, Idle, Loud, Mixing, TimeConcatenated
from helpers.trainings import assert_trained_alike, killed, same, values_of

pytestmark = pytest.mark.skipif(not engine.instruction_sets(), reason="there is no compiled engine")


def data_of(points=100, classes=0, dtype=torch.float64):
    x = torch.randn(points, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = (x.sum(1).abs() * 2).long().clamp_max(classes - 1) if classes else x.sum(1, keepdim=True).sin()
    return x.to(dtype), y if classes else y.to(dtype)


def model_of(field=TimeConcatenated, members=None, outputs=1, plain=True, seed=0, **options):
    def build():
        head = nn.Linear(5, outputs) if plain else anode.models.layers.LinearHead(5, outputs)
        return anode.NeuralODE(field=field(), head=head, augment=2, **options)

    return (from_seed(build, seed) if members is None else anode.seeded(build, range(members))).double()


def train(model, data, **options):
    return anode.fit(model, data, **{"epochs": 5, "batch_size": 32, "lr": 1e-2, "progress": False, **options})


def both(field, data=None, change=None, model=None, **options):
    """Models and histories of both engines, the compiled one first."""
    results = []
    for which in ("auto", "torch"):
        one = model_of(field, engine=which, **(model or {}))
        if change is not None:
            change(one)
        results.append((one, train(one, data_of() if data is None else data, **options)))
    return results


def assert_same(results, native=True):
    engine = results[0][1].engine
    assert (engine == "native") == native, engine
    assert_trained_alike(results)


@pytest.mark.parametrize("members", [None, 3])
@pytest.mark.parametrize("name", TRACED)
def test_training_is_the_same_as_in_python(name, members):
    options = {"lr": 1e-2 if members is None else [1e-2, 3e-3, 1e-3], "weight_decay": 1e-3, "validation": data_of()}
    results = both(TRACED[name], model={"members": members}, **options)
    assert len(results[0][1]) == 20
    assert_same(results)


@pytest.mark.parametrize("loss", ["huber", "mse", "cross_entropy"])
@pytest.mark.parametrize("plain", [True, False])
def test_every_loss_and_linear_head_is_trained(loss, plain):
    classes = 3 if loss == "cross_entropy" else 0
    model = {"outputs": classes or 1, "plain": plain}
    assert_same(both(TimeConcatenated, data_of(classes=classes), model=model, loss=loss))


@pytest.mark.parametrize("options", [{"method": "rk4", "step_size": 0.3}, {"gradient": "stored"}, {"t1": 2.0}])
def test_solvers_and_spans_are_obeyed(options):
    assert_same(both(Idle, model=options, weight_decay=1e-2))


def test_the_environment_may_ask_for_torch(monkeypatch):
    monkeypatch.setenv("ANODE_ENGINE", "torch")
    assert "ANODE_ENGINE=torch" in train(model_of(), data_of(), epochs=1).engine


@pytest.mark.parametrize("members", [None, 2])
def test_frozen_parameters_stay_where_they_are(members):
    def freeze(model):
        field = model.flow.field if members is None else model.flow.field.module
        field.into.weight.requires_grad_(False)

    before = values_of(model_of(members=members).flow.field)[0]
    results = both(TimeConcatenated, change=freeze, model={"members": members}, weight_decay=1e-2)
    assert_same(results)
    assert torch.equal(values_of(results[0][0].flow.field)[0], before)


def test_members_end_as_they_would_have_ended_alone():
    together = model_of(members=3)
    history = train(together, data_of(), seed=[0, 1, 2])
    assert history.engine == "native"
    for i, member in enumerate(anode.unstack(together)):
        alone = model_of(seed=i)
        expected = train(alone, data_of(), seed=i)
        assert same(values_of(member), values_of(alone))
        np.testing.assert_array_equal(history.nfe[:, i], expected.nfe.reshape(-1))


def test_a_failing_member_leaves_the_others_alone():
    results = []
    for which in ("auto", "torch"):
        model = model_of(members=3, engine=which, max_steps=20)
        with torch.no_grad():
            model.flow.field.module.out.weight[1] *= 1e4
        results.append((model, train(model, data_of())))
    assert [failure.member for failure in results[0][1].failures] == [1]
    assert_same(results)


@pytest.mark.parametrize(
    ("field", "why"),
    [
        (Decay, "f computes tensors from its parameters alone"),
        (Loud, "f calls print"),
        (Mixing, "f takes all points of a batch together"),
    ],
)
def test_what_cannot_be_trained_by_the_engine_is_said_and_done_in_python(field, why):
    results = both(field, epochs=1)
    assert why in results[0][1].engine
    assert_same(results, native=False)


@pytest.mark.parametrize("members", [None, 3])
def test_a_counter_counts_the_evaluations_that_were_made(members):
    seen = []

    class Count(anode.Callback):
        def begin(self, training):
            field = training.model.flow.field
            self.field = field if members is None else field.module
            self.before = self.field.nfe

        def end(self, training):
            seen.append(self.field.nfe - self.before)

    history = train(model_of(members=members), data_of(), callbacks=[Count()])
    assert history.engine == "native"
    assert seen == [history.nfe.reshape(20, -1).max(1).sum()]


def test_random_numbers_are_left_alone():
    found = []
    for which in ("auto", "torch"):
        torch.manual_seed(3)
        train(model_of(engine=which), data_of(), epochs=1)
        found.append(torch.rand(3))
    assert torch.equal(*found)


class Changes(anode.Callback):
    """Does something to a run after its second iteration."""

    def __init__(self, change):
        self.change = change

    def iteration(self, training):
        if training.report.done == 2:
            self.change(training.model.flow.field)


def slower(field):
    field.factor = 0.5


def another_function(field):
    field.forward = lambda t, y: torch.cos(field.used(y))


def other_data(field):
    field.used.weight.data = field.used.weight.data * 0.5


def other_parameter(field):
    field.used.bias = nn.Parameter(field.used.bias.detach() + 0.5)


def other_constant(field):
    field.constant = field.constant * 2


def constant_in_place(field):
    field.constant.mul_(2)


def frozen(field):
    field.used.weight.requires_grad_(False)


def hooked(field):
    field.used.register_forward_hook(lambda module, inputs, output: output * 2)


@pytest.mark.parametrize(
    "change",
    [
        slower,
        another_function,
        other_data,
        other_parameter,
        other_constant,
        constant_in_place,
        frozen,
        hooked,
    ],
)
def test_what_a_callback_changes_of_the_field_counts(change):
    results = []
    for which in ("auto", "torch"):
        model = model_of(Idle, engine=which)
        results.append((model, train(model, data_of(), callbacks=[Changes(change)])))
    (one, history), (other, expected) = results
    np.testing.assert_allclose(history.loss, expected.loss, rtol=1e-6)
    np.testing.assert_array_equal(history.nfe, expected.nfe)
    for value, expected_value in zip(values_of(one), values_of(other), strict=True):
        torch.testing.assert_close(value, expected_value, rtol=1e-6, atol=1e-9)
    assert not np.allclose(history.loss, train(model_of(Idle), data_of()).loss, rtol=1e-6)


@pytest.mark.parametrize("change", [slower, other_constant])
def test_a_stack_notices_what_a_callback_changes_of_its_fields(change):
    results = []
    for which in ("auto", "torch"):
        model = model_of(Idle, members=2, engine=which)
        callback = Changes(lambda field: change(field.module))
        results.append((model, train(model, data_of(), callbacks=[callback])))
    assert_same(results)


def test_a_field_that_always_changes_is_left_to_python_in_the_end():
    class Anneal(anode.Callback):
        def iteration(self, training):
            training.model.flow.field.factor *= 0.9

    results = []
    for which in ("auto", "torch"):
        model = model_of(Idle, engine=which)
        results.append((model, train(model, data_of(), callbacks=[Anneal()])))
    assert "f has changed" in results[0][1].engine
    assert_same(results, native=False)


@pytest.mark.parametrize("seen", [True, False])
def test_a_program_that_is_wrong_is_noticed_by_its_slopes(monkeypatch, seen):
    """The guard is made blind here, so that the field's own slopes have to tell."""
    monkeypatch.setattr(Guard, "holds", lambda self: True)
    results = []
    for which in ("auto", "torch"):
        model = model_of(Idle, engine=which)
        train(model, data_of(), epochs=1)  # the program is known from here on
        slower(model.flow.field)
        callbacks = [anode.Callback()] if seen else []
        results.append((model, train(model, data_of(), callbacks=callbacks)))
    assert_same(results)


def test_estimators_train_their_own_fields_by_the_engine():
    x, y = data_of(classes=2, dtype=torch.float32)
    classifier = anode.ANODEClassifier(field=TimeConcatenated, augment=2, epochs=2, random_state=0)
    classifier.fit(x.numpy(), y.numpy())
    assert classifier.history_.engine == "native"


@pytest.mark.parametrize("members", [None, 2])
def test_a_run_that_is_taken_up_again_ends_with_the_same_bits(tmp_path, members):
    whole, parts = model_of(members=members), model_of(members=members)
    train(whole, data_of())
    train(parts, data_of(), epochs=2, checkpoint=tmp_path / "state")
    history = train(parts, data_of(), checkpoint=tmp_path / "state")
    assert history.engine == "native"
    assert len(history) == 20
    assert same(values_of(whole), values_of(parts))


SCRIPT = """
import sys
import conftest  # which takes the engine of `make test-native`, if that is what is tested
from tests.train.test_course_traced import keep_training
keep_training(sys.argv[1], checkpoint_every=0.02)
"""


def keep_training(folder, **options):
    """A model that is trained, from its last state in a folder if there is one."""
    model = model_of(members=2)
    train(model, data_of(), epochs=600, checkpoint=folder, **options)
    return model


@pytest.mark.slow
def test_killed_and_taken_up_again_it_gives_the_same_bits(tmp_path):
    killed(SCRIPT, tmp_path / "state")
    resumed, whole = (keep_training(tmp_path / name) for name in ("state", "another"))
    assert same(list(resumed.state_dict().values()), list(whole.state_dict().values()))
