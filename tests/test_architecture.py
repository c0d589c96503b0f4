import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "anode"
PACKAGE = "__init__"
"""The room of what `import anode` gives, which passes on names of the rooms above it."""


def documented() -> list[str]:
    """The rooms of docs/architecture.md, from the top."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    return re.findall(r"^  (\w+)(?:/|\.py)(?:\s|$)", text, re.MULTILINE)


def rooms() -> list[str]:
    """All rooms: the documented ones, and the two modules that have their place between them."""
    found = documented()
    found.insert(found.index("estimators") + 1, PACKAGE)
    return [*found, "__main__"]


def names_in(source: str) -> Iterator[str]:
    """The dotted names that a module imports, wherever in it, and those that it takes from `anode` itself."""
    nodes = list(ast.walk(ast.parse(source)))
    imported = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    is_package = any(alias.name.split(".")[0] == "anode" for alias in imported)  # and not a variable of that name
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"a relative import does not say which room it uses: {ast.unparse(node)}"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif is_package and isinstance(node, ast.Attribute) and ast.unparse(node.value) == "anode":
            yield f"anode.{node.attr}"
    for alias in imported:
        if alias.name != "anode":  # of which only what is taken from it counts
            yield alias.name
        elif alias.asname:
            yield "anode.all"  # what is taken from it is not seen under another name


def room_of(name: str) -> str | None:
    """The room of a dotted name, if it has one; the version belongs to none."""
    package, first = f"{name}.".split(".")[:2]
    if package != "anode" or first == "__version__":
        return None
    return first if first in documented() else PACKAGE


def reaching_down(room: str, source: str) -> list[str]:
    """The rooms below its own that a module uses."""
    order = rooms()
    used = {other for name in names_in(source) if (other := room_of(name))}
    return sorted(other for other in used if order.index(other) > order.index(room))


def test_the_rooms_that_are_documented_are_those_that_there_are():
    there = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert there == set(rooms())


def test_each_room_uses_only_those_above_it():
    found = {}
    for path in SOURCE.rglob("*.py"):
        inside = path.relative_to(SOURCE)
        found[str(inside)] = reaching_down(inside.parts[0].removesuffix(".py"), path.read_text())
    assert {path: below for path, below in found.items() if below} == {}


def test_figures_and_claims_do_not_know_each_other():
    experiments = {path: set(names_in(path.read_text())) for path in (SOURCE / "experiments").rglob("*.py")}
    knowing = {path for path, names in experiments.items() if any(".claims." in name for name in names)}
    assert {path for path in knowing if path.parent.name != "claims"} == {SOURCE / "experiments" / "halves.py"}


@pytest.mark.parametrize(
    ("room", "source", "below"),
    [
        ("ode", "import anode.models.flow", ["models"]),
        ("ode", "from anode.models.flow import Flow", ["models"]),
        ("ode", "from anode import models", ["models"]),
        ("ode", "def late():\n    from anode.train import fit", ["train"]),
        ("train", "import anode\nanode.fit()", [PACKAGE]),
        ("train", "from anode import NeuralODE", [PACKAGE]),
        ("train", "import anode.ode\nanode.cli.run()", ["cli"]),
        ("train", "import anode as package", [PACKAGE]),
        ("models", "from anode.data.toy import load", ["data"]),
        ("experiments", "import anode.bench.speed, anode.ode.solve", ["bench"]),
        ("train", "import anode\nanode.__version__", []),
        ("train", "from anode import __version__", []),
        ("models", "from anode.interface.solve import solve\nfrom anode.models.flow import Flow", []),
        ("ode", "import torch\nanode = 1\nanode.real", []),
        ("cli", "import anode\nfrom anode.bench import speed\nanode.fit()", []),
    ],
)
def test_a_room_that_uses_one_below_it_is_found(room, source, below):
    assert reaching_down(room, source) == below
