import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from anode.data import toy
from anode.data.toy import DATASETS, Dataset

PROPERTY = settings(max_examples=50)
FIXED = ("g_1d", "identity_1d")
DRAWN = [name for name in DATASETS if name not in FIXED]
WITH_POINTS = [name for name in DRAWN if name != "g"]
PLANAR = ["moons", "circles", "spirals", "checkerboard"]

each_dataset = pytest.mark.parametrize("name", DATASETS)
each_drawn = pytest.mark.parametrize("name", DRAWN)
each_with_points = pytest.mark.parametrize("name", WITH_POINTS)
each_planar = pytest.mark.parametrize("name", PLANAR)


def radii_of(x: torch.Tensor) -> torch.Tensor:
    return x.double().norm(dim=1)


def angles_of(x: torch.Tensor) -> np.ndarray:
    return np.arctan2(x[:, 1].double().numpy(), x[:, 0].double().numpy()) % (2 * math.pi)


def pieces(data: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    """The points of either label."""
    return data.x[data.labels == 0], data.x[data.labels == 1]


def sorted_rows(data: Dataset) -> list[list[float]]:
    return sorted(torch.cat([data.x, data.y], 1).tolist())


# Every dataset


@each_dataset
def test_a_dataset_has_finite_points_and_both_labels(name):
    data = toy.load(name)
    assert data.name == name
    assert data.x.dtype == data.y.dtype == torch.float32
    assert data.x.shape == (len(data), data.dim)
    assert data.y.shape == (len(data), 1)
    assert data.x.isfinite().all()
    assert data.y.unique().tolist() == [-1, 1]
    assert data.labels.shape == (len(data),)
    assert data.labels.dtype == torch.int64
    assert torch.equal(2 * data.labels - 1, data.y[:, 0].long())


@each_dataset
def test_the_same_seed_makes_the_same_bits(name):
    first, second = toy.load(name, seed=3), toy.load(name, seed=3)
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.y, second.y)


@each_drawn
def test_another_seed_makes_other_points(name):
    first, second = toy.load(name, seed=3), toy.load(name, seed=4)
    assert torch.equal(first.y, second.y)
    assert (first.x != second.x).any(1).float().mean() > 0.99


@pytest.mark.parametrize("name", FIXED)
def test_a_seed_changes_nothing_where_nothing_is_drawn(name):
    assert torch.equal(toy.load(name, seed=3).x, toy.load(name).x)


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    for name in DATASETS:
        toy.load(name, seed=1)
    toy.slices(2)
    toy.g().split(0.5)
    assert torch.equal(torch.get_rng_state(), before)


@each_dataset
def test_torchs_default_device_and_dtype_change_nothing(name):
    expected = toy.load(name)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            data = toy.load(name)
            parts = data.split(0.5)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(data.x, expected.x)
    assert torch.equal(data.y, expected.y)
    assert torch.equal(parts[0].x, expected.split(0.5)[0].x)


@each_with_points
@pytest.mark.parametrize("points", [2, 11, 100])
def test_half_of_the_points_have_either_label(name, points):
    data = toy.load(name, points=points)
    assert len(data) == points
    assert int(data.labels.sum()) == points // 2


@each_drawn
def test_points_are_in_the_order_of_their_labels(name):
    labels = toy.load(name).labels
    assert torch.equal(labels, labels.sort().values)


@each_planar
def test_a_planar_dataset_is_centred_and_fills_about_the_same_square(name):
    x = toy.load(name, points=20000, noise=0.0).x
    assert x.abs().max() <= 1.5
    assert (x.max(0).values - x.min(0).values).max() > 2.5
    assert x.mean(0).abs().max() < 0.05


@each_planar
def test_noise_moves_points_by_its_standard_deviation(name):
    still, noisy = (toy.load(name, points=5000, noise=noise).x.double() for noise in (0.0, 0.2))
    assert kstest((noisy - still).flatten() / 0.2, "norm").pvalue > 0.01


