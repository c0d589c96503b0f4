"""Command-line options made from dataclass fields and from the settings of a solver."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from anode.models.flow import PAPER
from anode.ode.solver import SETTINGS, Solver
from anode.ode.tableaus import TABLEAUS

Command = TypeVar("Command", bound=Callable[..., Any])


def with_options(added: Sequence[inspect.Parameter]) -> Callable[[Command], Command]:
    """Return a decorator that replaces the ``**options`` of a command by real options."""

    def add(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        command.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        command.__annotations__ |= {p.name: p.annotation for p in added}
        return command

    return add


def field_options(kind: type[Any]) -> list[inspect.Parameter]:
    """Return an option for each dataclass field that has a help text."""
    types = get_type_hints(kind)
    return [
        _option(each.name, types[each.name], each.default, **each.metadata)
        for each in fields(kind)
        if "help" in each.metadata
    ]


def solver_options() -> list[inspect.Parameter]:
    """Return an option for each setting of a solver."""
    usual = {name: getattr(PAPER, name) for name in SETTINGS}
    kinds: dict[str, Any] = {name: float | None if value is None else type(value) for name, value in usual.items()}
    return [
        _option(name, kinds[name], usual[name], help=summary, rich_help_panel="The ODE solver")
        for name, summary in summaries().items()
    ]


def _option(name: str, kind: Any, default: Any, **described: Any) -> inspect.Parameter:
    annotation = Annotated[kind, typer.Option(**described)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def summaries() -> dict[str, str]:
    """Return the help text of each setting: its first sentence in the docstring of :class:`anode.Solver`."""
    text = inspect.getdoc(Solver) or ""
    found: dict[str, str] = {}
    for names, about in re.findall(r"^    ([a-z_, ]+): (.*(?:\n        .*)*)", text, flags=re.MULTILINE):
        sentence = re.split(r"(?<=[.])\s", re.sub(r"\s+", " ", about))[0]
        # Objects can only be passed in Python; a shell takes names.
        named = re.split(
            r",? (?:or )?an :class:|; or ", sentence.replace("one of ``anode.METHODS``", ", ".join(TABLEAUS))
        )
        found |= dict.fromkeys(names.split(", "), named[0].replace("`", "").rstrip(".,") + ".")
    return {name: found[name] for name in SETTINGS}
