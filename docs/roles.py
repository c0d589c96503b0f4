"""Adapt docstrings to the site: roles, such as ``:class:`anode.Solver```, become links, and examples become code."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

from griffe import Extension, Object

ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):`~?([\w.]+)`")
EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)  # the parser knows the plural only
ASSEMBLED = ("ANODEClassifier", "ANODEDensity", "ANODERegressor")
"""Classes whose docstring is put together when they are imported."""


class Roles(Extension):
    """Rewrites every docstring before it is rendered."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of one object, if it has one."""
        if obj.docstring:
            text = obj.docstring.value
            if obj.name in ASSEMBLED:
                text = inspect.getdoc(getattr(import_module(obj.module.path), obj.name)) or ""
            obj.docstring.value = EXAMPLE.sub(r"\1Examples:", ROLE.sub(_link, text))


def _link(role: re.Match[str]) -> str:
    """A link to a public name; names without a page stay text."""
    name = role[1] if role[1].startswith("anode") else f"anode.{role[1]}"
    return f'<autoref optional identifier="{name}"><code>{role[1]}</code></autoref>'
