import pytest
import torch
from torch import nn

import anode
from anode.models.saving import load, save

COUNTS = {
    # image, classes, filters, augment: without time, with time
    ((1, 28, 28), 10, 92, 0): (84_395, 85_316),
    ((1, 28, 28), 10, 64, 5): (84_816, 85_462),
    ((3, 32, 32), 10, 125, 0): (172_358, 173_611),
    ((3, 32, 32), 10, 64, 10): (171_799, 172_452),
    ((3, 64, 64), 10, 164, 0): (366_269, 367_912),
    ((3, 64, 64), 10, 64, 5): (365_714, 366_362),
    ((3, 64, 64), 200, 164, 0): (2_701_179, 2_702_822),
    ((3, 64, 64), 200, 64, 5): (6_591_824, 6_592_472),
}


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def model_of(**settings) -> anode.ImageNeuralODE:
    torch.manual_seed(0)
    return anode.ImageNeuralODE((2, 6, 4), 3, 5, **settings)


@pytest.mark.parametrize("time", [False, True])
@pytest.mark.parametrize("case", COUNTS, ids=str)
def test_the_numbers_of_parameters_are_the_papers(case, time):
    image, classes, filters, augment = case
    with torch.device("meta"):
        model = anode.ImageNeuralODE(image, classes, filters, augment=augment, time=time)
    assert sum(p.numel() for p in model.parameters()) == COUNTS[case][time]


@pytest.mark.parametrize("augment", [0, 2])
def test_it_is_a_flow_from_the_image_and_zeros_and_then_a_linear_map(augment):
    model, x = model_of(augment=augment), images(4, 2, 6, 4)
    outcome = model.run(x)
    start = torch.cat([x, torch.zeros(4, augment, 6, 4)], 1)
    end = anode.solve(model.flow.field, start, (0.0, 1.0), rtol=1e-3, atol=1e-3).y1
    torch.testing.assert_close(outcome.features, end)
    torch.testing.assert_close(outcome.prediction, nn.functional.linear(end.flatten(1), *model.head.parameters()))
    torch.testing.assert_close(model(x), outcome.prediction)


def test_the_gradient_reaches_every_parameter():
    model = model_of(augment=1)
    model(images(4, 2, 6, 4)).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


def test_the_linear_map_may_see_the_channels_of_the_image_alone():
    model, x = model_of(augment=3, head_channels=2), images(4, 2, 6, 4)
    plain = model_of()
    assert model.head.weight.shape == plain.head.weight.shape
    outcome = model.run(x)
    seen = outcome.features[:, :2].flatten(1)
    torch.testing.assert_close(outcome.prediction, seen @ model.head.weight.mT + model.head.bias)


def test_solving_backwards_gives_the_image_back():
    model, x = model_of(augment=1, activation="tanh", rtol=1e-6, atol=1e-6), images(4, 2, 6, 4)
    torch.testing.assert_close(model.flow.inverse(model.features(x)), x, atol=1e-4, rtol=0)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["first", "last"])
def test_the_layout_of_the_images_in_memory_does_not_matter(layout):
    model, x = model_of(augment=1), images(4, 2, 6, 4)
    torch.testing.assert_close(model(x.contiguous(memory_format=layout)), model(x))


def test_a_model_that_was_saved_is_the_same(tmp_path):
    model = model_of(augment=1, head_channels=1, time=False, activation="tanh", rtol=1e-4)
    save(model, tmp_path / "model")
    found = load(tmp_path / "model")
    assert repr(found) == repr(model)
    assert torch.equal(found(images(4, 2, 6, 4)), model(images(4, 2, 6, 4)))


@pytest.mark.parametrize("shape", [(4, 1, 6, 4), (4, 2, 4, 6), (2, 6, 4), (4, 48)], ids=str)
def test_images_of_another_shape_are_an_error_that_names_x(shape):
    with pytest.raises(ValueError, match=r"x: takes images of shape \[batch, 2, 6, 4\], got"):
        model_of()(images(*shape))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image": (28, 28)}, "image: takes three numbers: channels, height and width"),
        ({"image": 28}, "image: takes three numbers"),
        ({"image": (1, 0, 28)}, "image: takes a whole number above 0, got 0"),
        ({"classes": 0}, "classes: takes a whole number above 0, got 0"),
        ({"filters": 0}, "filters: takes a whole number above 0, got 0"),
        ({"augment": -1}, "augment: takes a whole number from 0, got -1"),
        ({"head_channels": 2}, "head_channels: takes a whole number from 1 to the 1 channels of the state, got 2"),
        ({"rtol": -1.0}, "rtol: takes"),
    ],
    ids=str,
)
def test_a_mistake_in_the_settings_is_named(settings, message):
    with pytest.raises(ValueError, match=message):
        anode.ImageNeuralODE(**{"image": (1, 8, 8), "classes": 10, **settings})


def test_members_of_a_stack_compute_what_they_do_alone():
    models = [anode.models.ensemble.from_seed(model_of, seed) for seed in (1, 2, 3)]
    x = torch.stack([images(4, 2, 6, 4, seed=seed) for seed in (1, 2, 3)])
    stacked = anode.stack(models)
    assert stacked.members == 3
    for model, inputs, outputs in zip(models, x, stacked(x), strict=True):
        torch.testing.assert_close(outputs, model(inputs), atol=1e-5, rtol=1e-4)
    with pytest.raises(ValueError, match=r"x: takes images of shape \[3, batch, 2, 6, 4\]"):
        stacked(x[:2])


def test_channels_are_added_to_the_images_of_a_flow_as_well():
    flow = anode.Flow(anode.ConvField(2 + 3, 4), augment=3)
    assert flow(images(4, 2, 6, 4)).shape == (4, 5, 6, 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_of_half_precision_is_trained_and_its_history_can_be_kept(dtype, tmp_path):
    model = anode.ImageNeuralODE((1, 4, 4), 10, 3).to(dtype)
    data = images(8, 1, 4, 4).to(dtype), torch.arange(8)
    points = anode.Snapshots(data[0][:2], at=[0, 1])
    options = {"epochs": 1, "batch_size": 4, "loss": "cross_entropy", "snapshots": points}
    history = anode.fit(model, data, checkpoint=tmp_path / "states", **options)
    history.save(tmp_path / "history.json")
    assert len(anode.History.load(tmp_path / "history.json")) == 2
