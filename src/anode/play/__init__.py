"""``anode play``: trains a NODE and an ANODE side by side, live in the browser."""

from anode.extras import needs

needs("anode play", "play")
