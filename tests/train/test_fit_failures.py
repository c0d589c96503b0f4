import math
import signal
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn

import anode
from anode import History, Snapshots
from anode.train import fit as training
from anode.train.optimizers import Adam
from helpers.trainings import (
    Copies,
    data_of,
    each_kind,
    each_solved,
    field_in,
    fit,
    interrupt_after,
    member_of,
    model_of,
    same,
    spoil,
    stack_of,
    values_of,
)

# Members that fail


@each_solved
@pytest.mark.parametrize("gradient", ["discrete", "stored"])
@pytest.mark.parametrize(
    ("scale", "reason"), [(1e3, "MAX_STEPS: the step budget"), (math.inf, "NON_FINITE: f returned NaN")]
)
def test_a_member_whose_solve_fails_is_frozen_and_the_others_are_the_same_to_the_bit(kind, gradient, scale, reason):
    fine = stack_of(kind, max_steps=20, gradient=gradient)
    other = spoil(deepcopy(fine), 1, scale)
    before = values_of(other, 1)
    options = {"validation": data_of(kind, 9, seed=1), "snapshots": Snapshots(data_of(kind).x[:4], [0, 4])}
    expected, history = fit(fine, data_of(kind), **options), fit(other, data_of(kind), **options)

    assert [(failure.member, failure.iteration) for failure in history.failures] == [(1, 0)]
    assert history.failures[0].reason.startswith(reason)
    assert len(history.failures[0].reason) > 50  # and says what to do
    assert (history.stopped, len(history)) == ("", 6)
    assert same(values_of(other, 1), before)
    assert math.isnan(history.loss[0, 1])
    assert np.isnan(history.validation[:, 1]).all()
    for member in (0, 2):
        for name, values in member_of(expected, member).items():
            np.testing.assert_array_equal(member_of(history, member)[name], values, err_msg=name)
        for a, b in zip(history.snapshots, expected.snapshots, strict=True):
            np.testing.assert_array_equal(a.features[member], b.features[member])
        assert same(values_of(other, member), values_of(fine, member))
    assert not expected.failures


def test_the_loss_of_a_failed_member_is_nan_from_there_on():
    history = fit(spoil(stack_of(max_steps=20), 1), data_of())
    assert np.isnan(history.loss[:, 1]).all()
    assert np.isfinite(history.loss[:, [0, 2]]).all()


def test_a_snapshot_does_not_make_up_features_for_a_failed_member():
    model, x = spoil(stack_of(max_steps=20), 1), data_of().x[:4]
    history = fit(model, data_of(), snapshots=Snapshots(x, [4]))
    features = torch.from_numpy(history.snapshots[0].features[1])
    with torch.no_grad():
        own = model.run(x.expand(3, *x.shape)).features[1]
    assert features.isnan().all() or torch.equal(features, own)


def test_a_failed_member_costs_nothing_any_more():
    history = fit(spoil(stack_of(max_steps=20), 1), data_of())
    assert (history.nfe[:, 1] == 0).all()
    assert (history.nfe[:, [0, 2]] > 0).all()


def test_a_member_that_fails_later_is_frozen_as_it_was_before_that_iteration():
    model = stack_of(max_steps=20)
    untouched, start = deepcopy(model), values_of(model, 1)
    history = fit(model, data_of(), lr=[1e-3, 1e2, 1e-3])  # the second member takes one step, and it is too large
    (failure,) = history.failures
    assert (failure.member, failure.iteration) == (1, 1)
    assert np.isfinite(history.loss[0]).all()
    assert math.isnan(history.loss[1, 1])
    interrupted = fit(untouched, data_of(), lr=[1e-3, 1e2, 1e-3], progress=interrupt_after(1))
    assert len(interrupted) == 1
    assert same(values_of(model, 1), values_of(untouched, 1))
    assert not same(values_of(model, 1), start)


def test_members_may_fail_one_after_another():
    model = spoil(stack_of(members=4, max_steps=20), 2)
    calm = deepcopy(model)
    before = values_of(model, 2)
    history = fit(model, data_of(), lr=[1e-3, 1e2, 1e-3, 1e-3])
    assert [(failure.member, failure.iteration) for failure in history.failures] == [(2, 0), (1, 1)]
    assert same(values_of(model, 2), before)
    fit(calm, data_of())
    for member in (0, 3):
        assert same(values_of(model, member), values_of(calm, member))


