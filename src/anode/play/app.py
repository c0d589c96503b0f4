"""The web server of the page: a few files by name, and one WebSocket per page. It accesses no other files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from anode.play.session import Session
from anode.play.sessions import Sessions, TooManyError
from anode.play.settings import Settings

LONGEST = 256 * 1024
"""Largest message from a page in bytes; 2,000 points take about 100 KB."""
TAKEN_OVER, FULL = 4001, 4003
"""Close codes: another page has taken over the session; too many pages are open."""
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PAGE = {
    path.name: (path.read_bytes(), TYPES[path.suffix])
    for path in sorted((Path(__file__).parent / "page").iterdir())
    if path.suffix in TYPES
}
"""The files of the page by name, read at import, so that no request can choose a path on disk."""
TIDY = 30.0
"""Seconds between two clean-ups of abandoned sessions."""


class Guard:
    """Refuses requests from other pages, and adds security headers.

    A foreign page may point its domain name to this machine (DNS rebinding), or connect from its own address. Such
    requests have another ``Host`` or another ``Origin``.

    Args:
        app: The application behind it.
        port: The port that the server listens on.
    """

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        self._hosts |= {name.removesuffix(":80") for name in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        hosts, origins = ([v.decode("latin-1") for k, v in scope["headers"] if k == n] for n in (b"host", b"origin"))
        own = len(hosts) == 1 and hosts[0] in self._hosts
        needed = scope["type"] == "websocket"  # browsers always send an Origin there
        welcome = own and (origins == [f"http://{hosts[0]}"] or (not origins and not needed))
        if welcome:
            await self._app(scope, receive, self._with_headers(send, hosts[0]))
        elif scope["type"] == "http":
            await Response("This server only answers its own page.\n", 403)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    @staticmethod
    def _with_headers(send: Send, host: str) -> Send:
        policy = (
            f"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
            f"connect-src 'self' ws://{host}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        headers = {
            "content-security-policy": policy,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cross-origin-opener-policy": "same-origin",
            "cross-origin-resource-policy": "same-origin",
            "cache-control": "no-store",
        }
        added = [(name.encode(), value.encode()) for name, value in headers.items()]

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        return sending


def application(port: int, sessions: Sessions | None = None) -> ASGIApp:
    """Return the application of the server.

    Args:
        port: The port of the server.
        sessions: The sessions; by default, new ones.
    """
    kept = Sessions() if sessions is None else sessions
    rooms = Rooms(kept)

    @asynccontextmanager
    async def living(app: Starlette) -> AsyncIterator[None]:
        tidying = asyncio.create_task(rooms.tidy())
        yield
        tidying.cancel()
        await asyncio.to_thread(kept.close)

    routes = [
        Route("/", lambda request: file("index.html")),
        Route("/page/{name}", lambda request: file(request.path_params["name"])),
        WebSocketRoute("/live", rooms.serve),
    ]
    return Guard(Starlette(routes=routes, lifespan=living), port)


def file(name: str) -> Response:
    """Return one of the page's files."""
    if name not in PAGE:
        return Response("There is no such file.\n", 404, media_type="text/plain")
    content, kind = PAGE[name]
    return Response(content, media_type=kind)


