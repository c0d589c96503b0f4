"""The search of the site, as a browser runs it on pages that were opened as files."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

ROOT = Path(__file__).parents[1]
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site of two pages, with the settings of the real one."""
    pages, made = tmp_path_factory.mktemp("pages"), tmp_path_factory.mktemp("site")
    (pages / "index.md").write_text("# Start\n\nA disc and a ring.\n")
    (pages / "other.md").write_text("# Other\n\nThe tolerance of a solver.\n")
    for name in ("iframe-worker.js", "site.css"):
        shutil.copy(ROOT / "docs" / name, pages)
    own = {"hooks": [], "nav": None, "plugins": ["search", "offline"], "exclude_docs": "", "not_in_nav": ""}
    build(load_config(str(ROOT / "mkdocs.yml"), docs_dir=str(pages), site_dir=str(made), **own))
    return made


def test_pages_load_nothing_from_elsewhere(site):
    loaded = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="([^"]*)"', (site / "other.html").read_text())
    assert "iframe-worker.js" in loaded
    assert [address for address in loaded if re.match(r"(https?:)?//", address)] == []


@pytest.mark.slow
def test_the_search_finds_a_page_without_a_server(site, tmp_path):
    if BROWSER is None:
        pytest.skip("needs Chromium")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"]
    command = [BROWSER, *options, f"--user-data-dir={tmp_path}", "--dump-dom", f"file://{site}/index.html?q=tolerance"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=180).stdout
    found = re.search(r'class="md-search-result__meta">(.*?)<', shown, re.DOTALL)
    assert found is not None
    assert found[1].strip() == "1 matching document"
    assert "<h1>Other</h1>" in shown
