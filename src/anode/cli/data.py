"""``anode data``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from anode.checks import lookup
from anode.cli.console import INTERRUPTED, Root, commands, friendly, out
from anode.data.images import IMAGES

Names = Annotated[list[str], typer.Argument(help="Datasets that anode data list names.")]

data_app = commands("Get the image datasets, and check what is there.")


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
def fetch_data(names: Names, root: Root = None) -> None:
    """Download datasets from their official addresses, check and unpack them.

    If one fails, the others are fetched all the same. The exit code is then that of the failure.

    **Examples**

    - `anode data fetch mnist`
    - `anode data fetch mnist cifar10 svhn tiny_imagenet` for all that `anode reproduce images` needs
    """
    from anode.data.stock import fetch, presence
    from anode.train.progress import Bars

    def fetch_one(name: str) -> None:
        with Bars() as bars:
            folder = fetch(name, root, bars.show)
        where = "comes with scikit-learn" if presence(name) == "built in" else f"is in {folder}"
        out.print(Text(f"{name}: {where}"), soft_wrap=True)

    kept = "files that were complete are kept, and the same command goes on from there"
    for_each(names, root, fetch_one, f"interrupted; {kept}")


@data_app.command("check")
def check_data(names: Names, root: Root = None) -> None:
    """Compare datasets' files with the official checksums, and read them.

    Files that differ from the official ones but can be read, such as a part of them, are fine and named as such. The
    exit code is 1 if something is missing or damaged.

    **Examples**

    - `anode data check mnist`
    - `anode data check mnist cifar10`
    """
    from anode.data.stock import check

    def check_one(name: str) -> None:
        findings = check(name, root)
        of = f"{name}: " if len(names) > 1 else ""  # files of two datasets have the same names
        for finding in findings:
            out.print(Text(f"{of}{finding.what}: {finding.note}"), soft_wrap=True)
        if not all(finding.usable for finding in findings):
            raise typer.Exit(1)

    for_each(names, root, check_one, "interrupted")


def for_each(names: list[str], root: Path | None, do: Callable[[str], None], interrupted: str) -> None:
    """Do something with each dataset, also after one failed; end with the highest exit code, if one did."""
    from anode.data.files import data_root

    with friendly(interrupted):  # a mistake in what was asked for is found before a long download, and said once
        data_root(root)
        for name in names:
            lookup("name", name, IMAGES)
    codes = [0]
    for name in dict.fromkeys(names):
        try:
            with friendly(interrupted):
                do(name)
        except typer.Exit as end:
            if end.exit_code == INTERRUPTED:
                raise
            codes.append(end.exit_code)
    if any(codes):
        raise typer.Exit(max(codes))
