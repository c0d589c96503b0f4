import json
import pickle
import re
import time
from functools import partial

import pytest
import torch

import anode
from anode import Discrete, Stored
from anode.files import DamagedFileError
from anode.models.description import built_from, description_of
from anode.models.saving import load, save
from anode.storage import read_json, read_tensors, write_described
from helpers.editing import change
from helpers.folders import names_in

BUILDERS = {
    "NeuralODE": lambda: anode.NeuralODE(2, 1, 8),
    "augmented": lambda: anode.NeuralODE(
        3, 2, 6, augment=2, layers=1, time=False, activation="tanh", rtol=1e-5, t1=0.5, max_steps=50, gradient="stored"
    ),
    "fixed steps": lambda: anode.NeuralODE(2, 1, 8, method="rk4", step_size=0.1, control="sample"),
    "ResNet": lambda: anode.ResNet(2, 3, 8, 2, activation="softplus"),
}
each_model = pytest.mark.parametrize("name", BUILDERS)
each_kind = pytest.mark.parametrize("members", [None, 1, 3])


def model_of(name: str = "NeuralODE", members: int | None = None, seed: int = 0):
    torch.manual_seed(seed)
    return BUILDERS[name]() if members is None else anode.seeded(BUILDERS[name], range(seed, seed + members))


def input_of(model) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    shape = (5, model.in_features) if model.members is None else (model.members, 5, model.in_features)
    dtype = next(model.parameters()).dtype
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


@each_model
@each_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_comes_back_as_it_was(name, members, dtype, tmp_path):
    model = model_of(name, members).to(dtype)
    save(model, tmp_path / "model")
    found = load(tmp_path / "model")
    assert type(found) is type(model)
    assert repr(found) == repr(model)
    assert (found.members, found.settings) == (model.members, model.settings)
    for (ours, a), (theirs, b) in zip(model.named_parameters(), found.named_parameters(), strict=True):
        assert ours == theirs
        assert a.dtype == b.dtype
        assert b.requires_grad
        assert torch.equal(a, b)
    assert torch.equal(found(input_of(model)), model(input_of(model)))


def test_the_files_are_two_json_and_safetensors(tmp_path):
    path = save(model_of(), tmp_path / "runs" / "best.v1")
    assert path == tmp_path / "runs" / "best.v1.json"
    assert names_in(tmp_path / "runs") == ["best.v1.json", "best.v1.safetensors"]
    content = read_json(path)
    assert content["format"] == "anode model 2"
    assert content["model"] == "NeuralODE"
    assert content["version"] == anode.__version__
    assert content["settings"]["hidden"] == 8
    assert torch.equal(load(str(tmp_path / "runs" / "best.v1"))(torch.ones(1, 2)), model_of()(torch.ones(1, 2)))


def test_saving_again_replaces_a_model(tmp_path):
    save(model_of("NeuralODE", 3), tmp_path / "model")
    save(model_of("ResNet"), tmp_path / "model")
    assert isinstance(load(tmp_path / "model"), anode.ResNet)
    assert names_in(tmp_path) == ["model.json", "model.safetensors"]


def test_a_trained_model_comes_back_and_can_be_trained_on(tmp_path):
    model, data = model_of(), anode.datasets.g(2, inner=10, outer=20)
    anode.fit(model, data, epochs=1, batch_size=10, progress=False)
    save(model, tmp_path / "model")
    other = load(tmp_path / "model")
    for each in (model, other):
        anode.fit(each, data, epochs=1, batch_size=10, progress=False, seed=5)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_both_are_at_hand_as_anode_save_and_anode_load(tmp_path):
    anode.save(model_of(), tmp_path / "model")
    assert isinstance(anode.load(tmp_path / "model"), anode.NeuralODE)


def test_what_save_returns_can_be_loaded(tmp_path):
    assert isinstance(load(save(model_of(), tmp_path / "model")), anode.NeuralODE)


def test_loading_leaves_the_global_random_numbers_alone(tmp_path):
    save(model_of(), tmp_path / "model")
    state = torch.get_rng_state()
    load(tmp_path / "model")
    assert torch.equal(torch.get_rng_state(), state)


