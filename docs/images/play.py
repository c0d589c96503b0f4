"""Record docs/images/play.gif: a NODE and an ANODE on a disc in a ring, as `anode play` shows them.

Run `python docs/images/play.py` with the extra `dev` and Chromium installed. The script trains single epochs, so the
pictures do not depend on the speed of the machine.
"""

from __future__ import annotations

import io
import shutil
import threading
from pathlib import Path
from typing import Any

from PIL import Image

TARGET = Path(__file__).with_name("play.gif")
WIDTH, HEIGHT = 760, 860
EPOCHS = [0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 6]
"""Epochs before each picture of training. The pictures of the flow follow."""
FLOW = 15
"""Number of pictures of the flow, in which time runs from 0 to 1."""
MILLISECONDS, REST = 130, 1800
"""Duration of each picture, and of the last one."""
COLOURS = 88
KEY = ["#e08e0b", "#0a9a8b", "#a86500", "#08786c", "#2f6db5", "#d9482f"]
"""Colours of few pixels that the palette has to include."""
STYLE = """
.controls, .tools, .view figcaption, .zoom, .certified, .numbers > :last-child { display: none !important; }
main { grid-template-columns: 1fr; padding: 0.6rem; }
header { grid-template-columns: auto 1fr; padding: 0.5rem 0.9rem; }
#verdict { grid-column: auto; grid-row: auto; text-align: right; }
.stage { gap: 0.6rem; }
.model, .chart { padding: 0.6rem; }
.numbers { grid-template-columns: repeat(3, auto); margin: 0.25rem 0 0.4rem; }
.chart canvas { aspect-ratio: 3.2 / 1; }
"""


def record(page: Any) -> list[Image.Image]:
    """Return all pictures in order."""

    def wait(iterations: int) -> None:
        while int(page.get_attribute("#model1", "data-iterations") or -1) < iterations:
            page.wait_for_timeout(20)

    def shot(t: float) -> Image.Image:
        page.locator("#t").evaluate("(e, t) => { e.value = t; e.dispatchEvent(new Event('input')); }", t)
        page.wait_for_timeout(400)  # until the view has followed
        return Image.open(io.BytesIO(page.screenshot())).convert("RGB")

    wait(0)
    shots, done, epoch = [], 0, 23  # 1,440 points in batches of 64
    for epochs in EPOCHS:
        for _ in range(epochs):
            page.keyboard.press("s")
            done += epoch
            wait(done)
        page.wait_for_timeout(1100 if epochs else 0)  # the sentence changes once a second
        shots.append(shot(1.0))
    shots += [shot(k / (FLOW - 1)) for k in range(FLOW)]
    return shots


def palette_of(shots: list[Image.Image]) -> Image.Image:
    """Return one palette for all pictures, so that colours do not flicker."""
    sheet = Image.new("RGB", (WIDTH, HEIGHT * len(shots) + 40 * len(KEY)))
    for i, each in enumerate(shots):
        sheet.paste(each, (0, HEIGHT * i))
    for i, colour in enumerate(KEY):
        sheet.paste(colour, (0, HEIGHT * len(shots) + 40 * i, WIDTH, HEIGHT * len(shots) + 40 * (i + 1)))
    return sheet.quantize(COLOURS, method=Image.Quantize.MEDIANCUT)


def main() -> None:
    """Record the pictures and write the file."""
    from playwright.sync_api import sync_playwright  # imported here, because it is optional

    from anode.play.server import address, listen, serve

    with listen(0) as listening:
        server = serve(listening)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, bypass_csp=True)
            page = context.new_page()
            page.goto(address(listening))
            page.add_style_tag(content=STYLE)
            shots = record(page)
            browser.close()
        server.should_exit = True
        thread.join()
    palette = palette_of([shots[0], shots[len(EPOCHS) // 2], shots[-1]])
    frames = [each.quantize(palette=palette, dither=Image.Dither.NONE) for each in shots]
    durations = [MILLISECONDS] * (len(frames) - 1) + [REST]
    frames[0].save(TARGET, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True)
    print(f"{TARGET}: {len(frames)} pictures, {TARGET.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
