"""These are tests of the loop in Python, to which functions would else not come that the compiled engine takes."""

import pytest


@pytest.fixture(autouse=True)
def _python_core(monkeypatch):
    monkeypatch.setenv("ANODE_ENGINE", "torch")