# What cannot be saved


class Special(anode.NeuralODE):
    """What a subclass does cannot be known from a file."""


def test_a_subclass_is_an_error_that_says_what_to_do_and_nothing_is_written(tmp_path):
    said = r"model: cannot describe how to build a Special; decorate the class.* with @anode\.register"
    with pytest.raises(TypeError, match=said):
        save(Special(2, 1), tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_an_estimator_is_an_error_that_names_its_own_method(tmp_path):
    with pytest.raises(TypeError, match=r"model: takes a torch\.nn\.Module, got ANODEClassifier; call its own save"):
        save(anode.ANODEClassifier(), tmp_path / "model")


@pytest.mark.parametrize(
    "module",
    [anode.Flow(anode.MLPField(3), augment=1), anode.MLPField(2), torch.nn.Linear(2, 1), anode.Zeros(2)],
    ids=["Flow", "MLPField", "Linear", "Zeros"],
)
def test_flows_fields_and_layers_come_back_too(module, tmp_path):
    save(module, tmp_path / "module")
    found = load(tmp_path / "module")
    assert repr(found) == repr(module)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), found.parameters(), strict=True))


def test_what_versions_before_wrote_can_be_read(tmp_path):
    model = anode.NeuralODE(2, 1, 8, augment=1, rtol=1e-5, max_steps=50, gradient=anode.Continuous(rtol=1e-4))
    path = save(model, tmp_path / "model")
    content = read_json(path)
    settings = content["settings"]
    solver = settings.pop("solver")["solver"] | {"control": None}
    before = {**content, "format": "anode model 1", "settings": {**settings, **solver}}
    write_described(path, before, path.with_suffix(".safetensors"), model.state_dict())
    found = load(path)
    assert found.flow.solver == model.flow.solver
    assert torch.equal(found(torch.ones(1, 2)), model(torch.ones(1, 2)))


def test_a_setting_changed_after_construction_is_saved_as_it_is(tmp_path):
    model = model_of()
    model.flow.field.activation, model.flow.solver = "tanh", anode.Solver(rtol=1e-6)
    found = load(save(model, tmp_path / "model"))
    assert (found.flow.field.activation, found.flow.solver) == ("tanh", anode.Solver(rtol=1e-6))


# Models made of one's own parts


@anode.register
class Gate(torch.nn.Module):
    """A field with layers of torch, one of them given."""

    def __init__(self, dim, *widths, body=None, scale=1.0, **more):
        super().__init__()
        self.lines = torch.nn.ModuleList(torch.nn.Linear(dim, dim) for _ in widths)
        self.body, self.scale = body or torch.nn.Tanh(), scale

    def forward(self, t, h):
        for line in self.lines:
            h = self.body(line(h)) * (1 + t)
        return self.scale * h


@anode.register
def foreign(width):
    """A module of a class that is not ours to decorate."""
    return torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.ReLU(), torch.nn.Linear(width, 2))


class Unknown(torch.nn.Module):
    def forward(self, t, h):
        return -h


def composed():
    body = torch.nn.Sequential(torch.nn.LayerNorm(3), torch.nn.GELU("tanh"))
    field = Gate(3, 1, 2, body=body, scale=0.5, note=("a", [1, None], {"b": True}))
    return anode.NeuralODE(field=field, head=foreign(5), augment=anode.Zeros(1), rtol=1e-4)


@each_kind
def test_a_model_of_registered_parts_comes_back_as_it_was(members, tmp_path):
    model = composed() if members is None else anode.seeded(composed, range(members))
    found = load(save(model, tmp_path / "model"))
    x = torch.rand(*(() if members is None else (members,)), 4, 2)
    assert (repr(found), found.members) == (repr(model), members)
    assert torch.equal(found(x), model(x))


def test_what_was_loaded_can_be_saved_again(tmp_path):
    first = save(composed(), tmp_path / "first")
    second = save(load(first), tmp_path / "second")
    assert read_json(second)["settings"] == read_json(first)["settings"]


@pytest.mark.parametrize("builder", [Gate, foreign, anode.MLPField, torch.nn.Linear])
def test_a_registered_builder_is_a_value_itself(builder):
    assert built_from(json.loads(json.dumps(description_of(builder)))) is builder


