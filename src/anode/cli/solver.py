"""Options of a command from where they are described: fields of a dataclass, settings of a solver."""

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
    """Return a decorator that gives a command options in the place of its ``**options``."""

    def add(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        command.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        command.__annotations__ |= {p.name: p.annotation for p in added}
        return command

    return add


def field_options(kind: type[Any]) -> list[inspect.Parameter]:
    """The fields of a dataclass that have a help as options."""
    types = get_type_hints(kind)
    return [
        _option(each.name, types[each.name], each.default, **each.metadata)
        for each in fields(kind)
        if "help" in each.metadata
    ]


def solver_options() -> list[inspect.Parameter]:
    """All settings of a solver as options."""
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
    """What each setting is: the first sentence about it in the docstring of :class:`anode.Solver`."""
    text = (inspect.getdoc(Solver) or "").replace("one of ``anode.METHODS``", ", ".join(TABLEAUS))
    found: dict[str, str] = {}
    for names, about in re.findall(r"^    ([a-z_, ]+): (.*(?:\n        .*)*)", text, flags=re.MULTILINE):
        sentence = re.split(r"(?<=[.])\s", re.sub(r"\s+", " ", about))[0]
        # Objects can only be passed in Python; a shell has names.
        named = re.split(
            r",? (?:or )?an :class:|; or ", sentence.replace("one of ``anode.METHODS``", ", ".join(TABLEAUS))
        )
        found |= dict.fromkeys(names.split(", "), named[0].replace("`", "").rstrip(".,") + ".")
    return {name: found[name] for name in SETTINGS}
