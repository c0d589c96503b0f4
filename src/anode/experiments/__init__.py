"""The paper's experiments."""

from anode.extras import needs

needs("anode.experiments", "paper")
