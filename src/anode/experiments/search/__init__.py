"""The paper's hyperparameter search: what ``anode search`` does."""
