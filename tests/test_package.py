"""What `import anode` gives."""

import subprocess
import sys
from pathlib import Path

import pytest

import anode

SLOW = ("matplotlib", "pandas", "sklearn", "torch._dynamo")

IMPORTS = f"""
import sys, anode, torch
for use in (
    lambda: None,
    lambda: anode.fit(anode.NeuralODE(2, 1), (torch.rand(9, 2), torch.rand(9, 1)), epochs=1, progress=False),
    lambda: anode.plots.flow_2d,
):
    use()
    print([name for name in {SLOW} if name in sys.modules])
"""


def test_importing_anode_and_training_import_nothing_that_few_need_and_plots_on_first_use():
    printed = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=300, check=True)
    assert printed.stdout.splitlines() == ["[]", "[]", "['matplotlib']"]


@pytest.mark.parametrize("module", [anode, anode.plots], ids=["anode", "anode.plots"])
def test_every_public_name_is_there(module):
    assert set(module.__all__) <= set(dir(module))
    assert all(getattr(module, name) is not None for name in module.__all__)


def test_the_documentation_names_everything_that_draws():
    text = (Path(__file__).parents[1] / "docs" / "plots.md").read_text()
    assert [name for name in anode.plots.__all__ if f"`{name}`" not in text and f"plots.{name}" not in text] == []


def test_the_citation_names_the_version():
    citation = (Path(__file__).parents[1] / "CITATION.cff").read_text()
    assert f"\nversion: {anode.__version__}\n" in citation


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match="module 'anode' has no attribute 'plot'"):
        anode.plot  # noqa: B018