def test_a_builder_keeps_the_arguments_that_partial_gives_it():
    described = description_of(partial(Gate, scale=0.5, body=torch.nn.GELU("tanh")))
    found = built_from(json.loads(json.dumps(described)))
    assert found.func is Gate
    assert (found.keywords["scale"], repr(found.keywords["body"])) == (0.5, "GELU(approximate='tanh')")


@pytest.mark.parametrize(
    "builder", [Unknown, lambda width: Gate(width), partial(Gate, 3)], ids=["class", "lambda", "positional"]
)
def test_a_builder_that_cannot_be_described_is_refused(builder):
    with pytest.raises(TypeError, match=r"field: cannot describe .*; decorate the class or function with @anode\.reg"):
        description_of(builder, "field")


def test_a_module_of_a_function_that_is_not_registered_here_is_refused():
    module = foreign(5)
    module.__dict__["_recipe"] = "registered in another process"
    with pytest.raises(TypeError, match="cannot describe how to build a Sequential"):
        description_of(module)


def test_zeros_in_another_dimension_than_the_fields_come_back_there(tmp_path):
    head = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 2))
    model = anode.NeuralODE(field=torch.nn.Conv2d(3, 3, 3, padding=1), head=head, augment=anode.Zeros(2, dim=-3))
    found = load(save(model, tmp_path / "model"))
    assert found.flow.augment.dim == -3
    found = load(save(model.flow, tmp_path / "flow"))
    assert found.augment.dim == -3


def test_a_part_that_is_not_registered_is_named(tmp_path):
    with pytest.raises(TypeError, match=r"field: cannot describe how to build a Unknown; decorate the class"):
        save(anode.NeuralODE(field=Unknown(), head=torch.nn.Linear(2, 1)), tmp_path / "model")


def test_parameters_come_back_tied_frozen_and_in_their_own_precision(tmp_path):
    head = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    head[1].weight = head[0].weight
    model = anode.NeuralODE(2, field=torch.nn.Sequential(torch.nn.Linear(2, 2)), head=head)
    model.flow.requires_grad_(False)
    model.head[1].bias.data = model.head[1].bias.data.double()
    found = load(save(model, tmp_path / "model"))
    assert [p.requires_grad for p in found.flow.parameters()] == [False, False]
    assert found.head[1].bias.dtype == torch.float64
    assert found.head[0].weight.dtype == torch.float32
    assert torch.equal(found.head[1].weight, head[0].weight)
    assert found.head[1].weight is found.head[0].weight


@anode.register
class Counted(torch.nn.Module):
    """Computes with numbers and changes its argument when it is made."""

    def __init__(self, sizes):
        super().__init__()
        self.rates = [rate.item() for rate in torch.linspace(0, 1, sizes.pop(0))]
        self.line = torch.nn.Linear(2, 2)

    def forward(self, t, h):
        return self.line(h) * len(self.rates)


def test_a_class_that_computes_when_it_is_made_comes_back(tmp_path):
    flow = anode.Flow(Counted([3, 4]))
    x = torch.rand(4, 2)
    assert torch.equal(load(save(flow, tmp_path / "flow"))(x), flow(x))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["field", "settings"], {"dim": 2, "hidden": 4, "layers": 10**9, "time": True, "activation": "relu"}),
        (["field"], {"module": "Linear", "settings": {"in_features": 2, "out_features": 2, "device": "meta"}}),
        (["field"], {"module": "GroupNorm", "settings": {"num_groups": 0, "num_channels": 2}}),
    ],
    ids=["layers", "device", "division"],
)
def test_a_description_that_asks_for_nonsense_is_an_error_at_once(path, value, tmp_path):
    file = save(anode.Flow(anode.MLPField(2, 4)), tmp_path / "flow")
    content = read_json(file)
    inner = content["settings"]
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    write_described(file, content, file.with_suffix(".safetensors"), anode.Flow(anode.MLPField(2, 4)).state_dict())
    with pytest.raises(DamagedFileError, match="that can be loaded"):
        load(file)


