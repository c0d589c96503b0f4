"""What a page of `anode play` makes of a message."""

import json
from typing import Any

import numpy as np


def unpacked(message: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The numbers and the arrays of a picture, as `picture.js` reads them."""
    length = int.from_bytes(message[:4], "little")
    head, at, arrays = json.loads(message[4 : 4 + length]), 4 + length, {}
    for name, kind, shape in head["arrays"]:
        assert at % 4 == 0
        arrays[name] = np.frombuffer(message, kind, int(np.prod(shape)), at).reshape(shape)
        at += -(-arrays[name].nbytes // 4) * 4
    assert at == len(message)
    return head, arrays
