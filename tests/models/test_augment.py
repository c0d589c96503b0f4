import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import anode
from anode.models.augment import Augment, Zeros
from helpers.draws import normal

PROPERTY = settings(max_examples=50)

shapes = st.lists(st.integers(1, 4), min_size=1, max_size=5)


@st.composite
def augmentations(draw):
    """An input, how many zeros, and the dimension they go to, counted from the end."""
    x = normal(*draw(shapes))
    return x, draw(st.integers(0, 4)), draw(st.integers(-x.ndim, -1))


@PROPERTY
@given(augmentations())
def test_zeros_are_appended_after_the_input_and_nowhere_else(case):
    x, extra, dim = case
    h = Zeros(extra, dim)(x)
    expected = list(x.shape)
    expected[dim] += extra
    assert list(h.shape) == expected
    assert h.dtype == x.dtype
    assert torch.equal(h.narrow(dim, 0, x.shape[dim]), x)
    assert not h.narrow(dim, x.shape[dim], extra).any()


@PROPERTY
@given(augmentations())
def test_remove_gives_the_input_back(case):
    x, extra, dim = case
    zeros = Zeros(extra, dim)
    assert torch.equal(zeros.remove(zeros(x)), x)


@PROPERTY
@given(augmentations())
def test_remove_ignores_what_became_of_the_zeros(case):
    x, extra, dim = case
    zeros = Zeros(extra, dim)
    h = zeros(x)
    moved = h + zeros(torch.ones_like(x)).sub(1.0)  # -1 where the zeros were
    assert torch.equal(zeros.remove(moved), x)


def test_images_get_channels_of_zeros():
    x = normal(7, 3, 5, 4)
    h = Zeros(2, dim=-3)(x)
    assert h.shape == (7, 5, 5, 4)
    assert torch.equal(h[:, :3], x)
    assert not h[:, 3:].any()


def test_no_zeros_leave_the_input_itself():
    x = normal(5, 2)
    assert Zeros(0)(x) is x


def test_the_gradient_passes_through_to_the_input():
    x = normal(3, 2).requires_grad_()
    assert torch.autograd.gradcheck(Zeros(2), (x,))
    assert torch.autograd.gradcheck(lambda x: Zeros(2).remove(Zeros(2)(x)), (x,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_dtype_stays(dtype):
    assert Zeros(2)(torch.ones(3, 1, dtype=dtype)).dtype == dtype


def test_zeros_have_no_parameters_and_show_their_settings():
    zeros = Zeros(2, dim=-3)
    assert not list(zeros.parameters())
    assert not zeros.state_dict()
    assert repr(zeros) == "Zeros(2, dim=-3)"


@pytest.mark.parametrize("extra", [-1, 1.0, 0.5, math.nan, "2", None, True])
def test_a_bad_number_of_zeros_is_an_error_that_names_extra(extra):
    with pytest.raises(ValueError, match="extra: takes a whole number from 0"):
        Zeros(extra)


@pytest.mark.parametrize("extra", [-1, 1.0, "2", None, True])
@pytest.mark.parametrize(
    "build",
    [
        lambda extra: anode.Flow(anode.MLPField(2), augment=extra),
        lambda extra: anode.NeuralODE(2, 1, augment=extra),
    ],
    ids=["Flow", "NeuralODE"],
)
def test_models_refuse_it_by_the_name_of_their_own_argument(build, extra):
    with pytest.raises(ValueError, match="augment: takes a whole number from 0"):
        build(extra)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_dimension_counted_from_the_front_is_right_or_refused(dim):
    x = normal(2, 3, 4, 5)
    try:
        h = Zeros(2, dim)(x)
    except (ValueError, IndexError):
        return
    expected = list(x.shape)
    expected[dim] += 2
    assert list(h.shape) == expected


def test_an_augmentation_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        Augment()


class Learned(Augment):
    """Appends two values that are learned."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return torch.cat([x, self.values.expand(*x.shape[:-1], 2)], -1)

    def remove(self, h):
        return h[..., :-2]


class MoreChannels(Augment):
    """Appends a channel of ones."""

    def forward(self, x):
        return torch.cat([x, torch.ones_like(x[:, :1])], 1)

    def remove(self, h):
        return h[:, :-1]


@pytest.mark.parametrize("build", [partial(anode.Flow, anode.MLPField(3)), partial(anode.NeuralODE, 2, 1)])
def test_a_module_that_is_no_augment_is_an_error_that_says_what_to_derive_from(build):
    said = (
        r"augment: takes a whole number from 0, or an anode\.Augment, got Linear.*; derive the module from anode\.Aug"
    )
    with pytest.raises(ValueError, match=said):
        build(augment=nn.Linear(2, 3))


def test_a_model_takes_an_augmentation_and_trains_it():
    model = anode.NeuralODE(2, 1, augment=Learned())
    x, y = torch.rand(16, 2), torch.rand(16, 1)
    assert model(x).shape == (16, 1)
    assert model.features(x).shape == (16, 4)
    assert (model.flow.inverse(model.features(x)) - x).abs().max() < 0.01
    anode.fit(model, (x, y), epochs=1, progress=False)
    assert not torch.equal(model.flow.augment.values, torch.ones(2))
    with pytest.raises(TypeError, match=r"augment: cannot describe how to build a Learned; .*@anode\.register"):
        anode.save(model, "nowhere")


def test_an_image_model_takes_an_augmentation():
    model = anode.ImageNeuralODE((1, 4, 4), 3, 4, augment=MoreChannels())
    assert model(torch.rand(2, 1, 4, 4)).shape == (2, 3)
    assert model.features(torch.rand(2, 1, 4, 4)).shape == (2, 2, 4, 4)


def test_an_augmentation_that_changes_other_dimensions_is_refused():
    with pytest.raises(ValueError, match=r"augment: takes an Augment that changes only the size of dimension -3"):
        anode.ImageNeuralODE((1, 4, 4), 3, 4, augment=Learned())


class Lift(anode.Augment):
    """Appends a linear map of the input, and has no way back."""

    def __init__(self, features, extra):
        super().__init__()
        self.lift = torch.nn.Linear(features, extra)

    def forward(self, x):
        return torch.cat([x, self.lift(x)], dim=-1)


def test_an_augmentation_without_a_way_back_is_trained_with_the_model():
    model = anode.NeuralODE(2, 1, augment=Lift(2, 3))
    before = model.flow.augment.lift.weight.detach().clone()
    history = anode.fit(model, (torch.rand(64, 2), torch.rand(64, 1)), epochs=2)
    assert history.failures == []
    assert not torch.equal(model.flow.augment.lift.weight, before)


def test_an_inverse_without_a_way_back_says_what_is_missing_before_it_solves():
    flow = anode.Flow(anode.MLPField(5), augment=Lift(2, 3))
    with pytest.raises(NotImplementedError, match=r"inverse: Lift defines no remove\(h\)"):
        flow.inverse(torch.rand(4, 5))


def test_building_a_model_leaves_batch_statistics_and_modes_as_they_are():
    normed = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout().eval())
    model = anode.NeuralODE(2, 1, augment=anode.Learned(normed))
    assert model(torch.rand(8, 2)).shape == (8, 1)
    assert (normed[1].training, normed[2].training) == (True, False)
    channels = anode.Learned(nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)), dim=-3)
    anode.ImageNeuralODE((1, 4, 4), 3, 4, augment=channels)
    assert channels.network[1].num_batches_tracked == 0
