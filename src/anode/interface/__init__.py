"""The functions that solve: anode.solve, and torchdiffeq's."""
