"""``anode play``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from anode.cli.console import friendly, out


def play(
    port: Annotated[int, typer.Option(help="Port to serve the page on; 0 picks a free one.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Watch a NODE fail and an ANODE succeed, live in your browser.

    Serves a page that only this machine can reach. Both models train as you watch: on a disc in a ring, moons, spirals,
    a checkerboard, or points that you paint or load from a CSV file. Press Ctrl-C to stop.

    **Example**

    - `anode play --port 8000 --no-browser`, then open http://127.0.0.1:8000/
    """
    with friendly("stopped"):
        from anode.play import server

        with server.listen(port) as listening:
            out.print(Text(f"anode play: {server.address(listening)}   (press Ctrl-C to stop)"), soft_wrap=True)
            server.play(listening, browser)
    out.print("stopped")
