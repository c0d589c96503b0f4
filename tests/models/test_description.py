import json
import math

import pytest
import torch
from torch import nn

import anode
from anode.models.alike import configuration
from anode.models.description import LAYERS, built_from, description_of

MADE = [
    *(nn.Linear(2, 3), nn.Linear(2, 3, bias=False), nn.Bilinear(2, 2, 3), nn.Identity(), nn.Flatten(2)),
    *(nn.Unflatten(1, (2, 2)), nn.Dropout(0.3), nn.Dropout2d(0.2), nn.MultiheadAttention(8, 2, batch_first=True)),
    *(
        nn.MultiheadAttention(8, 2, bias=False, add_bias_kv=True),
        nn.Conv1d(1, 2, 3),
        nn.Conv2d(1, 4, 3, padding="same"),
    ),
    *(nn.Conv3d(1, 2, 3, bias=False), nn.ConvTranspose1d(1, 2, 3), nn.ConvTranspose2d(1, 2, 3, stride=2)),
    *(nn.ConvTranspose3d(1, 2, 3), nn.LayerNorm((3, 2)), nn.LayerNorm(3, elementwise_affine=False)),
    *(nn.GroupNorm(2, 4), nn.BatchNorm1d(3, momentum=0.2), nn.BatchNorm2d(3, affine=False), nn.InstanceNorm1d(3)),
    *(nn.InstanceNorm2d(3, affine=True), nn.AvgPool1d(2), nn.AvgPool2d((2, 3)), nn.MaxPool1d(2), nn.MaxPool2d(2)),
    *(nn.AdaptiveAvgPool1d(2), nn.AdaptiveAvgPool2d(1), nn.Upsample(scale_factor=2), nn.ReLU(), nn.LeakyReLU(0.2)),
    *(nn.ELU(0.5), nn.SELU(), nn.CELU(), nn.GELU("tanh"), nn.SiLU(), nn.Mish(), nn.Tanh(), nn.Sigmoid()),
    *(nn.Softplus(2.0), nn.Softsign(), nn.LogSigmoid(), nn.Tanhshrink(), nn.PReLU(3), nn.Softmax(-1), nn.LogSoftmax(1)),
    *(nn.Dropout1d(0.1), nn.Dropout3d(0.1), nn.AlphaDropout(0.2), nn.PixelShuffle(2), nn.ZeroPad2d((1, 2, 3, 4))),
    *(nn.Embedding(5, 3, padding_idx=0, max_norm=1.0), nn.Embedding(5, 3), nn.RMSNorm(3, eps=1e-3), nn.RMSNorm((2, 3))),
    *(nn.BatchNorm3d(2), nn.InstanceNorm3d(2), nn.AvgPool3d(2), nn.MaxPool3d(2), nn.AdaptiveMaxPool2d((1, 2))),
    *(nn.ReLU6(), nn.GLU(1), nn.Hardtanh(-2.0, 0.5), nn.Hardswish(), nn.Hardsigmoid()),
    nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Tanh(), nn.Linear(2, 1))),
]


@pytest.mark.parametrize("layer", MADE, ids=lambda layer: type(layer).__name__)
def test_layers_of_torch_are_built_again_from_json(layer):
    found = built_from(json.loads(json.dumps(description_of(layer))))
    assert repr(found) == repr(layer)
    assert {k: v.shape for k, v in found.state_dict().items()} == {k: v.shape for k, v in layer.state_dict().items()}


def test_every_layer_that_is_listed_is_tested():
    assert {type(layer) for layer in MADE} == {*LAYERS, nn.Sequential}


@anode.register
class Named(nn.Module):
    def __init__(self, size, *sizes, flag=False, **others):
        super().__init__()
        self.given = (size, sizes, flag, others)


class Heir(Named):
    """A subclass, whose own arguments nobody has recorded."""


@anode.register
def made(width=3):
    return nn.Linear(width, 1)


def test_arguments_come_back_however_they_were_passed():
    module = Named(1, 2, 3, flag=True, more=(None, {"a": [0.5]}), inner=nn.ReLU())
    found = built_from(json.loads(json.dumps(description_of(module))))
    size, sizes, flag, others = found.given
    assert (size, sizes, flag, others["more"]) == (1, (2, 3), True, (None, {"a": [0.5]}))
    assert isinstance(others["inner"], nn.ReLU)


def test_what_a_function_built_is_built_by_it_again():
    assert description_of(made(width=5)) == {"module": "made", "settings": {"width": 5}}
    assert built_from(description_of(made())).in_features == 3


def test_a_subclass_has_to_be_registered_itself():
    with pytest.raises(TypeError, match=r"cannot describe how to build a Heir; decorate the class.*@anode\.register"):
        description_of(Heir(1))


def test_two_things_cannot_have_one_name():
    class Linear(nn.Module):
        pass

    with pytest.raises(ValueError, match=r"name: 'Linear' is already registered by torch\.nn; pass another name="):
        anode.register(Linear)
    anode.register(Linear, name="MyLinear")
    assert description_of(Linear()) == {"module": "MyLinear", "settings": {}}


def test_what_is_no_class_of_modules_is_refused():
    with pytest.raises(
        TypeError,
        match=r"builder: takes a subclass of .*, or a function that returns a module, got <class 'dict'>",
    ):
        anode.register(dict)


@pytest.mark.parametrize(
    "value", [{"module": "Named", "settings": {"size": 1, "sizes": [], "nonsense": 2}}, {"module": 3, "settings": {}}]
)
def test_arguments_and_names_that_do_not_exist_are_refused(value):
    with pytest.raises(ValueError, match=r"takes no argument 'nonsense'|3 is not registered"):
        built_from(value)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: anode.register(5), r"builder: takes a subclass of torch\.nn\.Module, or a function .*, got 5"),
        (lambda: anode.register(nn.Linear(1, 1)), r"builder: takes .*, got Linear\(.*; register its class"),
        (lambda: anode.register(lambda: nn.Linear(1, 1)), "name: takes a name to use in files, .*got '<lambda>'"),
        (lambda: anode.register(Heir, name=5), "name: takes a name to use in files, .*got 5"),
        (lambda: anode.register(lambda: 3, name="three")(), "builder: takes .*, got three, which returned a int"),
    ],
    ids=["number", "module", "lambda", "name", "no module"],
)
def test_a_mistake_in_what_is_registered_is_named(call, said):
    with pytest.raises((TypeError, ValueError), match=said):
        call()


@pytest.mark.parametrize("limit", [math.inf, -math.inf, math.nan])
def test_numbers_that_json_lacks_can_be_arguments(limit, tmp_path):
    @anode.register
    class Bounded(nn.Module):
        def __init__(self, limit):
            super().__init__()
            self.limit, self.line = limit, nn.Linear(1, 1)

        def forward(self, t, h):
            return self.line(h)

    found = anode.load(anode.save(Bounded(limit), tmp_path / "bounded"))
    assert found.limit == pytest.approx(limit, nan_ok=True)
    assert configuration(Bounded(limit)) == configuration(found)


def test_a_module_that_was_built_before_its_class_was_registered_is_refused_with_a_way_out():
    class Late(torch.nn.Module):
        pass

    module = Late()
    anode.register(Late, name="registered late")
    with pytest.raises(TypeError, match=r"built before Late was registered.*build it again"):
        description_of(module)
