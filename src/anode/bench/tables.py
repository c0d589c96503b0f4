"""Tables of the measurements."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, nan

from anode.bench.speed import Found
from anode.bench.turns import Row

TextTable = tuple[str, list[str], list[list[str]]]
"""A title, the names of the columns, and rows."""


def tables(found: Sequence[Found]) -> list[TextTable]:
    """Return one table per part."""
    return [table(one) for one in found]


def table(found: Found) -> TextTable:
    """Return the table of a part."""
    return growth(found) if found.part.values else own(found) if found.part.works else comparison(found)


def comparison(found: Found) -> TextTable:
    """Return the table of a part with one point: time, ratio to the first row, NFE, and share of the machine's peak.

    NFE is that of the first solve, for which all libraries have the same weights. The share is over all solves.
    """
    rows = found.rows[0]
    first = rows[0]
    peaks = {row.threads: row.gigaflops for row in rows if row.side == "peak"}
    shown = [
        [
            row.label,
            row.failed or seconds(row.typical),
            "" if row.failed else f"{row.typical / first.typical:.1f}x",
            f"{row.nfe:.0f}" if row.nfe else "",
            f"{100 * row.gigaflops / peaks[row.threads]:.0f} %" if row.gigaflops and row.threads in peaks else "",
        ]
        for row in rows
        if row.side != "peak"
    ]
    columns = ["", "time", "against the first", "NFE, first solve", "of a matrix product"]
    if not peaks:
        columns, shown = columns[:-1], [row[:-1] for row in shown]
    return found.part.title, columns, shown


OWN_RIVALS = ("torchdiffeq", "diffrax")


def own(found: Found) -> TextTable:
    """Return the table of a part with works: one line per way to use anode, with its rivals and their time ratios."""
    shown = []
    for i, (work, rows) in enumerate(zip(found.part.works, found.rows, strict=True)):
        errors = found.errors[i] if found.errors else [nan] * len(rows)
        times = {row.label: own_time(row, error) for row, error in zip(rows, errors, strict=True)}
        theirs = {row.label: row for row in rows if row.label in OWN_RIVALS}
        for row in rows:
            if row.label not in theirs:
                rivals = [theirs.get(rival) for rival in OWN_RIVALS]
                cells = [times[rival.label] + ratio(rival, row) if rival else "" for rival in rivals]
                nfe = " / ".join(f"{each.nfe:.0f}" if each and each.nfe else "-" for each in (row, *rivals))
                shown.append([work, row.label, times[row.label], *cells, nfe, row.engine])
    return found.part.title, ["", "with", "anode", *OWN_RIVALS, "NFE, first solve", "engine"], shown


def own_time(row: Row, error: float) -> str:
    """Return a time, with the error if it is known, or why there is no time."""
    return row.failed or seconds(row.typical) + (f", {error:.0e}" if isfinite(error) else "")


def ratio(rival: Row, row: Row) -> str:
    """Return the rival's time divided by ours in words, if both have one."""
    if not (rival.seconds and row.seconds):
        return ""
    times = rival.typical / row.typical
    return f" ({times:.1f}x)" if times >= 1 else f" ({times:.2f}x)"


def growth(found: Found) -> TextTable:
    """Return the table of a sweep: one line per value."""
    labels = list(dict.fromkeys(row.label for rows in found.rows for row in rows))
    shown = []
    for i, (value, rows) in enumerate(zip(found.part.values, found.rows, strict=True)):
        cells = {row.label: cell(found, row) for row in rows}
        if found.errors:
            cells = {
                row.label: f"{cells[row.label]}, {error:.0e}" for row, error in zip(rows, found.errors[i], strict=True)
            }
        shown.append([f"{value:.0e}" if value < 1 else f"{value:g}", *(cells.get(label, "") for label in labels)])
    what = "time and error" if found.errors else "time" if found.part.timed else "memory"
    title = found.part.title if what == found.part.title else f"{found.part.title}: {what}"
    return title, [found.part.axis, *labels], shown


def cell(found: Found, row: Row) -> str:
    """Return the time or the memory of a row in words."""
    return row.failed or (seconds(row.typical) if found.part.timed else f"{row.megabytes:.0f} MB")


def seconds(value: float) -> str:
    """A time with three digits."""
    unit, factor = ("s", 1.0) if value >= 1 else ("ms", 1e3) if value >= 1e-3 else ("µs", 1e6)
    return f"{value * factor:.3g} {unit}"


def markdown(found: Sequence[Found]) -> str:
    """All tables in Markdown."""
    parts = []
    for title, columns, rows in tables(found):
        lines = [columns, ["---"] * len(columns), *rows]
        parts.append(f"**{title}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(parts) + "\n"
