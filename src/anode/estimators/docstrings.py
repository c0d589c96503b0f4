"""Docstrings of classes that share parameters, each of which is described once."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

K = TypeVar("K", bound=type[Any])
SECTION = re.compile(r"^(Args|Attributes|Example):\n", re.MULTILINE)
MERGED = ("Args", "Attributes")


def documented(base: type[Any]) -> Callable[[K], K]:
    """Return a decorator that adds to a class's docstring what that of its base class says.

    Parameters and attributes of the base follow those of the class, and the base's text, without its first paragraph,
    follows that of the class.
    """
    first, inherited = _sections(base)
    shared = first.partition("\n\n")[2]

    def add(kind: K) -> K:
        text, own = _sections(kind)
        merged = {name: (own[name].rstrip() + "\n" + inherited[name].rstrip()).strip("\n") for name in MERGED}
        sections = "\n\n".join(f"{name}:\n{content}" for name, content in (own | merged).items())
        kind.__doc__ = text + shared + sections
        return kind

    return add


def _sections(kind: type[Any]) -> tuple[str, dict[str, str]]:
    """The text of a docstring before its sections, and that of each section; empty where there is none."""
    text, *rest = SECTION.split(inspect.cleandoc(kind.__doc__ or ""))
    return text, dict.fromkeys(MERGED, "") | dict(zip(rest[::2], rest[1::2], strict=True))
