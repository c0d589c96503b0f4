"""``anode search``: the paper's hyperparameter search."""
