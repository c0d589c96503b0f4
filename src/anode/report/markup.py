"""Builds HTML, and formats the words in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

KINDS = {"fig": "Figure", "table": "Table"}
VOID = {"img"}
FEW, MANY = 3, 5
"""Number of table columns that fit on a phone, and that fit in the width of the text."""


class Markup(str):
    """Text that is already HTML. ``element`` escapes all other text."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: str) -> Markup:
    """Return an HTML element; ``class_`` is the attribute class, ``aria_label`` is aria-label."""
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    content = "".join(child if isinstance(child, Markup) else escape(child) for child in children)
    return Markup(f"<{name}{given}>" if name in VOID else f"<{name}{given}>{content}</{name}>")


def table(name: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Return a table that may be wider than the text.

    On a narrow screen every row becomes a card, and ``data-column`` then names its values. The more columns, the wider
    the screen at which this happens. The roles are explicit, because a table that is laid out as cards loses its own.
    """
    head = element("tr", *(element("th", column, scope="col", role="columnheader") for column in columns), role="row")
    body = [
        element(
            "tr",
            element("th", first, scope="row", role="rowheader"),
            *(
                element("td", value, role="cell", data_column=column)
                for column, value in zip(columns[1:], others, strict=True)
            ),
            role="row",
        )
        for first, *others in rows
    ]
    width = "many" if len(columns) > MANY else "some" if len(columns) > FEW else "few"
    content = element(
        "table",
        element("thead", head, role="rowgroup"),
        element("tbody", *body, role="rowgroup"),
        role="table",
        aria_label=name,
        class_=width,
    )
    return element("div", content, class_="numbers-table wide" if width == "many" else "numbers-table")


def definitions(pairs: Iterable[tuple[str, str]], **attributes: str) -> Markup:
    """Return a list of names and values."""
    return element(
        "dl", *(part for name, value in pairs for part in (element("dt", name), element("dd", value))), **attributes
    )


def data_block(content: Any) -> Markup:
    """Return JSON for a script to read; nothing in it can end the block."""
    text = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    return Markup(f'<script type="application/json">{text}</script>')


def label(study: str) -> str:
    """Return the paper's name of a study.

    Example:
        >>> label("fig07"), label("table1"), label("ablation")
        ('Figure 7', 'Table 1', 'ablation')
    """
    parts = re.fullmatch(r"(fig|table)0*(\d+.*)", study)
    return f"{KINDS[parts[1]]} {parts[2]}" if parts else study