# The paper's datasets


def test_the_maps_in_one_dimension_are_the_papers():
    crossing, identity = toy.g_1d(), toy.identity_1d()
    assert crossing.x.tolist() == identity.x.tolist() == [[-1], [1]]
    assert crossing.y.tolist() == [[1], [-1]]
    assert identity.y.tolist() == [[-1], [1]]


@pytest.mark.parametrize("radii", [(0.5, 1.0, 1.5), (0.3, 0.3, 2.0), (1.0, 1.01, 1.02)])
@pytest.mark.parametrize("dim", [1, 2, 3, 10, 500])
def test_ball_and_shell_are_filled_uniformly_by_volume(dim, radii):
    ball, shell = pieces(toy.g(dim, inner=2000, outer=3000, radii=radii))
    r1, r2, r3 = radii
    inner, outer = radii_of(ball), radii_of(shell)
    assert inner.max() <= r1 + 1e-6
    assert outer.min() >= r2 - 1e-6
    assert outer.max() <= r3 + 1e-6
    assert kstest((inner / r1) ** dim, "uniform").pvalue > 0.01
    share = (r2 / r3) ** dim
    assert kstest(((outer / r3) ** dim - share) / (1 - share), "uniform").pvalue > 0.01


@pytest.mark.parametrize("dim", [1, 2, 3, 10])
def test_directions_are_the_same_all_around(dim):
    for x in pieces(toy.g(dim, inner=20000, outer=20000)):
        direction = x.double() / radii_of(x).unsqueeze(1)
        assert direction.mean(0).norm() < 0.02
        torch.testing.assert_close(dim * direction.t() @ direction / len(x), torch.eye(dim).double(), rtol=0, atol=0.05)


def test_angles_of_directions_in_the_plane_are_uniform():
    for x in pieces(toy.g(2)):
        assert kstest(angles_of(x) / (2 * math.pi), "uniform").pvalue > 0.01


def test_directions_do_not_depend_on_radii():
    x = pieces(toy.g(2, inner=20000))[0]
    together = np.corrcoef(radii_of(x), np.cos(angles_of(x)))
    assert abs(together[0, 1]) < 0.02


@pytest.mark.parametrize(("inner", "outer"), [(1, 1), (7, 20), (1000, 2000)])
def test_ball_and_shell_have_as_many_points_as_asked_for(inner, outer):
    ball, shell = pieces(toy.g(3, inner=inner, outer=outer))
    assert (len(ball), len(shell)) == (inner, outer)


def test_ball_and_shell_survive_more_dimensions_than_a_volume_does():
    ball, shell = pieces(toy.g(5000, inner=20, outer=20, radii=(0.01, 10.0, 100.0)))
    assert 0.009 < radii_of(ball).min() <= radii_of(ball).max() <= 0.01 + 1e-6
    assert 90 < radii_of(shell).min() <= radii_of(shell).max() <= 100 + 1e-4


def test_separable_curves_in_the_plane_lie_around_sines():
    lower, upper = pieces(toy.separable(points=10000))
    for curve, middle in ((lower, -0.7), (upper, 0.7)):
        noise = (curve[:, 1] - torch.sin(math.pi * curve[:, 0]) - middle) / 0.1
        assert kstest(noise, "norm").pvalue > 0.01
        assert kstest((curve[:, 0] + 1) / 2, "uniform").pvalue > 0.01


@pytest.mark.parametrize("dim", [1, 2, 3, 10])
def test_separable_surfaces_are_shifted_means_of_sines(dim):
    data = toy.separable(dim, points=101, shift=2.0, noise=0.0)
    assert data.dim == dim
    free, last = data.x[:, :-1], data.x[:, -1]
    height = torch.sin(math.pi * free).mean(1) if dim > 1 else torch.zeros(101)
    torch.testing.assert_close(last, height + data.y[:, 0])


