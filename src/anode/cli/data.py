"""``anode data``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from anode.checks import lookup
from anode.cli.console import SIGNALLED, Root, commands, friendly, out
from anode.data.images import IMAGES

Names = Annotated[list[str], typer.Argument(help="Names of datasets, as anode data list shows them.")]

data_app = commands("Download image datasets and check their files.")


@data_app.command("list")
def list_data(root: Root = None) -> None:
    """List the image datasets and whether they are installed."""
    from anode.data.files import data_root
    from anode.data.stock import presence

    table = Table("name", "images", "size", "classes", "download", "installed")
    with friendly("interrupted"):
        for name, source in IMAGES.items():
            images = " + ".join(f"{count:,}" for count in source.counts.values())
            download = f"{source.size / 1e6:,.1f} MB" if source.size else "none"
            size = "x".join(map(str, source.shape))
            table.add_row(name, images, size, str(source.classes), download, presence(name, root))
        out.print(table)
        out.print(Text(f"folder: {data_root(root)}"), soft_wrap=True)


@data_app.command("fetch")
def fetch_data(names: Names, root: Root = None) -> None:
    """Download datasets from their official addresses, verify their checksums and unpack them.

    If one dataset fails, the command still fetches the others, and then exits with the code of the failure.

    **Examples**

    - `anode data fetch mnist`
    - `anode data fetch mnist cifar10 svhn tiny_imagenet` for all datasets that `anode reproduce images` needs
    """
    from anode.data.stock import fetch, presence
    from anode.train.progress import Bars

    def fetch_one(name: str) -> None:
        with Bars() as bars:
            folder = fetch(name, root, bars.show)
        where = "comes with scikit-learn" if presence(name) == "built in" else f"is in {folder}"
        out.print(Text(f"{name}: {where}"), soft_wrap=True)

    kept = "complete files are kept; run the same command again to continue"
    for_each(names, root, fetch_one, f"interrupted; {kept}")


@data_app.command("check")
def check_data(names: Names, root: Root = None) -> None:
    """Compare dataset files with the official checksums, and read them.

    Files that differ from the official ones but can be read, such as a subset, are reported and accepted. The exit
    code is 1 if a file is missing or damaged.

    **Examples**

    - `anode data check mnist`
    - `anode data check mnist cifar10`
    """
    from anode.data.stock import check

    def check_one(name: str) -> None:
        findings = check(name, root)
        of = f"{name}: " if len(names) > 1 else ""  # two datasets may have files of the same name
        for finding in findings:
            out.print(Text(f"{of}{finding.what}: {finding.note}"), soft_wrap=True)
        if not all(finding.usable for finding in findings):
            raise typer.Exit(1)

    for_each(names, root, check_one, "interrupted")


def for_each(names: list[str], root: Path | None, do: Callable[[str], None], interrupted: str) -> None:
    """Call ``do`` for each dataset, even after one failed; then exit with the highest exit code."""
    from anode.data.files import data_root

    with friendly(interrupted):  # find bad arguments once, before a long download
        data_root(root)
        for name in names:
            lookup("name", name, IMAGES)
    codes = [0]
    for name in dict.fromkeys(names):
        try:
            with friendly(interrupted):
                do(name)
        except typer.Exit as end:
            if end.exit_code > SIGNALLED:
                raise
            codes.append(end.exit_code)
    if any(codes):
        raise typer.Exit(max(codes))
