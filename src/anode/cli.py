"""The command line: parse, call, print."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import anode

app = typer.Typer(
    help="Augmented neural ODEs: re-run the paper, train models, draw what they learned.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
out, err = Console(), Console(stderr=True)

COLORS = {"held": "green", "not held": "red", "inconclusive": "yellow"}


@contextmanager
def friendly(interrupted: str) -> Iterator[None]:
    """Turn a user's mistake into one line and exit code 2, and Ctrl-C into a line that says what is left."""
    from anode.experiments.workers import WorkerDiedError

    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        message = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        err.print(Text(f"error: {message}"), soft_wrap=True)
        raise typer.Exit(2) from None
    except (WorkerDiedError, anode.SolveError) as error:
        err.print(Text(f"error: {error}"), soft_wrap=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        err.print(Text(interrupted), soft_wrap=True)
        raise typer.Exit(130) from None


def show_version(wanted: bool) -> None:
    """Print the version and leave."""
    if wanted:
        out.print(f"anode {anode.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Augmented neural ODEs: re-run the paper, train models, draw what they learned."""


@app.command()
def reproduce(
    figures: Annotated[list[str] | None, typer.Argument(help="Such as fig07; all of the toy half by default.")] = None,
    repeats: Annotated[
        int, typer.Option(help="How often every run is done, from different seeds; a claim takes at least 5.")
    ] = 20,
    folder: Annotated[Path, typer.Option("--out", help="Where the results go.")] = Path("results/toy"),
    seed: Annotated[int, typer.Option(help="The first seed; the repeats take those that follow.")] = 0,
    resume: Annotated[bool, typer.Option(help="Use runs that are in the folder; or do them again.")] = True,
    jobs: Annotated[int | None, typer.Option(help="Runs at a time.", show_default="one a processor")] = None,
) -> None:
    """Re-run the paper: train, draw its figures, check its claims, write a report.

    Runs that several figures need are trained once. Started again, it goes on where it was interrupted.

    **Examples**

    - `anode reproduce` for everything, as often as the paper did
    - `anode reproduce fig07 fig08 --repeats 5 --out quick`
    """
    import torch

    from anode.experiments.reproduce import Settings, reproduce
    from anode.train.progress import Bars

    kept = f"interrupted; what was finished is kept in {folder}, and the same command goes on from there"
    torch.set_num_threads(1)  # the networks are too small to gain from more; runs are done side by side instead
    with friendly(kept):
        settings = Settings(figures or (), folder, repeats, seed, resume, jobs)
        with Bars() as bars:
            content = reproduce(settings, bars)
        out.print(claims_table(content["claims"]))
        for failure in content["failures"]:
            out.print(Text(f"failed: {failure['run']}, repeat {failure['repeat']}: {failure['reason']}"))
        out.print(Text(f"report: {folder / 'report.html'}"), soft_wrap=True)


def claims_table(claims: list[dict[str, Any]]) -> Table:
    """The claims and what was found."""
    table = Table("", "claim", "verdict", "test", title="The paper's claims", show_lines=True)
    for claim in claims:
        verdict = Text(claim["verdict"], style=COLORS[claim["verdict"]])
        table.add_row(str(claim["number"]), claim["statement"], verdict, claim["test"])
    return table


@app.command()
def train(
    data: Annotated[str, typer.Argument(help="A dataset: " + ", ".join(anode.datasets.DATASETS) + ".")],
    model: Annotated[str, typer.Option(help="node or resnet.")] = "node",
    augment: Annotated[int, typer.Option(help="Zeros appended to the input; 0 is the plain neural ODE.")] = 0,
    hidden: Annotated[int, typer.Option(help="Width of the hidden layers.")] = 32,
    layers: Annotated[
        int | None, typer.Option(help="Hidden layers of the field (2), or layers of a ResNet (5).")
    ] = None,
    activation: Annotated[str, typer.Option(help="relu, softplus, tanh, silu or gelu.")] = "relu",
    time: Annotated[bool, typer.Option(help="Whether the field depends on time.")] = True,
    method: Annotated[str, typer.Option(help="The ODE solver's method.")] = "dopri5",
    rtol: Annotated[float, typer.Option(help="The ODE solver's relative tolerance.")] = 1e-3,
    atol: Annotated[float, typer.Option(help="The ODE solver's absolute tolerance.")] = 1e-3,
    step_size: Annotated[float | None, typer.Option(help="Take steps of this size instead of adaptive ones.")] = None,
    dim: Annotated[
        int | None, typer.Option(help="Dimension of the data, for g and separable.", show_default="2")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 50,
    batch_size: Annotated[
        int | None, typer.Option(help="Points in an iteration.", show_default="64, or all if there are fewer")
    ] = None,
    lr: Annotated[float, typer.Option(help="Adam's learning rate.")] = 1e-3,
    weight_decay: Annotated[float, typer.Option(help="Adam's L2 penalty.")] = 0.0,
    loss: Annotated[str, typer.Option(help="huber, mse or cross_entropy.")] = "huber",
    validation: Annotated[float, typer.Option(help="Fraction of the points kept for validation.")] = 0.0,
    repeats: Annotated[int, typer.Option(help="Models trained together, from different seeds.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the data, the weights and the order of the data.")] = 0,
    folder: Annotated[Path, typer.Option("--out", help="A new folder for model and history.")] = Path("run"),
) -> None:
    """Train a model on a dataset; save the model and what happened.

    Writes `model.json`, `model.safetensors`, `history.json`, `history.csv` and `run.json`, which `anode plot` reads.
    Ctrl-C ends training early and saves what there is.

    **Example:** `anode train g --augment 5 --epochs 20 --out run` and then `anode plot run`
    """
    from anode.experiments.single import Single, train_single

    arguments = {name: value for name, value in locals().items() if name in Single.__dataclass_fields__}
    with friendly("interrupted before anything was trained"):
        single = Single(**arguments)
        history = train_single(single, folder)
        out.print(Text(f"{history!r}"), soft_wrap=True)
        for failure in history.failures:
            out.print(Text(f"failed: repeat {failure.member}, iteration {failure.iteration}: {failure.reason}"))
        out.print(Text(f"saved: {folder}"), soft_wrap=True)


@app.command()
def plot(
    folders: Annotated[list[Path], typer.Argument(help="Folders that anode train wrote.")],
    picture: Annotated[
        Path | None,
        typer.Option("--out", help="The picture: .png, .svg or .pdf.", show_default="plot.png, in the first"),
    ] = None,
) -> None:
    """Draw saved runs: loss and function evaluations of all of them, and the flow each has learned."""
    from anode.experiments.single import draw_saved

    with friendly("interrupted; nothing was written"):
        out.print(Text(f"picture: {draw_saved(folders, picture)}"), soft_wrap=True)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A folder that anode reproduce wrote.")] = Path("results/toy"),
) -> None:
    """Write the report of finished results again."""
    from anode.report import write_report

    with friendly("interrupted"):
        out.print(Text(f"report: {write_report(folder)}"), soft_wrap=True)


def run() -> None:
    """The command ``anode``."""
    app()


if __name__ == "__main__":
    run()
