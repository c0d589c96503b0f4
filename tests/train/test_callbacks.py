import numpy as np
import pytest
import torch
from torch import nn

import anode
from helpers.trainings import data_of, fit, model_of, same, stack_of, values_of


class Log(anode.Callback):
    """Writes down when it is called, and what it sees."""

    def __init__(self):
        self.calls, self.reports = [], []

    def begin(self, training):
        self.calls.append(("begin", len(training.history)))

    def iteration(self, training):
        self.calls.append(("iteration", training.report.done))
        self.reports.append(training.report)

    def evaluation(self, training):
        self.calls.append(("evaluation", training.report.done))
        assert training.report.validation == training.history.validation[-1]

    def epoch(self, training):
        self.calls.append(("epoch", training.report.done))

    def end(self, training):
        self.calls.append(("end", training.history.stopped))


def test_callbacks_are_called_in_a_fixed_order():
    log = Log()
    history = fit(model_of(), data_of(), validation=data_of(seed=1), evaluate_every=2, epochs=1, callbacks=[log])
    assert log.calls == [
        ("begin", 0),
        *[("iteration", 1), ("iteration", 2), ("evaluation", 2), ("iteration", 3), ("epoch", 3), ("evaluation", 3)],
        ("end", ""),
    ]
    np.testing.assert_allclose([report.loss for report in log.reports], history.loss, rtol=1e-6)


@pytest.mark.parametrize("by", ["progress", "callback"])
def test_an_interrupt_between_iterations_leaves_out_no_callback(by):
    def interrupt(report):
        if report.done == 3:
            raise KeyboardInterrupt

    class Interrupting(anode.Callback):
        def iteration(self, training):
            interrupt(training.report)

    log = Log()
    options = {"progress": interrupt} if by == "progress" else {}
    callbacks = [log] if by == "progress" else [Interrupting(), log]
    history = fit(model_of(), data_of(), validation=data_of(seed=1), callbacks=callbacks, **options)
    assert len(history) == 3
    assert log.calls[-4:] == [("iteration", 3), ("evaluation", 3), ("epoch", 3), ("end", "interrupted")]


class Only(anode.Callback):
    """Looks at evaluations alone, so that the engine need not stop in between."""

    def __init__(self):
        self.seen = []

    def evaluation(self, training):
        self.seen.append((training.report.done, values_of(training.model)))


def test_a_callback_that_looks_at_evaluations_sees_the_model_of_that_moment():
    only, model = Only(), model_of()
    history = fit(model, data_of(), validation=data_of(seed=1), callbacks=[only])
    assert history.engine == "native"
    assert [done for done, _ in only.seen] == [3, 6]
    assert same(only.seen[1][1], values_of(model))
    assert not same(only.seen[0][1], values_of(model))


class Epochs(anode.Callback):
    """Looks at the model once per epoch."""

    def __init__(self):
        self.seen = []

    def epoch(self, training):
        self.seen.append((training.report.done, values_of(training.model)))


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_a_callback_of_epochs_needs_no_validation_data_and_leaves_the_iterations_to_the_engine(engine):
    epochs, model = Epochs(), model_of(engine=engine)
    history = fit(model, data_of(), epochs=2, callbacks=[epochs])
    assert history.engine.startswith(engine)
    assert [done for done, _ in epochs.seen] == [3, 6]
    assert same(epochs.seen[1][1], values_of(model))
    assert not same(epochs.seen[0][1], values_of(model))


class Stop(anode.Callback):
    def __init__(self, moment, after=0):
        self.moment, self.after = moment, after

    def _stop(self, training):
        if len(training.history) >= self.after:
            training.stop("enough")

    def begin(self, training):
        if self.moment == "begin":
            self._stop(training)

    def iteration(self, training):
        if self.moment == "iteration":
            self._stop(training)

    def evaluation(self, training):
        if self.moment == "evaluation":
            self._stop(training)


