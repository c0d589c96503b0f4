import math

import pytest
import torch

from anode.data.densities import DENSITIES, load

each = pytest.mark.parametrize("name", DENSITIES)


def nearest(x: torch.Tensor, to: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The distance of each point to the nearest of some, and which that is."""
    return torch.cdist(x, to).min(1)


@each
def test_points_are_finite_centred_and_a_function_of_the_seed(name):
    before = torch.get_rng_state()
    x = load(name, points=4000, seed=3)
    assert x.shape == (4000, 2)
    assert x.dtype == torch.float32
    assert x.isfinite().all()
    assert float(x.mean(0).abs().max()) < 0.25
    assert torch.equal(x, load(name, points=4000, seed=3))
    assert not torch.equal(x, load(name, points=4000, seed=4))
    assert torch.equal(before, torch.get_rng_state())


@each
def test_any_part_is_a_sample_too(name):
    x = load(name, points=4000)
    first, second = x[:2000], x[2000:]
    assert float((first.mean(0) - second.mean(0)).abs().max()) < 0.25
    assert float((first.std(0) - second.std(0)).abs().max()) < 0.15


@each
@pytest.mark.parametrize("points", [1, 2, 7])
def test_any_number_of_points_can_be_drawn(name, points):
    assert load(name, points=points).shape == (points, 2)


def test_the_eight_gaussians_are_evenly_spaced_on_a_circle():
    x = load("eight_gaussians", points=8000)
    angles = math.pi / 4 * torch.arange(8)
    distances, which = nearest(x, math.sqrt(8) * torch.stack([angles.cos(), angles.sin()], 1))
    assert torch.bincount(which).min() > 850
    assert float(distances.square().mean()) == pytest.approx(2 * 0.125, rel=0.05)


def test_points_of_the_rings_lie_on_four_circles():
    radius = load("rings", points=8000).norm(dim=1, keepdim=True)
    distances, which = nearest(radius, 0.75 * torch.arange(1, 5)[:, None].float())
    assert torch.bincount(which).min() > 1800
    assert float(distances.square().mean().sqrt()) == pytest.approx(0.08, rel=0.1)


def test_the_pinwheel_looks_the_same_after_a_fifth_of_a_turn():
    x, turn = load("pinwheel", points=20_000), 2 * math.pi / 5
    turned = x @ torch.tensor([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
    histograms = [torch.histogramdd(each, bins=[12, 12], range=[-4.0, 4.0] * 2).hist / 20_000 for each in (x, turned)]
    assert float((histograms[0] - histograms[1]).abs().sum()) < 0.1
    assert float(x.norm(dim=1).mean()) == pytest.approx(2.0, abs=0.05)


def test_the_checkerboard_fills_every_other_cell():
    cells = (load("checkerboard", points=8000) / 2 + 2).floor().long()
    assert cells.min() == 0
    assert cells.max() == 3
    assert (cells.sum(1) % 2 == 0).all()
    assert torch.bincount(4 * cells[:, 0] + cells[:, 1], minlength=16).reshape(4, 4)[::2, ::2].min() > 850


def test_the_spirals_are_one_turned_by_half_a_turn():
    x = load("two_spirals", points=8000)
    assert float(x.norm(dim=1).max()) < 3.5
    histograms = [torch.histogramdd(each, bins=[12, 12], range=[-4.0, 4.0] * 2).hist / 8000 for each in (x, -x)]
    assert float((histograms[0] - histograms[1]).abs().sum()) < 0.12


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "ring"}, "name: takes one of eight_gaussians, .*, got 'ring'; did you mean 'rings'"),
        ({"name": "rings", "points": 0}, "points: takes a whole number above 0, got 0"),
        ({"name": "moons", "points": 2.5}, "points: takes a whole number above 0, got 2.5"),
        ({"name": "rings", "seed": -1}, r"seed: takes a whole number from 0 to 2\*\*64 - 1, got -1"),
        ({"name": "rings", "seed": 2**70}, "seed: takes a whole number from 0 to .*, got 1180591620717411303424"),
    ],
)
def test_a_bad_argument_is_named(options, said):
    with pytest.raises(ValueError, match=said):
        load(**options)
