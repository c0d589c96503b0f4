"""``anode play``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from anode.cli.console import friendly, out


def play(
    port: Annotated[int, typer.Option(help="The port that the page is served on; 0 for any that is free.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Watch a NODE fail and an ANODE succeed, live in the browser.

    Serves a page on this machine alone, on which both are trained as you watch: on a disc in a ring, moons, spirals, a
    checkerboard, or points that you paint. Ctrl-C ends it.

    **Example**

    - `anode play --port 8000 --no-browser` and then open http://127.0.0.1:8000/
    """
    with friendly("stopped"):
        from anode.play import server

        with server.listen(port) as listening:
            out.print(Text(f"anode play: {server.address(listening)}   (Ctrl-C ends it)"), soft_wrap=True)
            server.play(listening, browser)
    out.print("stopped")
