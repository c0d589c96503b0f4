"""The pages of docs/: every public name is there, and links lead somewhere, on GitHub and on the site."""

import importlib.util
import inspect
import re
from pathlib import Path

import pytest

import anode
from anode import datasets, images, plots

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))


def load(name):
    """A module of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def public():
    """Every public name, as it is written."""
    modules = {"datasets", "family", "images", "plots"}
    own = [name for name in dir(datasets) if inspect.getmodule(getattr(datasets, name)) is datasets and name[0] != "_"]
    yield from (f"anode.{name}" for name in dir(anode) if name not in {*modules, "__version__"})
    yield from (f"anode.datasets.{name}" for name in own)
    yield "anode.family.build"
    yield from (f"anode.images.{name}" for name in images.__all__)
    yield from (f"anode.plots.{name}" for name in plots.__all__)


def found(name):
    """The object of a dotted name that begins with anode."""
    thing = anode
    for part in name.split(".")[1:]:
        thing = getattr(thing, part)
    return thing


@pytest.mark.parametrize("name", list(public()))
def test_a_public_name_has_one_entry_and_an_example(name):
    text = "".join(page.read_text() for page in REFERENCE)
    assert len(re.findall(rf"^::: {re.escape(name)}$", text, re.MULTILINE)) == 1
    code = "".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    docstring = inspect.getdoc(found(name)) or ""
    short = name.rsplit(".", 1)[1]
    assert ">>> " in docstring or re.search(rf"\b(anode|plots|datasets|images)\.{short}\b", code)


@pytest.mark.parametrize("name", [name for name in public() if callable(found(name)) and name != "anode.Status"])
def test_every_argument_is_described(name):
    described = inspect.getdoc(found(name)) + (inspect.getdoc(anode.Solver) if name == "anode.solve" else "")
    given = set(inspect.signature(found(name)).parameters) - {"args", "kwargs"}
    assert [each for each in given if not re.search(rf"\b{each}\b", described)] == []


def test_every_entry_of_the_reference_exists():
    for page in REFERENCE:
        for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE):
            module, _, leaf = name.rpartition(".")
            home = found(module) if hasattr(anode, name.split(".")[1]) else importlib.import_module(module)
            assert hasattr(home, leaf), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for path, anchor in re.findall(r"\]\(([^)#\s:]*)(?:#([^)\s]*))?\)", text):
        target = page.parent / path if path else page
        assert target.exists(), path
        headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}


@pytest.mark.parametrize(
    ("link", "page", "on_the_site"),
    [
        ("[a](solver.md#gradients)", "models.md", "[a](solver.md#gradients)"),
        ("[a](../models.md)", "reference/models.md", "[a](../models.md)"),
        ("![a](../results/search/search-d2.png)", "search.md", "![a](results/search/search-d2.png)"),
        ("[a](../../CHANGELOG.md)", "reference/models.md", "[a](../changelog.md)"),
        ("[a](docs/architecture.md)", "contributing.md", "[a](architecture.md)"),
        ("[the toy half](../results/toy)", "reproduce.md", "the toy half"),
        ("models[0](x)", "models.md", "models[0](x)"),
        ("[a](https://arxiv.org/abs/1904.01681)", "models.md", "[a](https://arxiv.org/abs/1904.01681)"),
    ],
)
def test_a_link_of_the_repository_is_moved_to_the_site(link, page, on_the_site):
    hooks = load("hooks")
    assert hooks.LINK.sub(lambda each: hooks.moved(each, page), link) == on_the_site


def test_a_tutorial_becomes_a_page_with_its_outputs_and_a_notebook():
    source = "# %% [markdown]\n# # Title\n#\n# Text.\n\n# %%\n1 + 1\n"
    made = load("hooks").executed(source, "one")
    assert set(made) == {"one.md", "one.ipynb"}
    assert made["one.md"].startswith("# Title\n\n[Download this page as a notebook](one.ipynb)\n")
    assert "\n    2\n" in made["one.md"]


def test_a_tutorial_that_fails_fails_the_build():
    with pytest.raises(Exception, match="ZeroDivisionError"):
        load("hooks").executed("# %% [markdown]\n# # Title\n\n# %%\n1 / 0\n", "one")


def test_roles_of_docstrings_become_links():
    roles = load("roles")
    link = '<autoref optional identifier="anode.Solution.check"><code>Solution.check</code></autoref>'
    assert roles.ROLE.sub(roles._link, ":meth:`Solution.check`") == link
