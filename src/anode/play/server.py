"""Starts and stops the web server."""

from __future__ import annotations

import errno
import os
import socket
import threading
import webbrowser
from contextlib import closing, suppress

import torch
import uvicorn

from anode.play.app import LONGEST, application
from anode.play.sessions import Sessions

LOOPBACK = "127.0.0.1"
"""The only address that the server listens on, so that other machines cannot reach it."""


def listen(port: int) -> socket.socket:
    """Return a socket that listens on a loopback port; port 0 picks a free one."""
    if not 0 <= port <= 65535:
        raise ValueError(f"port: takes a number from 0 to 65535, got {port}")
    listening = socket.socket()
    if os.name == "posix":  # elsewhere it would share the port with another program
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((LOOPBACK, port))
        listening.listen()
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            hint = "choose another, or 0 to pick a free one"
            raise ValueError(f"port: {port} is used by another program; {hint}") from None
        if error.errno == errno.EACCES:
            raise ValueError(f"port: {port} needs special permissions; choose one above 1023") from None
        raise
    return listening


def serve(listening: socket.socket, sessions: Sessions | None = None) -> uvicorn.Server:
    """Return a server for a listening socket. Call its ``run`` with ``sockets=[listening]``."""
    port = listening.getsockname()[1]
    config = uvicorn.Config(
        application(port, sessions),
        ws="wsproto",
        ws_max_size=LONGEST,
        ws_per_message_deflate=False,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=64,
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(config)


def play(listening: socket.socket, browser: bool) -> None:
    """Serve the page until Ctrl-C.

    Args:
        listening: The socket; it is closed at the end.
        browser: Whether to open the page in a browser.
    """
    torch.set_num_threads(1)  # both models train at once, and batches are too small for more threads
    if browser:
        threading.Thread(target=webbrowser.open, args=(address(listening),), daemon=True).start()
    with (
        listening,
        closing(Sessions()) as sessions,  # also after a second Ctrl-C, when the server does not wait for them
        suppress(KeyboardInterrupt),  # uvicorn raises it again after it has stopped
    ):
        serve(listening, sessions).run(sockets=[listening])


def address(listening: socket.socket) -> str:
    """Return the address of the page."""
    return f"http://{LOOPBACK}:{listening.getsockname()[1]}/"
