"""Installs the packages of ``python -m build`` into new environments and tests them; ``make package`` runs this.

The wheel has a compiled engine. The source distribution is installed without a compiler, so it uses the Python core.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]

SMOKE = """
import sys, torch, anode

field = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
y0 = torch.randn(5, 2, requires_grad=True)
solution = anode.solve(lambda t, y: field(y), y0, (0.0, 1.0))
solution.y1.sum().backward()
assert y0.grad is not None and y0.grad.isfinite().all()
assert solution.engine.name == sys.argv[1], solution.engine
model = anode.NeuralODE(2, 1, augment=1)
history = anode.fit(model, anode.datasets.load("moons"), epochs=3)
assert history.loss[-1] < history.loss[0]
anode.save(model, "model")
assert torch.equal(anode.load("model")(y0), model(y0))
try:
    anode.ANODEClassifier
except ImportError as error:
    assert 'pip install "anode[sklearn]"' in str(error), error
else:
    raise AssertionError("scikit-learn is installed, but should not be")
print(f"anode {anode.__version__}: works, engine {solution.engine.name}")
"""


def check(file: Path, engine: str, **environment: str) -> None:
    """Install a file into a new environment and test it there."""
    print(f"{file.name}, expecting the engine {engine!r}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        pip = [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]
        subprocess.run([*pip, "torch"], check=True)
        subprocess.run([*pip, "--no-cache-dir", file], check=True, env={**os.environ, **environment})
        subprocess.run([python, "-c", SMOKE, engine], check=True, cwd=folder)


def main() -> None:
    """Check the newest wheel and source distribution in a folder."""
    folder = Path(sys.argv[1])
    wheel, source = (max(folder.glob(kind), key=os.path.getmtime) for kind in ("*.whl", "*.tar.gz"))
    check(wheel, "native")
    check(source, "torch", CC="/bin/false", CXX="/bin/false")


if __name__ == "__main__":
    main()
