"""The files of a run belong together: its model notes what the others hold, so that a mixture of runs is noticed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anode.files import DamagedFileError
from anode.models import saving
from anode.storage import digest, read_json


def ties(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Return what the model of a run notes about other files in its folder."""
    return {name: digest(_repeatable(read_json(folder / name))) for name in names}


def _repeatable(content: Any) -> Any:
    """Return the part of a file's content that the same command would write elsewhere, or with more epochs later on."""
    if not isinstance(content, dict):  # it is damaged
        return content
    options = content.get("options")
    if isinstance(options, dict):
        return {**options, "epochs": None}
    return {name: value for name, value in content.items() if name != "seconds"}


def check_tied(folder: Path, names: Sequence[str]) -> None:
    """Raise ``DamagedFileError`` if files in the folder of a run are not of the same run as its model.

    Models of earlier versions have no notes about some files, or about none. A missing file is not reported here.
    """
    notes = saving.notes_of(folder / "model")
    there = [name for name in names if name in notes and (folder / name).exists()]
    other = [name for name, now in ties(folder, there).items() if now != notes[name]]
    if other:
        both = f"its model.json and {', '.join(other)} are of different runs"
        raise DamagedFileError(f"{folder}: is damaged: {both}; restore all of the same run, or train again")