def test_a_part_with_a_hook_is_refused(tmp_path):
    model = composed()
    model.head[0].register_forward_hook(lambda *_: None)
    model.head.__dict__.pop("_recipe")
    with pytest.raises(TypeError, match="hooks cannot be described"):
        save(model, tmp_path / "model")


def test_a_part_that_was_replaced_is_refused_when_it_is_saved(tmp_path):
    model = composed()
    model.flow.field.lines.append(torch.nn.Linear(3, 3))
    with pytest.raises(TypeError, match=r"model: was modified after it was built.*lines\.2"):
        save(model, tmp_path / "model")


def test_parameters_that_parts_share_come_back_shared(tmp_path):
    line = torch.nn.Linear(2, 2)
    model = anode.NeuralODE(field=torch.nn.Sequential(line, torch.nn.Tanh()), head=line)
    found = load(save(model, tmp_path / "model"))
    assert found.head.weight is found.flow.field[0].weight
    assert found.head.bias is found.flow.field[0].bias
    assert torch.equal(found(torch.ones(1, 2)), model(torch.ones(1, 2)))


def test_names_of_shared_parameters_that_do_not_exist_are_an_error_that_names_the_file(tmp_path):
    path = save(anode.NeuralODE(2, 1, 8), tmp_path / "model")
    content = read_json(path)
    write_described(path, {**content, "tied": [["head.weight", "head.other"]]}, path.with_suffix(".safetensors"), {})
    with pytest.raises(DamagedFileError, match="model"):
        load(path)


@anode.register
class Scaled(torch.nn.Module):
    """A field that stores its arguments under their names."""

    def __init__(self, body, scale=1.0):
        super().__init__()
        self.body, self.scale = body, scale

    def forward(self, t, h):
        return self.scale * self.body(h)


def test_an_argument_that_a_class_stores_is_saved_as_it_is_now(tmp_path):
    field = Scaled(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)))
    field.body, field.scale = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh()), 3.0
    flow, x = anode.Flow(field), torch.rand(4, 2)
    assert torch.equal(load(save(flow, tmp_path / "flow"))(x), flow(x))
    assert description_of(Scaled(torch.nn.Tanh())) == {
        "module": "Scaled",
        "settings": {"body": {"module": "Tanh", "settings": {}}},
    }


@anode.register
class Whole(torch.nn.Module):
    """A model that builds its parts itself."""

    def __init__(self):
        super().__init__()
        self.flow = anode.Flow(anode.MLPField(2, 4))
        self.head = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.ReLU())

    def forward(self, x):
        return self.head(self.flow(x))


def with_solver(model):
    model.flow.solver = anode.Solver(rtol=1e-8)


def with_activation(model):
    model.flow.field.activation = "tanh"


def with_layer(model):
    model.head[1] = torch.nn.Tanh()


def with_more(model):
    model.head.append(torch.nn.Tanh())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (with_solver, r"flow\.solver is Solver\(rtol=1e-08\), its settings say Solver\(atol"),
        (with_activation, r"flow\.field\.activation is 'tanh', its settings say 'relu'"),
        (with_layer, r"its part 'head\.1' is a Tanh, its settings say a ReLU"),
        (with_more, r"its parts differ from those of its settings in 'head\.2' and nothing"),
    ],
)
def test_a_change_that_the_arguments_do_not_describe_is_refused(change, said, tmp_path):
    model = Whole()
    assert repr(load(save(model, tmp_path / "model"))) == repr(model)
    change(model)
    with pytest.raises(TypeError, match=rf"model: was modified after it was built.*{said}.*anode\.register"):
        save(model, tmp_path / "model")


def test_an_image_model_with_another_head_is_refused_with_a_way_out(tmp_path):
    model = anode.ImageNeuralODE((1, 4, 4), 3, 4)
    model.head = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 5))
    with pytest.raises(TypeError, match=r"replaced by a Sequential.*build anode\.NeuralODE\(field=\.\.\., head="):
        save(model, tmp_path / "model")
    same = anode.NeuralODE(field=model.flow.field, head=model.head, augment=model.flow.augment)
    assert torch.equal(load(save(same, tmp_path / "model"))(torch.ones(1, 1, 4, 4)), model(torch.ones(1, 1, 4, 4)))


