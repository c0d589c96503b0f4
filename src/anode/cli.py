"""The command line: parse, call, print."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import anode
from anode.data.images import IMAGES

app = typer.Typer(
    help="Augmented neural ODEs: re-run the paper, train models, draw what they learned.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(
    help="Get the image datasets, and check what is there.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
bench_app = typer.Typer(
    help="Measure, side by side with what others use.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_app, name="data")
app.add_typer(bench_app, name="bench")
out, err = Console(), Console(stderr=True)

Root = Annotated[
    Path | None,
    typer.Option(
        "--root",
        help="Where datasets lie, each in a folder of its name.",
        show_default="the environment variable ANODE_DATA, or else a cache folder",
    ),
]

FAILURES_SHOWN = 10
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
    except (WorkerDiedError, anode.SolveError, FloatingPointError) as error:
        err.print(Text(f"error: {error}"), soft_wrap=True)
        raise typer.Exit(1) from None
    except RuntimeError as error:
        if "alloc" not in str(error):
            raise
        reason = str(error).splitlines()[0]
        err.print(Text(f"error: there is not enough memory for this ({reason}); take less of it"), soft_wrap=True)
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
    figures: Annotated[
        list[str] | None, typer.Argument(help="toy or images, for all of a half; or figures such as fig07, or table1.")
    ] = None,
    scale: Annotated[
        str | None, typer.Option(help="Of images: smoke (a minute), small (hours) or paper.", show_default="small")
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(
            help="How often every run is done, from different seeds; a claim takes at least 5.",
            show_default="20, and 5 for images",
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Where the results go.", show_default="results/toy or results/images")
    ] = None,
    root: Root = None,
    seed: Annotated[int, typer.Option(help="The first seed; the repeats take those that follow.")] = 0,
    resume: Annotated[bool, typer.Option(help="Use runs that are in the folder; or do them again.")] = True,
    jobs: Annotated[int | None, typer.Option(help="Runs at a time.", show_default="one a processor")] = None,
) -> None:
    """Re-run the paper: train, draw its figures, check its claims, write a report.

    Runs that several figures need are trained once. Started again, it goes on where it was interrupted.

    **Examples**

    - `anode reproduce` for all toy experiments, as often as the paper did them
    - `anode reproduce fig07 fig08 --repeats 5 --out quick`
    - `anode reproduce images --scale small`, which needs MNIST, CIFAR-10, SVHN and Tiny ImageNet: see `anode data`
    """
    import torch

    from anode.experiments.reproduce import Settings, planned, reproduce
    from anode.train.progress import Bars

    torch.set_num_threads(1)  # the networks are too small to gain from more; runs are done side by side instead
    if root is not None:
        os.environ["ANODE_DATA"] = str(root)  # the processes that train are to see it too
    with friendly("interrupted; nothing was begun"):
        work = planned(Settings(figures or ("toy",), folder, repeats, scale, seed, resume, jobs, root))
    with friendly(f"interrupted; what was finished is kept in {work.out}, and the same command goes on from there"):
        with Bars() as bars:
            content = reproduce(work, bars)
        out.print(claims_table(content["claims"]))
        for failure in content["failures"]:
            out.print(Text(f"failed: {failure['run']}, repeat {failure['repeat']}: {failure['reason']}"))
        out.print(Text(f"report: {work.out / 'report.html'}"), soft_wrap=True)


def claims_table(claims: list[dict[str, Any]]) -> Table:
    """The claims and what was found."""
    table = Table("", "claim", "verdict", "test", title="The paper's claims", show_lines=True)
    for claim in claims:
        verdict = Text(claim["verdict"], style=COLORS[claim["verdict"]])
        table.add_row(str(claim["number"]), claim["statement"], verdict, claim["test"])
    return table


@app.command()
def train(
    data: Annotated[
        str,
        typer.Argument(help=f"Points: {', '.join(anode.datasets.DATASETS)}; or images: {', '.join(IMAGES)}."),
    ],
    model: Annotated[str, typer.Option(help="node or resnet.")] = "node",
    augment: Annotated[int, typer.Option(help="Zeros appended to the input; 0 is the plain neural ODE.")] = 0,
    hidden: Annotated[int, typer.Option(help="Width of the hidden layers, for points.")] = 32,
    layers: Annotated[
        int | None, typer.Option(help="Hidden layers of the field (2), or layers of a ResNet (5).")
    ] = None,
    filters: Annotated[int, typer.Option(help="Channels of the hidden layers, for images.")] = 64,
    head_channels: Annotated[
        int | None, typer.Option(help="Channels of the features the linear layer sees.", show_default="all")
    ] = None,
    activation: Annotated[str, typer.Option(help="relu, softplus, tanh, silu or gelu.")] = "relu",
    time: Annotated[bool, typer.Option(help="Whether the field depends on time.")] = True,
    method: Annotated[str, typer.Option(help="The ODE solver's method.")] = "dopri5",
    rtol: Annotated[float, typer.Option(help="The ODE solver's relative tolerance.")] = 1e-3,
    atol: Annotated[float, typer.Option(help="The ODE solver's absolute tolerance.")] = 1e-3,
    step_size: Annotated[float | None, typer.Option(help="Take steps of this size instead of adaptive ones.")] = None,
    max_steps: Annotated[int, typer.Option(help="Steps after which a solve has failed.")] = 1_000,
    dim: Annotated[
        int | None, typer.Option(help="Dimension of the data, for g and separable.", show_default="2")
    ] = None,
    side: Annotated[
        int | None, typer.Option(help="Reduce images to this height and width.", show_default="as they are")
    ] = None,
    train_size: Annotated[int | None, typer.Option(help="Train on so many images.", show_default="all")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 50,
    minutes: Annotated[
        float | None, typer.Option(help="End after so much time; the same command goes on from there.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Points in an iteration.", show_default="64, of images 256, or all if there are fewer"),
    ] = None,
    lr: Annotated[float, typer.Option(help="Adam's learning rate.")] = 1e-3,
    weight_decay: Annotated[float, typer.Option(help="Adam's L2 penalty.")] = 0.0,
    loss: Annotated[
        str | None,
        typer.Option(help="huber, mse or cross_entropy.", show_default="huber; cross_entropy, always, for images"),
    ] = None,
    validation: Annotated[
        float, typer.Option(help="Fraction of the points kept for validation; images have a test set.")
    ] = 0.0,
    evaluate_every: Annotated[
        int | None, typer.Option(help="Iterations between validations.", show_default="one an epoch")
    ] = None,
    on_failure: Annotated[str, typer.Option(help="What to do when a solve fails: stop, skip or raise.")] = "stop",
    repeats: Annotated[int, typer.Option(help="Models trained together, from different seeds.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the data, the weights and the order of the data.")] = 0,
    folder: Annotated[Path, typer.Option("--out", help="A folder for model and history.")] = Path("run"),
    root: Root = None,
) -> None:
    """Train a model on a dataset; save the model and what happened.

    Writes `model.json`, `model.safetensors`, `history.json`, `history.csv` and `run.json`, which `anode plot` reads,
    and the state of training on the way. Ctrl-C ends training early and saves what there is; the same command goes on
    from there, also after the process was killed, and more `--epochs` may be asked for. The exit code is 1 if a solve
    failed and training ended there.

    **Examples**

    - `anode train g --augment 5 --epochs 20 --out run` and then `anode plot run`
    - `anode train mnist --augment 5 --minutes 60 --out mnist`
    - `torchrun --nproc-per-node 2 -m anode train mnist --augment 5 --out mnist` for two processes, each half a batch
    """
    from anode.experiments.single import Single, train_single
    from anode.train.ranks import start

    arguments = {name: value for name, value in locals().items() if name in Single.__dataclass_fields__}
    with friendly(f"interrupted; what was kept of it, if anything, is in {folder}"), start() as rank:
        single = Single(**arguments)
        single.check()
        history = train_single(single, folder, minutes, root)
        if rank != 0:
            return
        out.print(Text(f"{described(single)}\n{history!r}"), soft_wrap=True)
        for failure in history.failures[:FAILURES_SHOWN]:
            out.print(Text(f"failed: repeat {failure.member}, iteration {failure.iteration}: {failure.reason}"))
        if len(history.failures) > FAILURES_SHOWN:
            out.print(Text(f"and {len(history.failures) - FAILURES_SHOWN} more failures, see history.json"))
        out.print(Text(f"saved: {folder}"), soft_wrap=True)
    if history.failures and on_failure == "stop":
        raise typer.Exit(1)


def described(single: Any) -> str:
    """The model that is trained, in a line."""
    model = single.build()
    count = sum(p.numel() for p in model.parameters())
    name = "ResNet" if single.model == "resnet" else "ANODE" if single.augment else "NODE"
    line = f"{name} on {single.data}: {count:,} parameters"
    if not single.is_image:
        return line
    of_time = sum(p.numel() for p in model.flow.field.time_weights)
    return f"{line}, {count - of_time:,} without time" if of_time else f"{line}, time not used"


@app.command()
def plot(
    folders: Annotated[list[Path], typer.Argument(help="Folders that anode train wrote.")],
    picture: Annotated[
        Path | None,
        typer.Option("--out", help="The picture: .png, .svg or .pdf.", show_default="plot.png, in the first"),
    ] = None,
    reference: Annotated[
        float | None, typer.Option(help="An accuracy to compare with, in percent, such as the paper's.")
    ] = None,
) -> None:
    """Draw saved runs: loss, function evaluations and accuracy of all of them, and the flow each has learned."""
    from anode.experiments.pictures import draw_saved

    with friendly("interrupted; nothing was written"):
        out.print(Text(f"picture: {draw_saved(folders, picture, reference)}"), soft_wrap=True)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A folder that anode reproduce wrote.")] = Path("results/toy"),
) -> None:
    """Write the report of finished results again."""
    from anode.report import write_report

    with friendly("interrupted"):
        out.print(Text(f"report: {write_report(folder)}"), soft_wrap=True)


@app.command()
def search(
    models: Annotated[list[str] | None, typer.Argument(help="ResNet, NODE, ANODE.", show_default="all three")] = None,
    dims: Annotated[list[int], typer.Option("--dim", help="Dimensions of the data; may be given again.")] = [1, 2],  # noqa: B006
    data: Annotated[str, typer.Option(help="g or separable.")] = "g",
    grid: Annotated[
        Path | None, typer.Option(help="A JSON file of other values to try.", show_default="the paper's grids")
    ] = None,
    folds: Annotated[int, typer.Option(help="Of the cross-validation.")] = 3,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 50,
    repeats: Annotated[int, typer.Option(help="From how many seeds every setting is judged.")] = 1,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    sampler: Annotated[
        str, typer.Option(help="grid, for every setting; or tpe, for Optuna to choose within the grid's limits.")
    ] = "grid",
    trials: Annotated[
        int | None, typer.Option(help="Of tpe: how many a model and dimension, by all processes.", show_default="50")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            help="Of tpe: sqlite:///FILE, journal:FILE, or a database's address, such as postgresql://HOST/NAME.",
            show_default="a file in the folder of the results",
        ),
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="Where the results go.")] = Path("results/search"),
    jobs: Annotated[int | None, typer.Option(help="Of grid: runs at a time.", show_default="one a processor")] = None,
) -> None:
    """Search for the best hyperparameters, as the paper did: cross-validation of every setting of a grid.

    Settings of one shape are trained together as one program. Writes `search.json`, `search.md` and a picture for each
    dimension (with `--sampler tpe`: `tpe.json` and so on). Started again, it goes on where it was interrupted; with
    `--sampler tpe`, any number of processes on any number of machines that are given one `--storage` share the work.

    **Examples**

    - `anode search` for the paper's 84 settings in one and two dimensions
    - `anode search ANODE --dim 2 --epochs 10 --out quick`
    - `anode search ANODE --dim 2 --sampler tpe --trials 100 --storage sqlite:///anode.db`
    """
    import torch

    from anode.experiments.search.command import Search, run_search
    from anode.train.progress import Bars

    torch.set_num_threads(1)  # the networks are too small to gain from more; runs are done side by side instead
    arguments = {name: value for name, value in locals().items() if name in Search.__dataclass_fields__}
    with friendly(f"interrupted; what was finished is kept, and the same command goes on from there ({folder})"):
        with Bars() as bars:
            found = run_search(Search(**arguments), bars)
        table = Table("d", "model", "best setting", "loss", title="The best settings")
        for row in found:
            table.add_row(*row)
        out.print(table)
        out.print(Text(f"results: {folder}"), soft_wrap=True)


@app.command()
def info() -> None:
    """Say which version this is, on what it runs, and which engine integrates."""
    import torch

    from anode.experiments.environment import environment
    from anode.ode import native

    facts = environment()
    lines = {
        "anode": f"{facts['anode']}  {facts['revision']}".strip(),
        "with": f"torch {facts['torch']}, numpy {facts['numpy']}, Python {facts['python']}",
        "on": f"{facts['platform']}, {facts['processors']} processors, {torch.get_num_threads()} threads",
    }
    sets = native.instruction_sets()
    if sets:
        fields = "MLPField, nn.Sequential of linear layers and ConvField on a CPU"
        lines["engine"] = f"native, with {sets[0]} instructions, for {fields}; torch for everything else"
    else:
        why = "install it again where there is a C++17 compiler (GCC or Clang) to have one"
        lines["engine"] = f"torch: {native.MISSING}; {why}"
    for name, text in lines.items():
        out.print(f"{name:<8}{text}", highlight=False, soft_wrap=True)


@bench_app.command("tabular")
def bench_tabular(
    tables: Annotated[
        list[str] | None, typer.Argument(help="Names such as iris or digits.", show_default="all")
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="Where the results go.")] = Path("results/tabular"),
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
            help="Of toy, repeats, small, module, predict, batch, width, dimension, members, tolerance, memory.",
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


@data_app.command("list")
def list_data(root: Root = None) -> None:
    """List the image datasets, and whether they are there."""
    from anode.data.files import data_root
    from anode.data.stock import presence

    table = Table("name", "images", "size", "classes", "download", "there")
    with friendly("interrupted"):
        for name, source in IMAGES.items():
            images = " + ".join(f"{count:,}" for count in source.counts.values())
            download = f"{source.size / 1e6:,.1f} MB" if source.size else "none"
            size = "x".join(map(str, source.shape))
            table.add_row(name, images, size, str(source.classes), download, presence(name, root))
        out.print(table)
        out.print(Text(f"folder: {data_root(root)}"), soft_wrap=True)


@data_app.command("fetch")
def fetch_data(
    name: Annotated[str, typer.Argument(help="A dataset that anode data list names.")], root: Root = None
) -> None:
    """Download a dataset from its official address, check and unpack it.

    **Example:** `anode data fetch mnist`
    """
    from anode.data.stock import fetch, presence
    from anode.train.progress import Bars

    with friendly("interrupted; files that were complete are kept, and the same command goes on from there"):
        with Bars() as bars:
            folder = fetch(name, root, bars.show)
        where = "comes with scikit-learn" if presence(name) == "built in" else f"is in {folder}"
        out.print(Text(f"{name}: {where}"), soft_wrap=True)


@data_app.command("check")
def check_data(
    name: Annotated[str, typer.Argument(help="A dataset that anode data list names.")], root: Root = None
) -> None:
    """Compare a dataset's files with the official checksums, and read them.

    Files that differ from the official ones but can be read, such as a part of them, are fine and named as such. The
    exit code is 1 if something is missing or damaged.
    """
    from anode.data.stock import check

    with friendly("interrupted"):
        findings = check(name, root)
        for finding in findings:
            out.print(Text(f"{finding.what}: {finding.note}"), soft_wrap=True)
    if not all(finding.usable for finding in findings):
        raise typer.Exit(1)


def run() -> None:
    """The command ``anode``."""
    app()


if __name__ == "__main__":
    run()
