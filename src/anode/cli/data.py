"""``anode data``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from anode.cli.console import Root, commands, friendly, out
from anode.data.images import IMAGES

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