def test_a_file_names_what_has_to_be_registered_before_it_is_loaded(tmp_path):
    path = save(composed(), tmp_path / "model")
    content = read_json(path)
    content["settings"]["field"]["module"] = "os.system"
    write_described(path, content, path.with_suffix(".safetensors"), composed().state_dict())
    with pytest.raises(DamagedFileError, match=r"'os\.system' is not registered; import the module that registers it"):
        load(path)


def test_settings_that_are_not_json_are_an_error_and_the_old_model_stays(tmp_path):
    old = model_of()
    save(old, tmp_path / "model")
    with pytest.raises(TypeError, match=r"rtol: only numbers.*got tensor"):
        save(anode.NeuralODE(2, 1, 8, rtol=torch.tensor(1e-4)), tmp_path / "model")
    assert torch.equal(load(tmp_path / "model")(torch.ones(1, 2)), old(torch.ones(1, 2)))


def test_a_model_comes_back_with_a_gradient_that_has_settings_of_its_own(tmp_path):
    gradient = anode.Continuous(rtol=1e-5, seminorm=True)
    save(anode.NeuralODE(2, 1, 8, gradient=gradient), tmp_path / "model")
    assert load(tmp_path / "model").flow.solver.gradient == gradient


@pytest.mark.parametrize("gradient", [Discrete(), Stored()], ids=str)
def test_a_gradient_without_settings_comes_back_by_its_name(gradient, tmp_path):
    model = anode.NeuralODE(2, 1, 8, gradient=gradient)
    save(model, tmp_path / "model")
    found = load(tmp_path / "model")
    assert found.flow.solver.gradient == type(gradient).__name__.lower()
    assert torch.equal(found(torch.ones(1, 2)), model(torch.ones(1, 2)))


# Damage


def test_a_model_that_is_not_there_is_not_damaged(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No such file; pass the path that it was saved to: .*none\.json"):
        load(tmp_path / "none")


def test_the_error_for_the_folder_of_a_run_names_the_model_in_it(tmp_path):
    save(model_of(), tmp_path / "model")
    with pytest.raises(FileNotFoundError, match=rf"pass {re.escape(str(tmp_path / 'model'))}:"):
        load(tmp_path)


def test_a_model_is_loaded_by_each_of_its_files(tmp_path):
    model = model_of()
    for name in ("one.json", "two.safetensors"):
        save(model, tmp_path / name)
        assert torch.equal(load(tmp_path / name).head.weight, model.head.weight)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}.{kind}" for name in ("one", "two") for kind in ("json", "safetensors")
    }


def test_weights_of_another_model_are_refused_also_if_they_would_fit(tmp_path):
    for name in ("one", "two"):
        save(model_of(), tmp_path / name)
    with torch.no_grad():
        model = model_of()
        model.head.bias.add_(1.0)
    save(model, tmp_path / "two")
    (tmp_path / "two.safetensors").replace(tmp_path / "one.safetensors")
    with pytest.raises(DamagedFileError, match=r"one\.safetensors: is damaged, or does not belong to the \.json file"):
        load(tmp_path / "one")


def test_weights_that_are_not_there_are_not_damaged(tmp_path):
    save(model_of(), tmp_path / "model")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        load(tmp_path / "model")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
@pytest.mark.parametrize("suffix", ["json", "safetensors"])
def test_a_cut_file_is_an_error_that_names_it(suffix, share, tmp_path):
    save(model_of(), tmp_path / "model")
    path = tmp_path / f"model.{suffix}"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(DamagedFileError, match=rf"model\.{suffix}: is not a"):
        load(tmp_path / "model")


@pytest.mark.parametrize("suffix", ["json", "safetensors"])
def test_nothing_is_unpickled(suffix, tmp_path):
    class Trap:
        def __reduce__(self):
            return pytest.fail, ("a pickle was loaded",)

    save(model_of(), tmp_path / "model")
    (tmp_path / f"model.{suffix}").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DamagedFileError, match=rf"model\.{suffix}: is not a"):
        load(tmp_path / "model")


