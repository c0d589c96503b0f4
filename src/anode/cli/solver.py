"""The settings of a solver as options of a command."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from anode.models.flow import PAPER
from anode.ode.solver import SETTINGS, Solver
from anode.ode.tableaus import TABLEAUS

Command = TypeVar("Command", bound=Callable[..., Any])


def with_solver_options(command: Command) -> Command:
    """Give a command an option for every setting of a solver, in the place of its ``**solver``."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    added = [_option(name, summary) for name, summary in summaries().items()]
    command.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    command.__annotations__ |= {p.name: p.annotation for p in added}
    return command


def _option(name: str, summary: str) -> inspect.Parameter:
    default = getattr(PAPER, name)
    kind: Any = float | None if default is None else type(default)
    annotation = Annotated[kind, typer.Option(help=summary, rich_help_panel="The ODE solver")]
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