def test_members_may_fail_at_once():
    model = spoil(spoil(stack_of(members=4, max_steps=20), 1), 3)
    history = fit(model, data_of())
    assert [(failure.member, failure.iteration) for failure in history.failures] == [(1, 0), (3, 0)]


@each_solved
def test_training_ends_when_no_member_is_left(kind):
    model = spoil(stack_of(kind, max_steps=20))
    before = values_of(model)
    history = fit(model, data_of(kind), validation=data_of(kind))
    assert history.stopped == "all members have failed"
    assert [failure.member for failure in history.failures] == [0, 1, 2]
    assert len(history) == 1
    assert np.isnan(history.loss).all()
    assert history.validation.shape == (0, 3)
    assert same(values_of(model), before)


@each_solved
@pytest.mark.parametrize("gradient", ["discrete", "stored"])
def test_a_model_by_itself_ends_at_its_failure_with_the_history_so_far(kind, gradient):
    model = spoil(model_of(kind, max_steps=20, gradient=gradient))
    before = values_of(model)
    history = fit(model, data_of(kind), validation=data_of(kind))
    (failure,) = history.failures
    assert (failure.member, failure.iteration) == (0, 0)
    assert history.stopped == failure.reason
    assert "MAX_STEPS" in history.stopped
    assert np.isnan(history.loss).tolist() == [True]
    assert history.nfe.tolist() == [122]
    assert same(values_of(model), before)


def test_a_model_by_itself_that_fails_later_keeps_what_it_had_learned():
    model = model_of(max_steps=20)
    copies = Copies(model)
    history = fit(model, data_of(), lr=1e2, progress=copies)
    (failure,) = history.failures
    assert failure.iteration == len(history) - 1 > 0
    assert np.isfinite(history.loss[:-1]).all()
    assert math.isnan(history.loss[-1])
    assert same(values_of(model), values_of(copies.models[failure.iteration]))


def test_a_residual_network_fails_by_its_loss():
    model = stack_of("ResNet")
    fine = deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter[1] *= 1e100
    before = values_of(model, 1)
    history = fit(model, data_of())
    fit(fine, data_of())
    (failure,) = history.failures
    assert (failure.member, failure.iteration, failure.reason) == (1, 0, "the loss is not finite")
    assert same(values_of(model, 1), before)
    for member in (0, 2):
        assert same(values_of(model, member), values_of(fine, member))


@each_kind
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_a_failure_though_the_solve_was_fine(kind, bad):
    calls = []

    def loss(prediction, y):
        calls.append(1)
        spoiled = torch.zeros_like(prediction)
        spoiled[1] = bad if len(calls) == 3 else 0.0
        return (prediction - y).square() + spoiled

    model = stack_of(kind)
    copies = Copies(model)
    history = fit(model, data_of(kind), loss=loss, progress=copies)
    (failure,) = history.failures
    assert (failure.member, failure.iteration, failure.reason) == (1, 2, "the loss is not finite")
    assert np.isnan(history.loss[:, 1]).tolist()[:3] == [False, False, True]
    assert same(values_of(model, 1), values_of(copies.models[2], 1))

    calls.clear()
    alone = model_of(kind)
    history = fit(alone, data_of(kind), loss=loss)
    assert (history.stopped, len(history)) == ("the loss is not finite", 3)


def test_a_gradient_that_is_not_finite_does_not_destroy_a_model():
    model, calls = stack_of("ResNet"), []

    def loss(prediction, y):
        calls.append(1)
        if len(calls) == 3:  # 0, with an infinite slope times 0 as its gradient
            return (prediction - prediction.detach()).square().sqrt()
        return (prediction - y).square()

    fit(model, data_of(), loss=loss)
    assert all(p.isfinite().all() for p in model.parameters())


def test_a_failure_in_a_field_that_is_not_trained_harms_nobody():
    fine = stack_of(max_steps=20)
    field_in(fine).requires_grad_(False)
    model = spoil(deepcopy(fine), 1)
    before = values_of(model, 1)
    history = fit(model, data_of())
    fit(fine, data_of())
    assert [(failure.member, failure.iteration) for failure in history.failures] == [(1, 0)]
    assert same(values_of(model, 1), before)
    for member in (0, 2):
        assert same(values_of(model, member), values_of(fine, member))


