"""Adapt docstrings to the site: turn roles, such as ``:class:`anode.Solver```, into links, and examples into code."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

from griffe import Extension, Object

ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):`~?([\w.]+)`")
EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)  # the parser only knows the plural
ASSEMBLED = ("ANODEClassifier", "ANODEDensity", "ANODERegressor")
"""Classes whose docstrings are assembled on import."""


class Roles(Extension):
    """Rewrite every docstring before it is rendered."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of one object, if it has one."""
        if obj.docstring:
            text = obj.docstring.value
            if obj.name in ASSEMBLED:
                text = inspect.getdoc(getattr(import_module(obj.module.path), obj.name)) or ""
            obj.docstring.value = EXAMPLE.sub(r"\1Examples:", ROLE.sub(_link, text))


def _link(role: re.Match[str]) -> str:
    """Return a link to a public name. Names without a page stay text."""
    name = role[1] if role[1].startswith("anode") else f"anode.{role[1]}"
    return f'<autoref optional identifier="{name}"><code>{role[1]}</code></autoref>'
