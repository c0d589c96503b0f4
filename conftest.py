"""Before anything is tested."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

collect_ignore_glob = [
    "docs/*.py",
    "docs/tutorials/*.py",
    "src/anode/bench/sides/with_*.py",
    "src/anode/bench/sides/fields_in_jax.py",
]  # not all is installed

# Many tests start Python again. Without bytecode on disk, each of these processes would compile the package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

if "ANODE_NATIVE" in os.environ:  # test the compiled engine in this folder, see `make test-native`
    (path,) = Path(os.environ["ANODE_NATIVE"]).glob("_native*.so")
    spec = importlib.util.spec_from_file_location("anode._native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["anode._native"] = module


@pytest.fixture(autouse=True)
def _as_a_program(doctest_namespace):
    """Let functions of examples be those of a user: the engine does not watch what belongs to anode itself."""
    doctest_namespace["__name__"] = "__main__"
