"""Hooks of MkDocs for `make docs`: run the tutorials, and follow links that lead out of docs/.

Pages use relative links that work on GitHub. The hooks copy linked files of the repository into the site. A linked
folder has no page, so its link becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import jupytext
import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbclient import NotebookClient
from nbconvert import MarkdownExporter
from traitlets.config import Config

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?P<text>!?\[[^\]]*\])\((?P<path>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)")
TOP = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Files of the repository that are pages of the site."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/, the executed tutorials, and all linked files."""
    for name, uri in TOP.items():
        files.append(File.generated(config, uri, content=(ROOT / name).read_text()))
    for source in sorted((ROOT / "docs" / "tutorials").glob("*.py")):
        for name, content in executed(source.read_text(), source.stem).items():
            files.append(File.generated(config, f"tutorials/{name}", content=content))
    for target in {target for page in files.documentation_pages() for target in outside(page)}:
        files.append(File.generated(config, target, abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace links within the repository by links within the site."""
    return LINK.sub(lambda link: moved(link, page.file.src_uri), markdown)


@cache  # so that `mkdocs serve` only executes tutorials that changed
def executed(source: str, name: str) -> dict[str, str | bytes]:
    """Run a tutorial, and return its page, its figures and its notebook by file name."""
    notebook = jupytext.reads(source, fmt="py:percent")
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    with TemporaryDirectory() as folder:
        without_ports = Config({"KernelManager": {"transport": "ipc", "ip": f"{folder}/kernel"}})
        NotebookClient(notebook, timeout=600, coalesce_streams=True, config=without_ports).execute()
    body, resources = MarkdownExporter().from_notebook_node(notebook, {"output_files_dir": f"{name}_files"})
    heading, rest = re.sub(r"\n{4,}", "\n\n", body.strip()).split("\n", 1)
    page = f"{heading}\n\n[Download this page as a notebook]({name}.ipynb)\n{rest}\n"
    return {f"{name}.md": page, f"{name}.ipynb": nbformat.writes(notebook), **resources["outputs"]}


def outside(page: File) -> Iterator[str]:
    """Yield the linked files of a page that are outside docs/, as paths from the root of the repository."""
    for link in LINK.finditer(page.content_string):
        target = in_repository(link["path"], page.src_uri)
        if target not in TOP and not target.startswith("docs/") and (ROOT / target).is_file():
            yield target


def in_repository(path: str, uri: str) -> str:
    """Return the target of a link as a path from the root of the repository."""
    folder = "" if uri in TOP.values() else posixpath.dirname(f"docs/{uri}")
    return posixpath.normpath(posixpath.join(folder, path))


def moved(link: re.Match[str], uri: str) -> str:
    """Return a link of a page in its form for the site."""
    target = in_repository(link["path"], uri)
    if not (ROOT / target).exists():  # generated, or a wrong link that a strict build reports
        return link[0]
    if (ROOT / target).is_dir():
        return link["text"].strip("[]")
    place = TOP.get(target, target.removeprefix("docs/"))
    return f"{link['text']}({posixpath.relpath(place, posixpath.dirname(uri))}{link['anchor'] or ''})"
