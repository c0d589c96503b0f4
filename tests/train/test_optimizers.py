import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR, OneCycleLR, ReduceLROnPlateau, SequentialLR

import anode
from anode.train.members import Members
from anode.train.optimizers import OPTIMIZERS, clip_gradients
from helpers.trainings import assert_same_history, data_of, fit, interrupt_after, model_of, same, stack_of, values_of

each_name = pytest.mark.parametrize("name", OPTIMIZERS)
OF_TORCH = {name: getattr(torch.optim, kind.__name__) for name, kind in OPTIMIZERS.items()}


def by_hand(model, data, make, epochs=2, batch_size=8, scheduler=None, clip=None):
    """The loop that everybody writes."""
    optimizer = make(list(model.parameters()))
    schedule = None if scheduler is None else scheduler(optimizer)
    losses = []
    for epoch in range(epochs):
        order = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(batch_size):
            optimizer.zero_grad()
            loss = torch.nn.functional.smooth_l1_loss(model(data.x[batch]), data.y[batch])
            loss.backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            if schedule is not None:
                schedule.step()
            losses.append(loss.item())
    return losses


@each_name
def test_an_optimizer_by_name_is_torchs(name):
    ours, theirs, data = model_of(), model_of(), data_of()
    history = fit(ours, data, optimizer=name, lr=3e-3, weight_decay=0.01)
    losses = by_hand(theirs, data, lambda parameters: OF_TORCH[name](parameters, lr=3e-3, weight_decay=0.01))
    np.testing.assert_allclose(history.loss, losses, rtol=1e-5)
    for a, b in zip(values_of(ours), values_of(theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_an_optimizer_of_ones_own_a_schedule_and_clipping_are_those_of_the_loop_by_hand():
    def make(parameters):
        return torch.optim.AdamW(parameters, lr=1e-2, betas=(0.8, 0.99))

    def scheduler(optimizer):
        return CosineAnnealingLR(optimizer, T_max=6)

    ours, theirs, data = model_of(), model_of(), data_of()
    history = fit(ours, data, optimizer=make, scheduler=scheduler, clip=0.05)
    losses = by_hand(theirs, data, make, scheduler=scheduler, clip=0.05)
    np.testing.assert_allclose(history.loss, losses, rtol=1e-5)
    assert history.settings["optimizer"].endswith("make")


@each_name
def test_members_of_a_stack_end_as_they_would_alone(name):
    stack, alone = stack_of(), anode.unstack(stack_of())
    together = fit(stack, data_of(), optimizer=name, lr=3e-3, seed=[5, 6, 7], clip=0.1)
    for i, model in enumerate(alone):
        single = fit(model, data_of(), optimizer=name, lr=3e-3, seed=5 + i, clip=0.1)
        np.testing.assert_allclose(together.loss[:, i], single.loss, rtol=1e-5)


def test_an_optimizer_that_mixes_the_members_of_a_stack_is_refused():
    def make(parameters):
        return torch.optim.Adafactor(parameters, lr=1e-2)

    with pytest.raises(
        ValueError, match="optimizer: takes one that moves every number by its own gradients for a stack"
    ):
        fit(stack_of(members=3), data_of(), optimizer=make)
    assert len(fit(model_of(), data_of(), optimizer=make)) > 0


def test_an_optimizer_that_knows_the_models_parameters_trains_a_stack():
    stack = stack_of(members=3)
    moments = {id(p): 0.9 for p in stack.parameters()}
    history = fit(
        stack,
        data_of(),
        optimizer=lambda ps: torch.optim.SGD([{"params": [p], "momentum": moments[id(p)]} for p in ps], lr=1e-3),
    )
    assert not history.failures


@each_name
def test_a_run_is_taken_up_to_the_same_bits(name, tmp_path):
    def scheduler(optimizer):
        return SequentialLR(
            optimizer, [MultiStepLR(optimizer, [2, 3]), CosineAnnealingLR(optimizer, T_max=4)], milestones=[4]
        )

    options = {"optimizer": name, "lr": 1e-2, "epochs": 3, "scheduler": scheduler, "clip": 0.5}
    whole, half = model_of(), model_of()
    expected = fit(whole, data_of(), **options)
    fit(half, data_of(), **options, checkpoint=tmp_path, progress=interrupt_after(5))
    found = fit(other := model_of(seed=3), data_of(), **options, checkpoint=tmp_path)
    assert same(values_of(other), values_of(whole))
    assert_same_history(found, expected)


def test_a_schedule_that_follows_the_validation_loss_is_taken_up_too(tmp_path):
    rates = []

    class Rates(anode.Callback):
        def iteration(self, training):
            rates.append(training.optimizer.param_groups[0]["lr"])

    def scheduler(optimizer):
        return ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=10.0)  # which nothing improves on

    options = {"validation": data_of(seed=1), "evaluate_every": 2, "scheduler": scheduler, "lr": 8e-3, "epochs": 3}
    whole = model_of()
    fit(whole, data_of(), **options, callbacks=[Rates()])
    assert rates == [8e-3, 4e-3, 4e-3, 2e-3, 2e-3, 1e-3, 1e-3, 5e-4, 5e-4]
    fit(model_of(), data_of(), **options, checkpoint=tmp_path, progress=interrupt_after(5))
    fit(other := model_of(), data_of(), **options, checkpoint=tmp_path)
    assert same(values_of(other), values_of(whole))


@pytest.mark.parametrize("members", [None, 3])
def test_clipping_is_torchs_for_every_member(members):
    shapes = [(2, 3), (4,)]
    theirs = [[torch.nn.Parameter(torch.zeros(shape)) for shape in shapes] for _ in range(members or 1)]
    for i, each in enumerate(theirs):
        for parameter in each:
            parameter.grad = torch.rand(parameter.shape) * 10.0 ** (i - 1)
    ours = [torch.nn.Parameter(torch.stack(same) if members else same[0]) for same in zip(*theirs, strict=True)]
    for k, parameter in enumerate(ours):
        gradients = [each[k].grad.clone() for each in theirs]
        parameter.grad = torch.stack(gradients) if members else gradients[0]
    clip_gradients(ours, 0.3, members)
    for i, each in enumerate(theirs):
        torch.nn.utils.clip_grad_norm_(each, 0.3)
        for k, parameter in enumerate(each):
            torch.testing.assert_close(ours[k].grad[i] if members else ours[k].grad, parameter.grad)


@each_name
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1.0])
def test_failed_members_stay_whatever_the_optimizer_does_and_the_others_do_not_notice(name, bad):
    ours, theirs = (torch.nn.Parameter(torch.arange(6.0).reshape(3, 2)) for _ in range(2))
    members = Members(3, [ours])
    optimizers = [OPTIMIZERS[name]([p], lr=0.1, weight_decay=0.1) for p in (ours, theirs)]
    members.frozen[1] = True
    for _ in range(4):
        ours.grad, theirs.grad = torch.ones(3, 2), torch.ones(3, 2)
        ours.grad[1] = bad
        with members.held():
            optimizers[0].step()
        optimizers[1].step()
    assert torch.equal(ours[1], torch.tensor([2.0, 3.0]))
    assert torch.equal(ours[[0, 2]], theirs[[0, 2]])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"optimizer": "adamm"}, "optimizer: takes one of adam, .*did you mean 'adam'"),
        ({"optimizer": 3}, "optimizer: takes one of adam, .*or a function of a list of parameters, .*, got 3"),
        (
            {"optimizer": lambda p: 3},
            r"optimizer: takes a function that returns .*Optimizer, got one that returned a int",
        ),
        (
            {"optimizer": torch.optim.LBFGS},
            r"optimizer: takes one whose step\(\) does not require a closure, got 'LBFGS'",
        ),
        ({"optimizer": torch.optim.Adam, "lr": 0.1}, "lr: takes None if optimizer is a function"),
        ({"optimizer": torch.optim.Adam, "weight_decay": 0.1}, "weight_decay: takes None if optimizer is a func"),
        ({"optimizer": lambda p: torch.optim.SGD([torch.zeros(1)])}, "optimizer: takes an optimizer of only the"),
        ({"scheduler": 3}, "scheduler: takes a function of the optimizer, .*, got 3"),
        ({"scheduler": lambda o: 3}, r"scheduler: takes a function that returns a torch\.optim\.lr_scheduler"),
        ({"scheduler": ReduceLROnPlateau}, "scheduler: takes one that needs no validation data, or pass validation="),
        ({"clip": 0.0}, "clip: takes a number above 0, got 0.0"),
        ({"transform": 3}, "transform: takes a function that maps .*, got 3"),
    ],
    ids=[str(i) for i in range(12)],
)
def test_what_cannot_move_parameters_is_named(options, said):
    with pytest.raises((ValueError, TypeError), match=said):
        fit(model_of(), data_of(), **options)


def test_rates_for_each_member_are_for_adam_alone():
    rates = [1e-3, 1e-2, 1e-1]
    with pytest.raises(ValueError, match='lr: takes one number for all members, unless optimizer is "adam"'):
        fit(stack_of(), data_of(), lr=rates, optimizer="sgd")
    with pytest.raises(ValueError, match='lr: takes one number for all members, unless optimizer is "adam"'):
        fit(stack_of(), data_of(), lr=rates, scheduler=lambda o: OneCycleLR(o, 0.1, 10))


def test_another_optimizer_is_another_run(tmp_path):
    fit(model_of(), data_of(), checkpoint=tmp_path)
    with pytest.raises(ValueError, match="optimizer was None and is 'sgd'"):
        fit(model_of(), data_of(), checkpoint=tmp_path, optimizer="sgd")