def test_separable_curves_may_coincide():
    x = toy.separable(shift=0.0, noise=0.0).x
    torch.testing.assert_close(x[:, 1], torch.sin(math.pi * x[:, 0]))


# The usual datasets in the plane


def test_moons_are_two_half_circles():
    upper, lower = pieces(toy.moons(noise=0.0))
    for moon, centre, side in ((upper, (-0.5, -0.25), 1), (lower, (0.5, 0.25), -1)):
        arm = moon - torch.tensor(centre)
        torch.testing.assert_close(arm.norm(dim=1), torch.ones(500))
        assert (side * arm[:, 1]).min() > -1e-6


def test_circles_have_their_radii():
    inner, outer = pieces(toy.circles(noise=0.0))
    torch.testing.assert_close(inner.norm(dim=1), torch.full((500,), 0.75))
    torch.testing.assert_close(outer.norm(dim=1), torch.full((500,), 1.5))


@pytest.mark.parametrize("turns", [0.25, 1.5, 3.0])
def test_arms_of_spirals_wind_and_are_opposite_each_other(turns):
    negative, positive = pieces(toy.spirals(noise=0.0, turns=turns))
    for arm, start in ((negative, math.pi), (positive, 0.0)):
        radius = radii_of(arm)
        assert radius.max() <= 1.5 + 1e-6
        assert kstest((radius / 1.5) ** 2, "uniform").pvalue > 0.01
        turned = angles_of(arm) - start - 2 * math.pi * turns * (radius / 1.5).numpy()
        np.testing.assert_allclose(np.cos(turned), 1, atol=1e-6)


@pytest.mark.parametrize("cells", [2, 3, 4, 7])
def test_cells_of_a_checkerboard_alternate_and_are_filled_evenly(cells):
    data = toy.checkerboard(points=20000, cells=cells)
    cell = torch.floor((data.x + 1.5) / 3 * cells).long()
    assert torch.equal(cell.sum(1) % 2, data.labels)
    for label in (0, 1):
        counts = torch.bincount((cell[:, 0] * cells + cell[:, 1])[data.labels == label], minlength=cells**2)
        counts = counts[counts > 0].double()
        assert len(counts) == (cells**2 + 1 - label) // 2
        assert (counts - counts.mean()).abs().max() < 4 * counts.mean().sqrt()


# Loading


@pytest.mark.parametrize(("wrong", "near"), [("spiral", "spirals"), ("identity1d", "identity_1d"), ("Moons", "moons")])
def test_an_unknown_name_is_an_error_that_suggests_the_nearest(wrong, near):
    with pytest.raises(ValueError, match=f"name: takes one of g_1d, .*got '{wrong}'; did you mean '{near}'"):
        toy.load(wrong)


@pytest.mark.parametrize(
    ("name", "option", "own"),
    [
        ("g", "points", "dim, inner, outer, radii, seed"),
        ("moons", "dim", "points, noise, seed"),
        ("g_1d", "dim", "seed"),
    ],
)
def test_an_option_that_a_dataset_lacks_is_an_error_that_lists_those_it_has(name, option, own):
    with pytest.raises(ValueError, match=f"^{option}: is not an option of {name}, which takes {own}$"):
        toy.load(name, **{option: 2})


def test_options_reach_the_dataset():
    loaded, made = toy.load("g", dim=3, inner=5, outer=6, seed=2), toy.g(3, inner=5, outer=6, seed=2)
    assert torch.equal(loaded.x, made.x)


# Parts of a dataset


def test_holdout_puts_every_point_on_the_side_of_its_angle():
    data, taken = toy.g(3), [(0.0, 0.5), (2.0, 3.0), (6.0, 2 * math.pi)]
    outside, inside = data.holdout(taken)
    assert outside.name == inside.name == "g"
    assert len(outside) + len(inside) == len(data)
    assert sorted(sorted_rows(outside) + sorted_rows(inside)) == sorted_rows(data)
    assert all(any(start <= angle < end for start, end in taken) for angle in angles_of(inside.x))
    assert not any(start <= angle < end for angle in angles_of(outside.x) for start, end in taken)


