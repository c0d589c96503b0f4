"""The committed reports as a browser lays them out."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from anode.report.page import page

RESULTS = Path(__file__).parents[1] / "results"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WIDTHS = (360, 800, 1280, 1920)

MEASURE = """
addEventListener("load", () => {
  document.querySelectorAll("details").forEach((details) => { details.open = true; });
  const name = (e) => `${e.tagName} ${e.className} ${e.textContent.slice(0, 40)}`;
  const seen = [...document.body.querySelectorAll("*")].filter((e) => e.getClientRects().length);
  const outside = seen.filter((e) => {
    const { left, right } = e.getBoundingClientRect();
    return left < -1 || right > document.documentElement.clientWidth + 1;
  });
  const boxes = seen.filter((e) => e.clientWidth > 1 && !e.querySelector(".wide")); // which leaves its box on purpose
  const cut = boxes.filter((e) => e.scrollWidth > e.clientWidth + 1);
  const button = document.querySelector(".enlarge");
  button.click();
  const large = document.querySelector("dialog img");
  const enlarged = large.getBoundingClientRect().width / button.querySelector("img").getBoundingClientRect().width;
  document.querySelector(".close").click();
  const closed = !document.querySelector("dialog").open;
  parent.postMessage({ outside: outside.map(name), cut: cut.map(name), count: seen.length, enlarged, closed }, "*");
});
"""

COLLECT = """
const found = {};
addEventListener("message", (event) => {
  const frame = [...document.querySelectorAll("iframe")].find((each) => each.contentWindow === event.source);
  found[frame.width] = event.data;
  document.querySelector("pre").textContent = JSON.stringify(found);
});
"""


@pytest.fixture(scope="module", params=["toy", "images"])
def layouts(request, tmp_path_factory):
    """What a browser says about a report at each of the widths."""
    if BROWSER is None:
        pytest.skip("needs Chromium")
    folder = tmp_path_factory.mktemp("report")
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page(RESULTS / request.param))
    (folder / "report.html").write_text(text.replace("</body>", f"<script>{MEASURE}</script></body>"), encoding="utf-8")
    frames = "".join(f'<iframe src="report.html" width="{width}" height="800"></iframe>' for width in WIDTHS)
    (folder / "frames.html").write_text(f"<script>{COLLECT}</script><pre></pre>{frames}", encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=2200,1000", "--virtual-time-budget=20000"]
    command = [BROWSER, *options, f"--user-data-dir={folder / 'profile'}", "--dump-dom", f"file://{folder}/frames.html"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=180)
    found = re.search(r"<pre>(.+?)</pre>", done.stdout, re.DOTALL)
    assert found is not None, done.stderr[-2000:]
    return json.loads(unescape(found[1]))


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_its_box(layouts, width):
    layout = layouts[f"{width}"]
    assert layout["count"] > 500
    assert (layout["outside"], layout["cut"]) == ([], [])


@pytest.mark.parametrize("width", WIDTHS)
def test_a_picture_opens_and_closes_and_is_much_larger_on_a_phone(layouts, width):
    layout = layouts[f"{width}"]
    assert layout["enlarged"] > (2 if width == 360 else 0.99)
    assert layout["closed"]
