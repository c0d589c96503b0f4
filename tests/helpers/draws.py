"""Random numbers for tests."""

import torch


def normal(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Normal numbers, which are the same in every precision."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
