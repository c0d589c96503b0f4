"""The learning rates of the runs beyond the paper, as ``python -m anode.experiments.beyond.search`` has found them."""

RATES: dict[str, float] = {}
"""By the data that was searched on and the model."""
