"""``anode bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from anode.bench.speed import PARTS
from anode.cli.console import commands, friendly, out, resumable

bench_app = commands("Benchmark anode against other libraries.")


@bench_app.command("tabular")
def bench_tabular(
    tables: Annotated[
        list[str] | None, typer.Argument(help="Tables to use, such as iris or digits.", show_default="all")
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the results.")] = Path("results/mine/tabular"),
    seed: Annotated[int, typer.Option(help="Random seed of the folds and the models.")] = 0,
) -> None:
    """Cross-validate anode's and scikit-learn's estimators on small tables: scores and fit times.

    Writes `tabular.json`, `tabular.md` and two figures. Each measurement is saved at once. If the command is
    interrupted, run it again to continue.
    """
    from anode.experiments.tabular import TABLES, bench
    from anode.experiments.tabular_figures import draw
    from anode.train.progress import Bars

    with friendly(resumable(folder)):
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
            help=f"Parts to measure: {', '.join(PARTS)}.",
            show_default="all that the folder does not hold yet",
        ),
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the results.")] = Path("results/mine/speed"),
    turns: Annotated[int, typer.Option(min=1, help="Number of turns per library.")] = 7,
) -> None:
    """Time anode against torchdiffeq, torchode, torchdyn and diffrax, where these are installed.

    Each library runs in its own process. The processes take turns, one at a time, and the tables show the median over
    the turns. Writes one JSON file per part, `speed.md` with all tables, and figures. A part that the folder already
    holds is measured again only if you name it. All parts take about half an hour; keep the machine otherwise idle.

    **Example:** `anode bench speed toy small`
    """
    from anode.bench.figures import draw
    from anode.bench.sides import RIVALS, version
    from anode.bench.speed import bench
    from anode.bench.tables import markdown, tables
    from anode.files import write_text
    from anode.train.progress import Bars

    with friendly(resumable(folder)):
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
            out.print(f"not installed, so not measured: {', '.join(missing)}", soft_wrap=True)
        out.print(Text(f"results: {folder / 'speed.md'}"), soft_wrap=True)