@each_solved
def test_a_failure_leaves_the_others_alone_with_a_continuous_gradient_too(kind):
    fine = stack_of(kind, max_steps=20, gradient="continuous")
    model = spoil(deepcopy(fine), 1)
    with torch.no_grad():  # the adjoint has one step size for all, so compare with a stack that has the same stand-in
        for parameter in fine.parameters():
            parameter[1] = parameter[0]
    fit(fine, data_of(kind), epochs=1, batch_size=22)
    history = fit(model, data_of(kind), epochs=1, batch_size=22)
    assert [failure.member for failure in history.failures] == [1]
    for member in (0, 2):
        assert same(values_of(model, member), values_of(fine, member))


def test_a_model_by_itself_ends_at_its_failure_with_a_continuous_gradient_too():
    model = spoil(model_of(max_steps=20, gradient="continuous"))
    before = values_of(model)
    history = fit(model, data_of())
    assert len(history.failures) == 1
    assert same(values_of(model), before)


def test_members_with_one_step_size_fail_together():
    model = spoil(stack_of(max_steps=20, control="joint"), 1)
    before = values_of(model)
    history = fit(model, data_of())
    assert [failure.member for failure in history.failures] == [0, 1, 2]
    assert same(values_of(model), before)


class Wall(nn.Module):
    """A field that is calm below 2 and cannot be solved above."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))

    def forward(self, t, h):
        return self.rate * (1 + 1e3 * torch.relu(h - 2) ** 3)


def test_a_validation_whose_solve_fails_is_nan():
    near, far = torch.full((4, 1), 0.5, dtype=torch.float64), torch.full((4, 1), 5.0, dtype=torch.float64)
    history = fit(anode.Flow(Wall(), max_steps=20), (near, near), batch_size=4, validation=(far, far))
    assert not history.failures
    assert np.isnan(history.validation).all()


def test_a_snapshot_whose_solve_fails_is_nan():
    near, far = torch.full((4, 1), 0.5, dtype=torch.float64), torch.full((4, 1), 5.0, dtype=torch.float64)
    history = fit(anode.Flow(Wall(), max_steps=20), (near, near), batch_size=4, snapshots=Snapshots(far, [0]))
    assert np.isnan(history.snapshots[0].features).all()


def test_failures_survive_being_saved(tmp_path):
    history = fit(spoil(stack_of(max_steps=20), 1), data_of())
    found = History.load(history.save(tmp_path / "history.json"))
    assert found.failures == history.failures
    np.testing.assert_array_equal(found.loss, history.loss)


# Ctrl-C and errors


@each_kind
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("iterations", [1, 3, 5])
def test_an_interrupted_run_keeps_model_and_history_of_that_moment(kind, stacked, iterations):
    model = stack_of(kind) if stacked else model_of(kind)
    whole = deepcopy(model)
    copies = Copies(whole)
    expected = fit(whole, data_of(kind), progress=copies, validation=data_of(kind))
    history = fit(model, data_of(kind), progress=interrupt_after(iterations), validation=data_of(kind))
    assert history.stopped == "interrupted"
    assert len(history) == iterations
    np.testing.assert_array_equal(history.loss, expected.loss[:iterations])
    np.testing.assert_array_equal(history.nfe, expected.nfe[:iterations])
    np.testing.assert_array_equal(history.validation, expected.validation[: iterations // 3])
    assert same(values_of(model), values_of(copies.models[iterations]))


def test_an_interrupted_run_gives_failed_members_their_parameters_back():
    model = spoil(stack_of(max_steps=20), 1)
    before = values_of(model, 1)
    history = fit(model, data_of(), progress=interrupt_after(2))
    assert history.stopped == "interrupted"
    assert [failure.member for failure in history.failures] == [1]
    assert same(values_of(model, 1), before)


def test_an_interrupt_during_a_solve_leaves_model_and_history_of_the_iteration_before():
    model, calls = model_of(), []
    copies = Copies(model)

    def loss(prediction, y):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return (prediction - y).square()

    history = fit(model, data_of(), loss=loss, progress=copies)
    assert (history.stopped, len(history)) == ("interrupted", 3)
    assert same(values_of(model), values_of(copies.models[3]))


def press_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


class PressingLoss:
    """A squared loss that presses Ctrl-C when it is computed for the nth time."""

    def __init__(self, call: int, times: int = 1) -> None:
        self.call, self.times, self.calls = call, times, 0

    def __call__(self, prediction, y):
        self.calls += 1
        for _ in range(self.times if self.calls == self.call else 0):
            press_ctrl_c()
        return (prediction - y).square()


@pytest.mark.usefixtures("default_handler")
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("during", ["loss", "step", "record"])
def test_ctrl_c_lets_the_iteration_at_hand_be_finished(monkeypatch, stacked, during):
    whole = stack_of(engine="torch") if stacked else model_of(engine="torch")
    model, copies, calls = deepcopy(whole), Copies(whole), []
    expected = fit(whole, data_of(), loss="mse", progress=copies)

    def pressing(function):
        def pressed(*args):
            calls.append(1)
            if len(calls) == 2:
                press_ctrl_c()
            return function(*args)

        return pressed

    if during == "step":
        monkeypatch.setattr(Adam, "step", pressing(Adam.step))
    elif during == "record":
        monkeypatch.setattr(training.Training, "cost", pressing(training.Training.cost))
    history = fit(model, data_of(), loss=PressingLoss(2) if during == "loss" else "mse")
    assert (history.stopped, len(history)) == ("interrupted", 2)
    np.testing.assert_array_equal(history.loss, expected.loss[:2])
    assert same(values_of(model), values_of(copies.models[2]))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("default_handler")
def test_ctrl_c_pressed_twice_does_not_wait():
    model = model_of()
    copies = Copies(model)
    history = fit(model, data_of(), loss=PressingLoss(2, times=2), progress=copies)
    assert (history.stopped, len(history)) == ("interrupted", 1)
    assert same(values_of(model), values_of(copies.models[1]))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("default_handler")
def test_a_handler_of_the_callers_own_is_left_alone():
    pressed = []

    def mine(number, frame):
        pressed.append(number)

    signal.signal(signal.SIGINT, mine)
    history = fit(model_of(), data_of(), loss=PressingLoss(2))
    assert pressed == [signal.SIGINT]
    assert (history.stopped, len(history)) == ("", 6)
    assert signal.getsignal(signal.SIGINT) is mine


@pytest.mark.usefixtures("default_handler")
def test_a_signal_that_the_caller_treats_like_ctrl_c_lets_the_iteration_at_hand_be_finished():
    def terminated(prediction, y):
        signal.raise_signal(signal.SIGTERM)
        return (prediction - y).square()

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        history = fit(model_of(), data_of(), loss=terminated)
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (history.stopped, len(history)) == ("interrupted", 1)


def test_training_works_in_a_thread():
    with ThreadPoolExecutor(1) as pool:
        assert len(pool.submit(fit, model_of(), data_of()).result()) == 6


@pytest.mark.usefixtures("default_handler")
def test_ctrl_c_is_itself_again_after_an_error():
    def loss(prediction, y):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit(model_of(), data_of(), loss=loss)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("where", ["loss", "listener"])
def test_an_error_of_the_callers_own_comes_out_and_failed_members_get_their_parameters_back(where):
    model, calls = spoil(stack_of(max_steps=20), 1), []
    before = values_of(model, 1)

    def fail_at_third(*_):
        calls.append(1)
        if len(calls) == 3:
            raise ZeroDivisionError("mine")

    def loss(prediction, y):
        if where == "loss":
            fail_at_third()
        return (prediction - y).square()

    with pytest.raises(ZeroDivisionError, match="mine"):
        fit(model, data_of(), loss=loss, progress=fail_at_third if where == "listener" else False)
    assert same(values_of(model, 1), before)


def test_a_gradient_that_is_not_finite_leaves_a_single_model_as_it_was():
    model, x = anode.ResNet(2, 1, hidden=4, layers=1), torch.ones(8, 2)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
    before = [p.clone() for p in model.parameters()]

    def kink(prediction, target):  # 0 at 0, where its derivative is NaN
        return (prediction - target).pow(2).sqrt()

    history = anode.fit(model, (x, torch.zeros(8, 1)), loss=kink, epochs=1, batch_size=4)
    assert history.stopped == "a gradient is not finite"
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_backward_solve_that_fails_leaves_a_single_model_as_it_was():
    torch.manual_seed(0)
    model = anode.NeuralODE(2, 1, 4, gradient=anode.Continuous(rtol=1e-14, atol=1e-30), max_steps=30)
    before = [p.clone() for p in model.parameters()]
    history = anode.fit(model, anode.datasets.moons(points=20), epochs=1, batch_size=10)
    assert len(history.failures) == 1
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
