import threading
import time

import numpy as np
import pytest
import torch

import anode
from anode.models.ensemble import from_seed
from anode.play import pair as pairs
from anode.play.pictures import HIGH, WIDE, axes, mesh
from anode.play.session import Session
from anode.play.settings import OWN, Settings, dataset
from helpers.pages import unpacked

SMALL = Settings(data="moons", width=8)
PAINTED = [[0.5, 0, 0], [-0.5, 0, 1], [0.5, 0.5, 0], [-0.5, 0.5, 1]]


class Watcher:
    """Looks at a session as a page does."""

    def __init__(self, session):
        self.session, self._new = session, threading.Event()
        session.watch(self._new.set)

    def picture(self, until=lambda head: True):
        """The next picture that is as wanted."""
        for _ in range(200):
            assert self._new.wait(30), "no picture came"
            self._new.clear()
            head, arrays = unpacked(self.session.newest)
            if until(head):
                return head, arrays
        raise AssertionError("the picture did not come")


def iterations(head):
    return [model["iterations"] for model in head["models"]]


@pytest.fixture
def session():
    made = Session(SMALL)
    yield made
    made.close()


def test_a_session_begins_with_a_picture_of_untrained_models(session):
    head, arrays = Watcher(session).picture()
    assert (iterations(head), head["playing"]) == ([0, 0], False)
    assert [model["p"] for model in head["models"]] == [0, 1]
    assert [arrays[f"paths{i}"].shape[-1] for i in (0, 1)] == [2, 3]
    assert arrays["x"].shape == (960, 2)


def test_a_step_is_an_epoch_of_both_models(session):
    watcher = Watcher(session)
    watcher.picture()
    for epoch in (1, 2):
        session.step()
        head, arrays = watcher.picture(lambda head, epoch=epoch: min(iterations(head)) >= 15 * epoch)
        assert iterations(head) == [15 * epoch, 15 * epoch]
        assert not head["playing"]
    assert arrays["curve0"].shape == (3, 30)


def test_both_models_train_as_fit_alone_would_train_them(session):
    watcher = Watcher(session)
    session.step()
    watcher.picture(lambda head: iterations(head) == [15, 15])
    data = dataset(SMALL, None)
    for augment, side in enumerate(session._pair.sides):
        model = from_seed(lambda augment=augment: anode.NeuralODE(2, 1, 8, augment=augment), SMALL.seed)
        anode.fit(model, data, epochs=1, lr=SMALL.lr, seed=SMALL.seed, progress=False)
        for ours, theirs in zip(side.model.parameters(), model.parameters(), strict=True):
            assert torch.equal(ours, theirs)
        assert side.history.engine == "native"


def test_playing_goes_on_until_the_pause_and_keeps_both_models_level(session):
    watcher = Watcher(session)
    session.play()
    head, _ = watcher.picture(lambda head: min(iterations(head)) >= 150)
    assert head["playing"]
    assert len(set(iterations(head))) == 1
    session.pause()
    head, _ = watcher.picture(lambda head: not head["playing"])
    time.sleep(0.2)
    assert iterations(unpacked(session.newest)[0]) == iterations(head)


def test_nothing_is_trained_while_nobody_watches(session):
    watcher = Watcher(session)
    session.play()
    watcher.picture(lambda head: min(iterations(head)) > 0)
    session.leave()
    seen = [session.newest]
    while len(seen) < 2 or seen[-1] is not seen[-2]:  # the last one is drawn when the models come to rest
        assert len(seen) < 20, "the models go on"
        time.sleep(0.3)
        seen.append(session.newest)
    left = iterations(unpacked(seen[-1])[0])
    head, _ = Watcher(session).picture(lambda head: min(iterations(head)) > max(left))
    assert head["playing"]


def test_learning_rate_and_tolerance_change_without_a_new_beginning(session):
    watcher = Watcher(session)
    session.step()
    watcher.picture(lambda head: iterations(head) == [15, 15])
    session.change(Settings(data="moons", width=8, lr=0.1, tolerance=1e-5))
    head, _ = watcher.picture(lambda head: head["lr"] == 0.1)
    assert iterations(head) == [15, 15]
    session.step()
    head, _ = watcher.picture(lambda head: iterations(head) == [30, 30])
    for side in session._pair.sides:
        assert side.model.flow.solver.rtol == side.model.flow.solver.atol == 1e-5
        assert [group["lr"] for group in side._training.optimizer.param_groups] == [0.1]
        assert side.history.engine == "native"
        assert side.history.nfe[15:].mean() > side.history.nfe[:15].mean()


def test_a_reset_gives_the_same_run_again(session):
    watcher, seen = Watcher(session), []
    for _ in range(2):
        session.step()
        seen.append(watcher.picture(lambda head: iterations(head) == [15, 15])[1])
        session.reset()
        watcher.picture(lambda head: iterations(head) == [0, 0])
    for name in ("surface0", "paths1", "curve0", "curve1"):
        np.testing.assert_array_equal(seen[0][name], seen[1][name])


