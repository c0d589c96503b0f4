"""The extension module of the compiled engine."""

from __future__ import annotations

import importlib
from typing import Any

try:
    extension: Any = importlib.import_module("anode._native")
    """The module, or ``None`` if it was not built when anode was installed."""
except ImportError:
    extension = None