@pytest.mark.parametrize(("moment", "done"), [("begin", 0), ("iteration", 2), ("evaluation", 3)])
@pytest.mark.parametrize("build", [model_of, stack_of])
def test_a_callback_may_stop_training(moment, done, build):
    stop = Stop(moment, 0 if moment == "begin" else 2)
    history = fit(build(), data_of(), validation=data_of(seed=1), callbacks=[stop])
    assert (len(history), history.stopped) == (done, "enough")
    assert len(history.validation) == (1 if done else 0)


def test_stopping_in_the_last_iteration_stops_nothing():
    assert fit(model_of(), data_of(), callbacks=[Stop("iteration", 6)]).stopped == ""


class Broken(anode.Callback):
    def iteration(self, training):
        raise RuntimeError("broken")


def test_an_error_in_a_callback_ends_training_and_is_raised():
    with pytest.raises(RuntimeError, match="broken"):
        fit(model_of(), data_of(), callbacks=[Broken()])


class Deaf(anode.Callback):
    def iteration(self):
        pass


def test_a_callback_that_does_not_take_the_run_is_named():
    said = r"callbacks: takes objects whose method iteration\(self, training\) .*, got Deaf\.iteration"
    with pytest.raises(TypeError, match=said):
        fit(model_of(), data_of(), callbacks=[Deaf()])


class Stopping(anode.Callback):
    def iteration(self, training):
        training.stop()


def test_training_may_be_stopped_without_a_reason():
    assert fit(model_of(), data_of(), callbacks=[Stopping()]).stopped == "stopped by a callback"


class Seeing(anode.Callback):
    def begin(self, training):
        self.model = training.model


@pytest.mark.parametrize("model", [nn.Linear(2, 1).double(), model_of()], ids=["a plain module", "a model"])
def test_callbacks_see_the_module_that_is_trained_and_no_wrapper(model):
    seeing = Seeing()
    fit(model, data_of(), callbacks=[seeing])
    assert seeing.model is model


@pytest.mark.parametrize("callbacks", [[print], [Log], Log(), print, None], ids=range(5))
def test_what_is_no_callback_is_named(callbacks):
    with pytest.raises(TypeError, match=r"callbacks: takes a list of anode\.Callback objects, got"):
        fit(model_of(), data_of(), callbacks=callbacks)


def test_watching_does_not_change_what_is_trained():
    watched, alone = model_of(), model_of()
    np.testing.assert_array_equal(fit(watched, data_of(), callbacks=[Log()]).loss, fit(alone, data_of()).loss)


class Switching(anode.Callback):
    """Freezes the head after an iteration, and unfreezes the flow, as in fine-tuning."""

    def iteration(self, training):
        if training.report.done == 3:
            switch(training.model, training.optimizer)


def switch(model, optimizer):
    model.head.requires_grad_(False)
    model.flow.requires_grad_(True)
    optimizer.add_param_group({"params": list(model.flow.parameters()), "lr": 1e-2})


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("by_name", [False, True])
def test_a_callback_may_freeze_and_unfreeze_parameters(engine, by_name):
    ours, theirs, data = model_of(engine=engine), model_of(engine="torch"), data_of()
    for model in (ours, theirs):
        model.flow.requires_grad_(False)
    options = {"lr": 1e-2} if by_name else {"optimizer": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9)}
    fit(ours, data, epochs=8, batch_size=22, clip=0.1, callbacks=[Switching()], **options)

    kept = [p for p in theirs.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(kept, lr=1e-2) if by_name else options["optimizer"](kept)
    for epoch in range(8):
        order = torch.randperm(22, generator=torch.Generator().manual_seed(epoch))
        optimizer.zero_grad()
        torch.nn.functional.smooth_l1_loss(theirs(data.x[order]), data.y[order]).backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.1)
        optimizer.step()
        if epoch == 2:
            switch(theirs, optimizer)
    for a, b in zip(values_of(ours), values_of(theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
