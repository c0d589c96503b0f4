"""What is in a folder."""

from pathlib import Path


def names_in(folder: Path) -> list[str]:
    """The names of all files and folders, sorted."""
    return sorted(path.name for path in folder.iterdir())


def state(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of every file."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
