"""``anode play``: a NODE and an ANODE beside each other in the browser, trained as one watches."""

from anode.extras import needs

needs("anode play", "play")