def test_a_slice_contains_its_start_but_not_its_end():
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    data = Dataset("axes", x, torch.tensor([[1.0], [2.0], [3.0], [4.0]]))
    outside, inside = data.holdout([(math.pi / 2, math.pi)])
    assert inside.y.tolist() == [[2]]
    assert outside.y.tolist() == [[1], [3], [4]]


def test_a_point_just_below_the_axis_is_in_the_last_slice():
    data = Dataset(
        "near", torch.tensor([[1.0, -1e-30], [1.0, 1e-30], [1.0, -0.0]]), torch.tensor([[1.0], [2.0], [3.0]])
    )
    outside, inside = data.holdout([(6.0, 2 * math.pi)])
    assert inside.y.tolist() == [[1]]
    assert outside.y.tolist() == [[2], [3]]


def test_slices_of_holdout_may_overlap_and_come_in_any_order():
    data = toy.circles()
    one, other = data.holdout([(1.0, 2.5)])[1], data.holdout([(2.0, 2.5), (1.0, 2.2)])[1]
    assert torch.equal(one.x, other.x)


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.95])
def test_split_partitions_at_random(fraction):
    data = toy.moons()
    first, second = data.split(fraction)
    assert len(first) == round(1000 * fraction)
    assert sorted(sorted_rows(first) + sorted_rows(second)) == sorted_rows(data)
    assert abs(first.labels.float().mean() - 0.5) < 0.1
    assert torch.equal(first.x, data.split(fraction)[0].x)
    assert not torch.equal(first.x, data.split(fraction, seed=1)[0].x)


def test_numpy_gives_points_and_labels():
    data = toy.moons(points=10)
    x, labels = data.numpy()
    assert x.dtype == np.float32
    assert labels.dtype == np.int64
    assert x.shape == (10, 2)
    assert np.shares_memory(x, data.x.numpy())
    assert labels.tolist() == [0] * 5 + [1] * 5


def test_numpy_gives_float32_of_any_dataset():
    data = Dataset("own", torch.ones(3, 2, dtype=torch.float64, requires_grad=True), torch.ones(3, 1))
    assert data.numpy()[0].dtype == np.float32


def test_a_dataset_shows_its_size():
    assert repr(toy.g(3, inner=5, outer=6)) == "Dataset('g', 11 points, dim=3)"


# Slices


@PROPERTY
@given(count=st.integers(1, 40), filled=st.floats(1e-4, 1.0), seed=st.integers(0, 2**16))
def test_slices_are_sorted_and_never_overlap(count, filled, seed):
    width = filled * 2 * math.pi / count
    made = toy.slices(count, width, seed)
    assert len(made) == count
    assert made[0][0] >= 0
    assert made[-1][1] <= 2 * math.pi
    assert all(end <= start for (_, end), (start, _) in pairwise(made))
    assert all(end - start == pytest.approx(width, rel=1e-6) for start, end in made)


def test_slices_of_one_seed_are_the_same_and_of_another_differ():
    assert toy.slices(3, seed=5) == toy.slices(3, seed=5) != toy.slices(3, seed=6)


@pytest.mark.parametrize("count", [1, 3, 10, 49])
def test_slices_can_fill_the_plane_even_where_rounding_leaves_no_room(count):
    width = math.nextafter(2 * math.pi / count, math.inf)
    made = toy.slices(count, width)
    assert made[0][0] == 0
    assert made[-1][1] == pytest.approx(2 * math.pi)
    assert made[-1][1] <= 2 * math.pi
    assert all(end == pytest.approx(start) for (_, end), (start, _) in pairwise(made))