class Rooms:
    """Pages and their sessions.

    Args:
        sessions: The sessions. A lock lets one page at a time open or leave a session.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions, self._lock = sessions, asyncio.Lock()
        self._watching: dict[str, WebSocket] = {}

    async def tidy(self) -> None:
        """Close abandoned sessions from time to time."""
        while True:
            await asyncio.sleep(TIDY)
            async with self._lock:
                await asyncio.to_thread(self._sessions.tidy)

    async def serve(self, socket: WebSocket) -> None:
        """Serve a page until it leaves."""
        await socket.accept()
        with suppress(WebSocketDisconnect):
            session = await self._enter(socket)
            if session is not None:
                try:
                    await Talk(socket, session).run()
                finally:
                    await self._leave(socket, session)

    async def _enter(self, socket: WebSocket) -> Session | None:
        """Return the session that a page asks for, or a new one; ``None`` if it is refused."""
        try:
            asked = await hear(socket)
            async with self._lock:
                session = self._sessions.find(asked.get("session"))
                resumed = session is not None
                if session is None:
                    settings = Settings.of(asked.get("settings", {}))
                    session = await asyncio.to_thread(self._sessions.open, settings, asked.get("points"))
                before, self._watching[session.key] = self._watching.get(session.key), socket
        except (ValueError, TypeError, TooManyError) as error:
            await say(socket, type="refused", text=str(error))
            await socket.close(FULL if isinstance(error, TooManyError) else 1008)
            return None
        if before is not None:
            await before.close(TAKEN_OVER)
        await say(socket, type="opened", session=session.key, resumed=resumed, settings=vars(session.settings))
        return session

    async def _leave(self, socket: WebSocket, session: Session) -> None:
        async with self._lock:
            if self._watching.get(session.key) is socket:  # no other page has taken it over
                del self._watching[session.key]
                self._sessions.leave(session)


class Talk:
    """The connection of a page to its session: receives commands, sends pictures.

    It sends a picture only when the page has drawn the previous one, so that pictures do not queue up.

    Args:
        socket: The connection.
        session: The session.
    """

    def __init__(self, socket: WebSocket, session: Session) -> None:
        self._socket, self._session = socket, session
        self._fresh, self._drawn = asyncio.Event(), asyncio.Event()
        self._drawn.set()

    async def run(self) -> None:
        """Serve the connection until the page leaves."""
        loop = asyncio.get_running_loop()

        def tell() -> None:
            loop.call_soon_threadsafe(self._fresh.set)

        self._session.watch(tell)
        sending = asyncio.create_task(self._send())
        try:
            while True:
                await self._obey(await hear(self._socket))
        except (ValueError, TypeError) as error:
            await say(self._socket, type="refused", text=str(error))
            await self._socket.close(1008)
        finally:
            sending.cancel()

    async def _send(self) -> None:
        """Send pictures and errors."""
        with suppress(WebSocketDisconnect, RuntimeError):  # the page has left; the other task handles it
            while True:
                await self._fresh.wait()
                await self._drawn.wait()
                self._fresh.clear()
                if self._session.trouble:
                    await say(self._socket, type="trouble", text=self._session.trouble)
                else:
                    self._drawn.clear()
                    await self._socket.send_bytes(self._session.newest)

    async def _obey(self, message: dict[str, Any]) -> None:
        """Carry out a command."""
        session, command = self._session, message.get("type")
        if command == "drawn":
            self._drawn.set()
        elif command == "change":
            try:
                settings = Settings.of(message.get("settings"))
                await asyncio.to_thread(session.change, settings, message.get("points"))
            except (ValueError, TypeError) as error:  # invalid user input: the session stays as it was
                await say(self._socket, type="unfit", text=str(error))
        else:
            commands: dict[Any, Callable[[], None]] = {
                "play": session.play,
                "pause": session.pause,
                "step": session.step,
                "reset": session.reset,
            }
            if not isinstance(command, str) or command not in commands:
                raise ValueError(f"type: takes one of {', '.join(commands)}, change or drawn, got {command!r}")
            await asyncio.to_thread(commands[command])


async def hear(socket: WebSocket) -> dict[str, Any]:
    """Return the next message of a page; raises ``ValueError`` if it is invalid."""
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message["code"])
    text = message.get("text")
    if text is None or len(text) > LONGEST:
        raise ValueError(f"message: takes a text of at most {LONGEST:,} characters")
    try:
        found = json.loads(text)
    except RecursionError:
        found = None
    if not isinstance(found, dict):
        raise ValueError("message: takes an object")
    return found


async def say(socket: WebSocket, **message: Any) -> None:
    """Send a text message to a page, if it is still connected."""
    if socket.application_state is WebSocketState.CONNECTED:
        await socket.send_text(json.dumps(message))