def test_other_settings_begin_anew_and_go_on_playing(session):
    watcher = Watcher(session)
    session.play()
    watcher.picture(lambda head: min(iterations(head)) > 0)
    session.change(Settings(data="moons", width=8, p=3))
    head, arrays = watcher.picture(lambda head: head["models"][1]["p"] == 3 and min(iterations(head)) > 0)
    assert head["playing"]
    assert arrays["paths1"].shape[-1] == 3  # of five dimensions


def test_points_of_the_page_are_trained_on_and_kept(session):
    watcher = Watcher(session)
    session.change(Settings(data=OWN, width=8), PAINTED)
    _, arrays = watcher.picture(lambda head: len(unpacked(session.newest)[1]["x"]) == 4)
    np.testing.assert_allclose(arrays["x"], [point[:2] for point in PAINTED])
    session.step()
    watcher.picture(lambda head: iterations(head) == [1, 1])
    session.change(Settings(data=OWN, width=8, lr=0.01), PAINTED)  # the same points: training goes on
    head, _ = watcher.picture(lambda head: head["lr"] == 0.01)
    assert iterations(head) == [1, 1]


def test_settings_that_cannot_be_used_leave_the_session_as_it_was(session):
    watcher = Watcher(session)
    session.step()
    watcher.picture(lambda head: iterations(head) == [15, 15])
    with pytest.raises(ValueError, match=r"^points: takes points of both classes"):
        session.change(Settings(data=OWN), [[0, 0, 0], [1, 1, 0]])
    session.step()
    watcher.picture(lambda head: iterations(head) == [30, 30])


def test_the_python_core_serves_where_there_is_no_compiled_engine(monkeypatch, session):
    monkeypatch.setenv("ANODE_ENGINE", "torch")
    watcher = Watcher(session)
    session.change(Settings(data=OWN, width=8), PAINTED)
    session.step()
    head, _ = watcher.picture(lambda head: iterations(head) == [1, 1])
    assert all(model["engine"].startswith("torch") for model in head["models"])


def test_training_ends_after_so_many_iterations(monkeypatch):
    monkeypatch.setattr(pairs, "ITERATIONS", 40)
    session = Session(SMALL)
    try:
        watcher = Watcher(session)
        session.play()
        head, _ = watcher.picture(lambda head: all(model["ended"] for model in head["models"]))
        assert (iterations(head), head["playing"]) == ([30, 30], False)
        assert head["models"][0]["ended"] == "reached the limit of 30 iterations"
    finally:
        session.close()


def test_a_model_whose_solve_fails_ends_and_the_other_goes_on(session):
    watcher = Watcher(session)
    watcher.picture()
    node = session._pair.sides[0].model
    with torch.no_grad():
        for parameter in node.flow.field.parameters():
            parameter.fill_(torch.nan)
    session.play()
    head, arrays = watcher.picture(lambda head: head["models"][1]["iterations"] >= 60)
    assert head["models"][0]["ended"]
    assert np.isnan(arrays["paths0"]).all()
    assert not head["models"][1]["ended"]


def test_an_error_that_training_has_no_answer_to_is_told(session, monkeypatch):
    watcher = Watcher(session)
    watcher.picture()
    monkeypatch.setattr("anode.play.session.picture", lambda *_: 1 / 0)
    session.step()
    session._pair.join()
    assert session.trouble == "ZeroDivisionError: division by zero"
    monkeypatch.undo()
    session.reset()
    watcher.picture(lambda head: iterations(head) == [0, 0])
    assert session.trouble == ""


def test_closing_ends_both_threads():
    before = threading.active_count()
    session = Session(SMALL)
    Watcher(session)
    session.play()
    assert threading.active_count() == before + 2
    session.close()
    assert threading.active_count() == before


def test_the_mesh_goes_row_by_row_from_the_upper_left():
    corners = mesh(3, 2)[[0, 1, 2, -1]]
    torch.testing.assert_close(corners, torch.tensor([[-WIDE, HIGH], [0, HIGH], [WIDE, HIGH], [WIDE, -HIGH]]))


@pytest.mark.parametrize("augment", [0, 1, 3])
def test_the_classifier_is_exact_in_the_axes_that_are_shown(augment):
    model = from_seed(lambda: anode.NeuralODE(2, 1, 8, augment=augment), 0)
    features = torch.randn(20, 2 + augment)
    direction, weights, bias = axes(model)
    assert len(direction) == (2 if augment == 0 else 3)
    shown = features @ direction.T @ torch.tensor(weights) + bias
    torch.testing.assert_close(shown, model.head(features)[:, 0].detach())
