import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import packages_distributions, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from anode.extras import EXTRAS, MissingPackageError, installed, needs
from helpers.official import write_mnist, write_tiny

BASE = {
    "solve": "solution = anode.solve(lambda t, y: -y, torch.ones(2), (0.0, 1.0)); solution.check()",
    "odeint": "anode.odeint(lambda t, y: -y, torch.ones(2), torch.tensor([0.0, 1.0]))",
    "models": "anode.NeuralODE(2, 1, augment=1)(torch.rand(3, 2)).sum().backward()",
    "fit": "anode.fit(anode.NeuralODE(2, 1), anode.datasets.load('g', dim=2, inner=9, outer=9), epochs=1)",
    "progress": "anode.fit(anode.ResNet(2, 1), (torch.rand(9, 2), torch.rand(9, 1)), epochs=1, progress=True)",
    "ensembles": "anode.seeded(lambda: anode.NeuralODE(2, 1), seeds=range(2))",
    "save and load": "anode.load(anode.save(anode.NeuralODE(2, 1), 'model'))",
    "official files": "assert len(anode.images.load('mnist', root='.')) == 20",
    "data list": "from anode.data.stock import presence; assert presence('cifar10', '.') == 'no'",
    "star import": "from anode import *; assert solve and fit",
}
"""What `pip install anode` is for."""

OPTIONAL = {
    "anode.ANODEClassifier": ("anode.estimators", "scikit-learn", "sklearn"),
    "anode.ANODERegressor": ("anode.estimators", "scikit-learn", "sklearn"),
    "anode.ANODEDensity": ("anode.estimators", "scikit-learn", "sklearn"),
    "anode.TableEncoder": ("anode.estimators", "scikit-learn", "sklearn"),
    "anode.images.load('digits')": ("the dataset digits", "scikit-learn", "sklearn"),
    "anode.plots": ("anode.plots", "matplotlib, pillow", "plots"),
    "import anode.experiments.reproduce": ("anode.experiments", ", ".join(EXTRAS["paper"]), "paper"),
    "import anode.play": ("anode play", ", ".join(EXTRAS["play"]), "play"),
    "from anode.data.stock import fetch; fetch('svhn', '.')": ("downloading train_32x32.mat", "requests", "paper"),
    "anode.images.load('tiny_imagenet', root='.')": ("decoding tiny_imagenet", "pillow, rich", "paper"),
    "from anode.train.progress import Bars; Bars()": ("progress bars", "rich", "paper"),
}
"""What needs an extra: the feature, the packages and the extra that the error has to name."""

# Runs pieces of code, and prints what each raised, in a process in which some modules cannot be imported.
PROGRAM = """
import json, sys
blocked, pieces = json.load(sys.stdin)
sys.modules.update(dict.fromkeys(blocked))
import anode, torch
said = {}
for piece in pieces:
    try:
        said[piece] = exec(piece, {"anode": anode, "torch": torch})
    except Exception as error:
        said[piece] = f"{type(error).__name__}: {error}"
json.dump(said, sys.stdout)
"""


def closure(*names: str) -> set[str]:
    """Distributions, as `anode` or `anode[paper]`, and all that they require."""
    found: set[str] = set()
    waiting = [Requirement(name) for name in names]
    while waiting:
        each = waiting.pop()
        for extra in each.extras or {""}:
            label = canonicalize_name(each.name) + (f"[{extra}]" if extra else "")
            if label not in found:
                found.add(label)
                below = map(Requirement, requires(each.name) or [])
                waiting += [one for one in below if one.marker is None or one.marker.evaluate({"extra": extra})]
    return found


@pytest.fixture(scope="module")
def blocked() -> list[str]:
    """The modules that `pip install anode` does not bring."""
    ours = closure("anode")
    theirs = {module: {canonicalize_name(name) for name in names} for module, names in packages_distributions().items()}
    return [module for module, names in theirs.items() if not names & ours]


@pytest.fixture(scope="module")
def said(blocked, tmp_path_factory) -> Mapping[str, str | None]:
    """What every feature raises without the extras."""
    folder = tmp_path_factory.mktemp("plain")
    write_mnist(folder / "mnist")
    write_tiny(folder / "tiny_imagenet")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps([blocked, [*BASE.values(), *OPTIONAL]]),
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_plain_install_brings_torch_numpy_and_safetensors_and_no_extra(blocked):
    direct = {Requirement(line).name for line in requires("anode") or [] if "extra ==" not in line}
    assert direct == {"torch", "numpy", "safetensors"}
    assert {
        "sklearn",
        "matplotlib",
        "PIL",
        "requests",
        "rich",
        "threadpoolctl",
        "typer",
        "optuna",
        "distributed",
        "starlette",
        "uvicorn",
        "wsproto",
    } <= set(blocked)


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_brings_what_needs_it(extra):
    assert set(EXTRAS[extra]) <= closure(f"anode[{extra}]")


@pytest.mark.parametrize("feature", BASE)
def test_a_base_feature_works_without_the_extras(said, feature):
    assert said[BASE[feature]] is None


@pytest.mark.parametrize("code", OPTIONAL)
def test_an_optional_feature_without_its_extra_is_one_line(said, code):
    feature, packages, extra = OPTIONAL[code]
    line = f'{feature}: needs {packages}; install with: pip install "anode[{extra}]"'
    assert said[code] == f"MissingPackageError: {line}"


def test_the_command_without_its_extra_is_one_line(blocked):
    program = f"import sys; sys.modules.update(dict.fromkeys({blocked})); import anode_command; anode_command.run()"
    done = subprocess.run([sys.executable, "-c", program, "info"], capture_output=True, text=True, check=False)
    packages = ", ".join(EXTRAS["paper"])
    line = f'error: the command anode: needs {packages}; install with: pip install "anode[paper]"\n'
    assert (done.returncode, done.stdout, done.stderr) == (1, "", line)


def test_only_what_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert installed("matplotlib")
    assert not installed("pillow")
    with pytest.raises(ModuleNotFoundError, match=r'^plots: needs pillow; install with: pip install "anode\[plots\]"$'):
        needs("plots", "plots")
    needs("plots", "plots", "matplotlib")


def test_the_error_knows_the_module_that_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingPackageError) as caught:
        needs("estimators", "sklearn")
    assert caught.value.name == "sklearn"


def test_looking_for_a_package_does_not_import_it(tmp_path, monkeypatch):
    (tmp_path / "costly.py").write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(tmp_path)
    needs("plots", "plots", "costly")
    assert "costly" not in sys.modules