def test_places_of_a_single_slice_are_uniform():
    starts = [toy.slices(1, width=1.0, seed=seed)[0][0] for seed in range(500)]
    assert kstest(np.array(starts) / (2 * math.pi - 1), "uniform").pvalue > 0.01


def test_points_in_slices_can_be_held_out():
    data, taken = toy.g(), toy.slices(3)
    outside, inside = data.holdout(taken)
    assert len(outside) + len(inside) == len(data)
    assert len(inside) == pytest.approx(0.3 * len(data), rel=0.1)


# Errors


@pytest.mark.parametrize("dim", [0, -1, 2.0, "2", None])
@pytest.mark.parametrize("name", ["g", "separable"])
def test_a_bad_dimension_is_an_error(name, dim):
    with pytest.raises(ValueError, match=f"dim: takes a whole number above 0, got {dim!r}"):
        toy.load(name, dim=dim)


@pytest.mark.parametrize("count", [0, -1, 2.5])
@pytest.mark.parametrize("name", ["inner", "outer"])
def test_a_bad_number_of_points_in_ball_or_shell_is_an_error_that_names_it(name, count):
    with pytest.raises(ValueError, match=f"{name}: takes a whole number above 0, got {count}"):
        toy.g(**{name: count})


@pytest.mark.parametrize(
    "radii",
    [
        (0.0, 1.0, 1.5),
        (-0.5, 1.0, 1.5),
        (1.2, 1.0, 1.5),
        (0.5, 1.5, 1.5),
        (0.5, 1.0, math.inf),
        (0.5, math.nan, 1.5),
        (0.5, 1.0),
        ("a", "b", "c"),
        1.0,
    ],
    ids=str,
)
def test_radii_out_of_order_are_an_error(radii):
    with pytest.raises(ValueError, match=r"radii: takes three finite radii in order, 0 < r1 <= r2 < r3, got"):
        toy.g(radii=radii)


@pytest.mark.parametrize("points", [1, 0, -3, 10.0, True])
@each_with_points
def test_too_few_points_are_an_error(name, points):
    with pytest.raises(ValueError, match=f"points: takes a whole number from 2, got {points}"):
        toy.load(name, points=points)


@pytest.mark.parametrize("noise", [-0.1, math.nan, "a"])
@each_with_points
def test_bad_noise_is_an_error(name, noise):
    with pytest.raises(ValueError, match=f"noise: takes a number from 0, got {noise!r}"):
        toy.load(name, noise=noise)


@pytest.mark.parametrize(("name", "option"), [("moons", "noise"), ("separable", "shift"), ("spirals", "turns")])
def test_an_infinite_amount_is_an_error_that_names_it(name, option):
    with pytest.raises(ValueError, match=f"{option}: takes a finite number, got inf"):
        toy.load(name, **{option: math.inf})


@pytest.mark.parametrize(("name", "option"), [("separable", "shift"), ("spirals", "turns")])
def test_a_negative_amount_is_an_error_that_names_it(name, option):
    with pytest.raises(ValueError, match=f"{option}: takes a number from 0, got -1"):
        toy.load(name, **{option: -1})


@pytest.mark.parametrize("cells", [1, 0, 2.5])
def test_a_checkerboard_of_one_cell_is_an_error(cells):
    with pytest.raises(ValueError, match=f"cells: takes a whole number from 2, got {cells}"):
        toy.checkerboard(cells=cells)


@pytest.mark.parametrize("seed", [-1, 0.5, None, 2**64])
@each_drawn
def test_a_bad_seed_is_an_error(name, seed):
    with pytest.raises(ValueError, match=f"seed: takes a whole number from 0 .*got {seed}"):
        toy.load(name, seed=seed)


