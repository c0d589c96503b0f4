"""Change the files that anode wrote."""

import json
from pathlib import Path

from anode.storage import write_json


def change(path: Path, old: str, new: str) -> None:
    """Replace a text in a JSON file and remove its digest, so that only the content can give the change away."""
    text = path.read_text()
    assert old in text
    content = json.loads(text.replace(old, new))
    content.pop("digest", None)
    write_json(path, content, indent=1)
