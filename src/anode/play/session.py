"""A session of one page: a pair of models, their controls, and their latest picture."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

from anode.play.pair import Pair
from anode.play.pictures import certificate, picture
from anode.play.settings import OWN, Settings, dataset

BETWEEN_PICTURES = 1 / 15
"""Minimum seconds between pictures while models train; drawing a picture also takes at most a third of the time."""
BETWEEN_CERTIFICATES = 2.0
"""Seconds between certificates while models train."""


class Session:
    """A pair of models under the control of a page.

    Commands may come from any thread. Models train while the session plays and a page watches. Otherwise their threads
    wait, with a picture of the current state.

    Args:
        settings: The settings of models and data.
        points: The page's own points, if the settings ask for them.

    Attributes:
        key: The name by which the page finds the session again.
        newest: The latest picture.
        trouble: The error that ended training; empty if there was none.
    """

    def __init__(self, settings: Settings, points: Any = None) -> None:
        self.key, self.settings, self.trouble = secrets.token_urlsafe(16), settings, ""
        self.newest = b""
        self._points = points if settings.data == OWN else None
        self._changed, self._changing = threading.Condition(), threading.RLock()
        self._playing, self._steps, self._watched, self._number = False, 0, False, 0
        self._tell: Callable[[], None] = lambda: None
        self._pair = self._begin(settings)

    def _begin(self, settings: Settings) -> Pair:
        """Start with new models; their threads wait in :meth:`_between`."""
        data = dataset(settings, self._points)
        self._closed = self._shown = self._tuned = False
        self._next_picture, self._next_certificate = 0.0, 0.0
        self._certificates: list[dict[str, Any]] = []
        pair = Pair(settings, data, self._between, self._fail)
        pair.start()
        return pair

    @property
    def playing(self) -> bool:
        """Whether the page wants the models to train."""
        return self._playing

    def watch(self, tell: Callable[[], None]) -> None:
        """Start watching.

        Args:
            tell: Called when there is a new picture, from any thread.
        """
        with self._changed:
            self._tell, self._watched, self._shown = tell, True, False
            self._changed.notify_all()

    def leave(self) -> None:
        """Stop watching; the models wait."""
        with self._changed:
            self._tell, self._watched = lambda: None, False

    def play(self) -> None:
        """Train until paused."""
        self._go(playing=True, steps=0)

    def pause(self) -> None:
        """Stop after the current epoch."""
        self._go(playing=False, steps=0)

    def step(self) -> None:
        """Train for one epoch, and stop."""
        self._go(playing=False, steps=1)

    def _go(self, playing: bool, steps: int) -> None:
        with self._changed:
            self._playing, self._steps, self._shown = playing, steps, False
            self._changed.notify_all()

    def reset(self) -> None:
        """Start again with untrained models, from the same seed."""
        self.change(self.settings, self._points, again=True)

    def change(self, settings: Settings, points: Any = None, *, again: bool = False) -> None:
        """Change the settings. Training restarts if more than learning rate or tolerance changes.

        Args:
            settings: The new settings.
            points: The page's own points, if the settings ask for them; defaults to those it sent last.
            again: Whether to restart training in any case.
        """
        with self._changing:
            if settings.data != OWN:
                points = None
            elif points is None:
                points = self._points
            dataset(settings, points)  # raises before anything is changed
            if not again and points == self._points and settings.trains_like(self.settings) and not self.trouble:
                with self._changed:
                    self.settings, self._tuned, self._shown = settings, True, False
                    self._changed.notify_all()
                return
            self.close()
            self.settings, self._points, self.trouble = settings, points, ""
            self._pair = self._begin(settings)

    def close(self) -> None:
        """Stop both threads and wait for them, for at most an epoch."""
        with self._changing:
            with self._changed:
                self._closed = True
                self._changed.notify_all()
            self._pair.join()

    def _fail(self, why: str) -> None:
        with self._changed:
            self.trouble, self._playing = self.trouble or why, False
            self._tell()

    def _between(self, pair: Pair) -> bool:
        """Between two epochs: draw the models, wait, and return whether to continue."""
        self._shown = False
        while True:
            with self._changed:
                if self._closed:
                    return False
                if self._tuned:
                    for side in pair.sides:
                        side.tune(self.settings)
                    self._tuned = False
                going = self._watched and (self._playing or self._steps > 0) and not pair.ended
                due = not self._shown and (not going or time.monotonic() >= self._next_picture)
                if going and not due:
                    self._steps = 0
                    return True
                if not due:
                    self._changed.wait()
                    continue
                self._shown = True  # unless something changes while it is drawn
                settings, going = self.settings, going and self._playing
            self._show(pair, settings, going)

    def _show(self, pair: Pair, settings: Settings, going: bool) -> None:
        """Draw a picture, while both models wait."""
        now = time.monotonic()
        if not going or now >= self._next_certificate:
            self._certificates = [certificate(side, pair.data.x) for side in pair.sides]
            self._next_certificate = now + BETWEEN_CERTIFICATES
        self._number += 1
        head = {
            "number": self._number,
            "playing": self._playing and not pair.ended,
            "tolerance": settings.tolerance,
            "lr": settings.lr,
        }
        self.newest = picture(pair, head, self._certificates)
        done = time.monotonic()
        self._next_picture = done + max(BETWEEN_PICTURES, 2 * (done - now))
        self._tell()
