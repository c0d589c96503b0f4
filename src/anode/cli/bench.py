"""``anode bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from anode.bench.speed import PARTS
from anode.cli.console import commands, friendly, out

bench_app = commands("Measure, side by side with what others use.")


@bench_app.command("tabular")
def bench_tabular(
    tables: Annotated[
        list[str] | None, typer.Argument(help="Names such as iris or digits.", show_default="all")
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="Where the results go.")] = Path("results/mine/tabular"),
    seed: Annotated[int, typer.Option(help="Of the folds and the models.")] = 0,
) -> None:
    """Cross-validate the estimators beside scikit-learn's on its own tables: scores and seconds.

    Writes `tabular.json`, `tabular.md` and two pictures. What was measured is kept at once, and the same command goes
    on from there.
    """
    from anode.experiments.tabular import TABLES, bench
    from anode.experiments.tabular_figures import draw
    from anode.train.progress import Bars

    with friendly(f"interrupted; what was finished is kept in {folder}, and the same command goes on from there"):
        with Bars() as bars:
            cells = bench(folder, tables or TABLES, seed, bars)
            draw(folder, cells, seed, bars)
        shown = Table("", "model", "score", "seconds")
        for cell in cells:
            shown.add_row(cell.table, cell.model, cell.score, f"{cell.mean_seconds:.2f}")
        out.print(shown)
        out.print(Text(f"results: {folder / 'tabular.md'}"), soft_wrap=True)


@bench_app.command("speed")
def bench_speed(
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"Of {', '.join(PARTS)}.",
            show_default="what is missing",
        ),
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="Where the results go.")] = Path("results/mine/speed"),
    turns: Annotated[int, typer.Option(min=1, help="How often each library takes its turn.")] = 7,
) -> None:
    """Time anode side by side with torchdiffeq, torchode, torchdyn and diffrax, as far as they are installed.

    Each library works in a process of its own, one at a time and in turns; medians count. Writes a JSON file for each
    part, `speed.md` with all tables, and pictures. Parts that the folder holds are not measured again unless they are
    named. All of it takes about half an hour, in which the machine should have nothing else to do.

    **Example:** `anode bench speed toy small`
    """
    from anode.bench.figures import draw
    from anode.bench.sides import RIVALS, version
    from anode.bench.speed import bench
    from anode.bench.tables import markdown, tables
    from anode.files import write_text
    from anode.train.progress import Bars

    with friendly(f"interrupted; what was finished is kept in {folder}, and the same command goes on from there"):
        with Bars() as bars:
            found = bench(folder, parts or [], turns, bars)
        write_text(folder / "speed.md", markdown(found))
        draw(folder, found)
        for one, (title, columns, rows) in zip(found, tables(found), strict=True):
            shown = Table(*columns, title=f"{title} (measured {one.when})", title_justify="left")
            for row in rows:
                shown.add_row(*row)
            out.print(shown)
        missing = [side for side in RIVALS if not version(side)]
        if missing:
            out.print(f"not installed, and left out: {', '.join(missing)}", soft_wrap=True)
        out.print(Text(f"results: {folder / 'speed.md'}"), soft_wrap=True)