@pytest.mark.parametrize(("count", "width"), [(11, math.pi / 5), (1, 7.0), (2, math.inf)])
def test_slices_that_do_not_fit_are_an_error(count, width):
    with pytest.raises(ValueError, match=f"width: takes at most 2π / count, .* for {count} slices, got"):
        toy.slices(count, width)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((0,), "count: takes a whole number above 0, got 0"),
        ((1.5,), "count: takes a whole number above 0, got 1.5"),
        ((1, 0.0), "width: takes a number above 0, got 0.0"),
        ((1, math.nan), "width: takes a number above 0, got nan"),
    ],
)
def test_bad_numbers_of_slices_are_errors(arguments, error):
    with pytest.raises(ValueError, match=error):
        toy.slices(*arguments)


@pytest.mark.parametrize("pair", [(1.0, 1.0), (2.0, 1.0), (-0.1, 1.0), (6.0, 6.3), (0.0, math.nan), (1.0,), 1.0])
def test_a_bad_slice_is_an_error(pair):
    with pytest.raises(ValueError, match="slices: takes pairs of angles with 0 <= start < end <= 2π, got"):
        toy.g().holdout([(0.0, 1.0), pair])


def test_slices_that_are_no_sequence_are_an_error():
    with pytest.raises(ValueError, match="slices: takes a sequence"):
        toy.g().holdout(3)


@pytest.mark.parametrize("taken", [[], [(0.0, 1e-12)], [(0.0, 2 * math.pi)]], ids=str)
def test_a_holdout_with_an_empty_side_is_an_error(taken):
    with pytest.raises(ValueError, match="slices: takes slices that contain some of the points but not all, got"):
        toy.g().holdout(taken)


def test_a_holdout_in_one_dimension_is_an_error():
    with pytest.raises(ValueError, match=r"holdout: takes points of at least 2 dimensions, got .*\(3000, 1\)"):
        toy.g(1).holdout([(0.0, 1.0)])


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, 1.5, math.nan, 1, "half", 0.01, 0.99])
def test_a_split_with_an_empty_side_is_an_error(fraction):
    with pytest.raises(ValueError, match=r"fraction: takes a number between 0 and 1 .* the 10 points .*got"):
        toy.moons(points=10).split(fraction)


@pytest.mark.parametrize("name", ["x", "y"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_an_error_that_counts_them(name, bad):
    values = {"x": torch.zeros(100, 2), "y": torch.ones(100, 1)}
    values[name][[3, 50, 99]] = bad
    with pytest.raises(ValueError, match=f"{name}: takes finite values, got NaN or infinity in 3 of 100 rows"):
        Dataset("own", **values)


@pytest.mark.parametrize("shape", [(5,), (5, 2, 1), (0, 2), (5, 0)], ids=str)
def test_points_of_a_wrong_shape_are_an_error(shape):
    with pytest.raises(ValueError, match=r"x: takes at least one point, of shape \[n, d\], got"):
        Dataset("own", torch.zeros(shape), torch.zeros(5, 1))


@pytest.mark.parametrize("shape", [(4, 1), (5,), (5, 2)], ids=str)
def test_targets_of_a_wrong_shape_are_an_error(shape):
    with pytest.raises(ValueError, match=r"y: takes a target for each point, of shape \[5, 1\], got"):
        Dataset("own", torch.zeros(5, 2), torch.zeros(shape))


@pytest.mark.parametrize("value", [[[1.0], [2.0]], np.ones((2, 1)), torch.ones(2, 1, dtype=torch.int64)], ids=type)
@pytest.mark.parametrize("name", ["x", "y"])
def test_values_of_a_wrong_type_are_an_error(name, value):
    values = {"x": torch.zeros(2, 1), "y": torch.zeros(2, 1), name: value}
    with pytest.raises(TypeError, match=f"{name}: takes a tensor of floating point values, got"):
        Dataset("own", **values)


def test_a_target_of_zero_has_no_label():
    with pytest.raises(ValueError, match="labels: takes targets below or above 0, got 0 in 2 of 3 rows"):
        _ = Dataset("own", torch.zeros(3, 1), torch.tensor([[0.0], [1.0], [0.0]])).labels
