"""The sessions of all pages: how many there may be, and how long one is kept that nobody watches."""

from __future__ import annotations

import time
from typing import Any

from anode.play.session import Session
from anode.play.settings import Settings

MOST = 4
"""How many pages may be open at once."""
KEPT = 600.0
"""Seconds for which the session of a page that left is kept, so that a reloaded page finds it again."""


class TooManyError(RuntimeError):
    """Too many pages are open."""


class Sessions:
    """The sessions, by their keys. Only one thread at a time may use it.

    Args:
        most: How many there may be.
        kept: Seconds for which a session is kept that nobody watches.
    """

    def __init__(self, most: int = MOST, kept: float = KEPT) -> None:
        self._most, self._kept = most, kept
        self._sessions: dict[str, Session] = {}
        self._left: dict[str, float] = {}  # when the page left that watched a session

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, key: Any) -> Session | None:
        """The session of that key, which is watched from now on; ``None`` if there is none."""
        found = self._sessions.get(key) if isinstance(key, str) else None
        if found is not None:
            self._left.pop(found.key, None)
        return found

    def open(self, settings: Settings, points: Any) -> Session:
        """A new session, which is watched. If there are too many, the one that was left first makes room for it."""
        if len(self._sessions) >= self._most:
            if not self._left:
                raise TooManyError(f"{self._most} pages are open already; close one of them and reload this one")
            self._drop(min(self._left, key=self._left.__getitem__))
        session = Session(settings, points)
        self._sessions[session.key] = session
        return session

    def leave(self, session: Session) -> None:
        """Nobody watches a session any more."""
        session.leave()
        if session.key in self._sessions:
            self._left[session.key] = time.monotonic()

    def tidy(self) -> None:
        """Close the sessions that nobody has watched for long."""
        now = time.monotonic()
        for key in [key for key, since in self._left.items() if now - since >= self._kept]:
            self._drop(key)

    def close(self) -> None:
        """Close all sessions."""
        for key in list(self._sessions):
            self._drop(key)

    def _drop(self, key: str) -> None:
        self._left.pop(key, None)
        self._sessions.pop(key).close()
