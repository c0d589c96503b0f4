"""The sessions of all pages. Their number is limited, and abandoned ones are closed after a while."""

from __future__ import annotations

import time
from typing import Any

from anode.play.session import Session
from anode.play.settings import Settings

MOST = 4
"""Maximum number of open pages."""
KEPT = 600.0
"""Seconds to keep an abandoned session, so that a reloaded page finds it again."""


class TooManyError(RuntimeError):
    """Too many pages are open."""


class Sessions:
    """The sessions by key. Only one thread at a time may use it.

    Args:
        most: Maximum number of sessions.
        kept: Seconds to keep an abandoned session.
    """

    def __init__(self, most: int = MOST, kept: float = KEPT) -> None:
        self._most, self._kept = most, kept
        self._sessions: dict[str, Session] = {}
        self._left: dict[str, float] = {}  # when the page of a session left

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, key: Any) -> Session | None:
        """Return the session with a key and mark it as watched; ``None`` if there is none."""
        found = self._sessions.get(key) if isinstance(key, str) else None
        if found is not None:
            self._left.pop(found.key, None)
        return found

    def open(self, settings: Settings, points: Any) -> Session:
        """Return a new, watched session. If there are too many, close the one that was abandoned first."""
        if len(self._sessions) >= self._most:
            if not self._left:
                raise TooManyError(f"{self._most} pages are open already; close one of them and reload this one")
            self._drop(min(self._left, key=self._left.__getitem__))
        session = Session(settings, points)
        self._sessions[session.key] = session
        return session

    def leave(self, session: Session) -> None:
        """Mark a session as abandoned."""
        session.leave()
        if session.key in self._sessions:
            self._left[session.key] = time.monotonic()

    def tidy(self) -> None:
        """Close sessions that were abandoned long ago."""
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