@pytest.mark.parametrize(
    "change",
    [
        {"format": "anode model 99"},
        {"format": "anode history 1"},
        {"format": None},
        {"model": "Neural"},
        {"model": "os.system"},
        {"model": None},
        {"model": ["NeuralODE"]},
        {"settings": None},
        {"settings": [1, 2]},
        {"settings": {"in_features": 2}},
        {"settings": {"in_features": 2, "out_features": 1, "colour": "red"}},
        {"settings": {"in_features": -2, "out_features": 1}},
        {"settings": {"in_features": 2, "out_features": 1, "hidden": 9}},
        {"settings": {"in_features": 2, "out_features": 1, "hidden": 8, "time": False}},
        {"settings": {"in_features": 2, "out_features": 1, "hidden": 8, "activation": "rulu"}},
        {"members": 3},
        {"members": 0},
        {"members": -1},
        {"members": "3"},
        {"members": 1.5},
        {"model": "ResNet", "settings": {"in_features": 2, "out_features": 1, "hidden": 8}},
    ],
    ids=str,
)
def test_a_description_that_does_not_fit_is_an_error_that_names_the_file(change, tmp_path):
    path = save(model_of(), tmp_path / "model")
    path.write_text(json.dumps({**read_json(path), **change}))
    with pytest.raises(DamagedFileError, match=r"model\.json: is not a model that can be loaded"):
        load(tmp_path / "model")


@pytest.mark.parametrize("missing", ["format", "model", "settings", "members"])
def test_a_description_with_a_gap_is_an_error_that_names_the_file(missing, tmp_path):
    path = save(model_of(), tmp_path / "model")
    content = read_json(path)
    del content[missing]
    path.write_text(json.dumps(content))
    with pytest.raises(DamagedFileError, match=rf"model\.json: is not a model that can be loaded .*{missing}"):
        load(tmp_path / "model")


@pytest.mark.parametrize("content", ["null", "3", "[]", '"model"', "{}"])
def test_a_description_of_something_else_is_an_error_that_names_the_file(content, tmp_path):
    save(model_of(), tmp_path / "model").write_text(content)
    with pytest.raises(DamagedFileError, match=r"model\.json: is not a model that can be loaded"):
        load(tmp_path / "model")


def test_an_unknown_model_is_an_error_that_suggests_the_nearest(tmp_path):
    path = save(model_of(), tmp_path / "model")
    change(path, "NeuralODE", "NeuralODD")
    with pytest.raises(DamagedFileError, match=r"did you mean 'NeuralODE'"):
        load(tmp_path / "model")


def stacked_wrongly(tensors):
    return {name: torch.stack([tensor] * 2) for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    "damage",
    [
        lambda tensors: {},
        lambda tensors: dict(list(tensors.items())[1:]),
        lambda tensors: {**tensors, "more": torch.ones(2)},
        lambda tensors: {f"model.{name}": tensor for name, tensor in tensors.items()},
        lambda tensors: {name: tensor[:1] for name, tensor in tensors.items()},
        stacked_wrongly,
    ],
    ids=["none", "one less", "one more", "other names", "other shapes", "a stack"],
)
@pytest.mark.parametrize("members", [None, 3])
def test_weights_that_do_not_fit_are_an_error_that_names_the_file(damage, members, tmp_path):
    path = save(model_of("NeuralODE", members), tmp_path / "model")
    weights = path.with_suffix(".safetensors")
    write_described(path, read_json(path), weights, damage(read_tensors(weights)))
    with pytest.raises(DamagedFileError, match=r"model\.json: is not a model that can be loaded"):
        load(tmp_path / "model")


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_weights_that_are_no_weights_are_an_error(dtype, tmp_path):
    path = save(model_of(), tmp_path / "model")
    weights = path.with_suffix(".safetensors")
    cast = {name: tensor.to(dtype) for name, tensor in read_tensors(weights).items()}
    write_described(path, read_json(path), weights, cast)
    with pytest.raises(DamagedFileError, match=r"model\."):
        load(tmp_path / "model")


