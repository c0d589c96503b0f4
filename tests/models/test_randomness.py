from concurrent.futures import ThreadPoolExecutor

import torch

import anode
from anode.models.ensemble import from_seed
from anode.models.randomness import apart, with_seed


def test_what_is_drawn_apart_leaves_the_stream_where_it_was():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with apart():
        torch.rand(5)
    assert torch.equal(torch.rand(2), expected)


def test_a_seed_determines_what_is_drawn_and_leaves_the_stream_where_it_was():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with with_seed(5):
        first = torch.rand(5)
    with with_seed(5):
        assert torch.equal(torch.rand(5), first)
    assert torch.equal(torch.rand(2), expected)


def test_threads_build_the_models_that_their_seeds_say():
    def weights(seed: int) -> list[torch.Tensor]:
        return [p.detach() for p in from_seed(lambda: anode.ResNet(3, 1, 16, 10), seed).parameters()]

    expected = [weights(seed) for seed in range(40)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(weights, range(40)))
    for ours, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
