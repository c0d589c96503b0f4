"""Before anything is tested."""

import importlib.util
import os
import sys
from pathlib import Path

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