def test_a_save_that_fails_leaves_nothing_temporary_behind(tmp_path, monkeypatch):
    save(model_of(), tmp_path / "model")

    def fail(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr("anode.files.os.fsync", fail)
    with pytest.raises(OSError, match="no space"):
        save(model_of("NeuralODE", seed=1), tmp_path / "model")
    monkeypatch.undo()
    assert names_in(tmp_path) == ["model.json", "model.safetensors"]
    assert torch.equal(load(tmp_path / "model")(torch.ones(1, 2)), model_of()(torch.ones(1, 2)))


# Numbers that are anybody's


IMAGE = {"image": (1, 4, 4), "classes": 3, "filters": 4}
HUGE = [10**9, 2**63 - 1, 10**30]


@pytest.mark.parametrize("huge", HUGE)
@pytest.mark.parametrize(
    ("model", "name"),
    [
        *((lambda: anode.NeuralODE(2, 1, 8), name) for name in ("in_features", "out_features", "hidden", "augment")),
        (lambda: anode.NeuralODE(2, 1, 8), "layers"),
        *((lambda: anode.ResNet(2, 1, 8, 2), name) for name in ("in_features", "out_features", "hidden", "layers")),
        *((lambda: anode.ImageNeuralODE(**IMAGE), name) for name in ("classes", "filters", "augment", "head_channels")),
    ],
)
def test_a_size_that_the_weights_do_not_have_is_refused_before_anything_is_made(model, name, huge, tmp_path):
    path = save(model(), tmp_path / "model")
    content = read_json(path)
    content["settings"][name] = huge
    assert_quickly_refused(path, content)


@pytest.mark.parametrize("huge", HUGE)
@pytest.mark.parametrize("members", [None, 3])
def test_members_that_the_weights_do_not_have_are_refused_before_anything_is_made(members, huge, tmp_path):
    path = save(model_of("NeuralODE", members), tmp_path / "model")
    assert_quickly_refused(path, {**read_json(path), "members": huge})


def test_the_sizes_of_an_image_that_the_weights_do_not_have_are_refused_before_anything_is_made(tmp_path):
    path = save(anode.ImageNeuralODE(**IMAGE), tmp_path / "model")
    for i in range(3):
        content = read_json(path)
        content["settings"]["image"][i] = 10**9
        assert_quickly_refused(path, content)
        content["settings"]["image"][i] = IMAGE["image"][i]


def assert_quickly_refused(path, content):
    path.write_text(json.dumps(content))
    begin = time.monotonic()
    with pytest.raises(DamagedFileError, match=r"model\.json: is not a model that can be loaded"):
        load(path)
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("save", [anode.save, lambda model, path: model.save(path)], ids=["model", "estimator"])
def test_a_folder_is_no_name_to_save_under(save, tmp_path):
    rows = torch.rand(8, 2).numpy()
    model = anode.NeuralODE(2, 1) if save is anode.save else anode.ANODERegressor(epochs=1).fit(rows, rows[:, 0])
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(
        ValueError, match=r"path: takes the name of a file, such as folder/model, got the folder .*folder"
    ):
        save(model, folder)
    assert [*tmp_path.iterdir()] == [folder]


def test_a_lazy_layer_is_saved_once_it_knows_its_size(tmp_path):
    model = anode.NeuralODE(2, field=torch.nn.Sequential(torch.nn.LazyLinear(2)), head=torch.nn.LazyLinear(1))
    with pytest.raises(
        ValueError, match=r"model: takes a model whose lazy layers .* call it on a batch first, got .*field"
    ):
        save(model, tmp_path / "model")
    assert names_in(tmp_path) == []
    x = torch.rand(3, 2)
    expected = model(x)
    save(model, tmp_path / "model")
    torch.testing.assert_close(load(tmp_path / "model")(x), expected)


def test_state_that_is_no_tensor_cannot_be_saved(tmp_path):
    class Counting(torch.nn.Linear):
        def get_extra_state(self):
            return {"calls": 3}

    with pytest.raises(
        ValueError, match=r"model: takes modules whose state is tensors: .*, got one with 0\._extra_state"
    ):
        save(torch.nn.Sequential(Counting(2, 2)), tmp_path / "model")
    assert names_in(tmp_path) == []
