"""Mistakes in what users hand over: every one is an error that names the argument and says what it takes."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

import anode
from helpers.trainings import data_of, fit, model_of, same, stack_of, values_of

x, y = data_of().x, data_of().y


class Own(nn.Module):
    """A network whose result is changed by a function."""

    def __init__(self, inputs, outputs, change=lambda h: h):
        super().__init__()
        self.line, self.change = nn.Linear(inputs, outputs, dtype=torch.float64), change

    def forward(self, x):
        return self.change(self.line(x))


class OwnField(Own):
    def forward(self, t, h):
        return super().forward(h)


class Nothing(anode.Augment):
    def forward(self, x):
        return None


def composed(field=None, head=None, augment=1):
    """A model of parts of one's own, for inputs of 2 features."""
    return anode.NeuralODE(field=field or OwnField(3, 3), head=head or Own(3, 1), augment=augment).double()


LOSS = "loss: takes a function that returns a tensor: one loss, or losses per point, got"


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda p, t: None, f"{LOSS} one that returned a NoneType"),
        (lambda p, t: (p - t, 1), f"{LOSS} one that returned a tuple of 2 elements"),
        (lambda p, t: 1.0, f"{LOSS} one that returned a float"),
        (lambda p, t: p > t, f"{LOSS} one that returned a tensor of .*torch.bool"),
        (lambda p, t: p * 1j, f"{LOSS} one that returned a tensor of .*torch.complex128"),
        (lambda outcome, t: outcome, f"{LOSS} one that returned a Outcome"),
        (
            lambda p, t: (p - t).detach(),
            "loss: takes losses that depend on the model's parameters, got losses without a",
        ),
        (lambda p, t: (p - t)[..., :3, :], f"{LOSS} shape .*3, 1\\) for 8 points"),
        (lambda p, t: p @ t, "loss: fails for a tensor of shape .*, with a tensor of shape .* as targets"),
        (lambda p: p, r"loss: takes one of huber, .*, got .*\(p\): too many positional arguments"),
        (lambda p, t, w: p, r"loss: takes one of huber, .*, got .*: missing a required argument: 'w'"),
        (nn.MSELoss, r"loss: takes .*, got the class MSELoss; pass an object, MSELoss\(\)"),
    ],
    ids=[
        "None",
        "tuple",
        "float",
        "bool",
        "complex",
        "outcome",
        "detached",
        "shape",
        "raises",
        "one",
        "three",
        "class",
    ],
)
def test_a_loss_that_cannot_be_used_is_named_and_nothing_has_changed(loss, said, stacked):
    model = stack_of() if stacked else model_of()
    before = values_of(model)
    with pytest.raises((ValueError, TypeError), match=said):
        fit(model, data_of(), loss=loss)
    assert same(values_of(model), before)


def test_a_loss_of_a_failed_solve_is_no_mistake_of_the_loss():
    def loss(prediction, target):
        raise anode.SolveError("broken", None)

    with pytest.raises(anode.SolveError, match="broken"):
        fit(model_of(), data_of(), loss=loss)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"scheduler": StepLR},
            "scheduler: takes a function of the optimizer, such as .*, got StepLR.*step_size",
        ),
        ({"scheduler": lambda: None}, "scheduler: takes a function of the optimizer, .*too many positional"),
        (
            {"scheduler": lambda o: None},
            "scheduler: takes a function .*, got one that returned a NoneType",
        ),
        ({"scheduler": lambda o: o}, "scheduler: takes a function that returns .*, got one that returned a Adam"),
        (
            {"scheduler": lambda o: StepLR(torch.optim.SGD([torch.ones(1)]), 1)},
            "scheduler: takes .*of the optimizer that it is given, not of another one, got 'StepLR'",
        ),
        ({"optimizer": torch.optim.SGD([torch.ones(1)])}, "optimizer: takes one of adam, .*lr=0.1.*, got a SGD$"),
        ({"optimizer": lambda: None}, "optimizer: takes one of adam, .*or a function of a list .*too many positional"),
        (
            {"optimizer": lambda p: None},
            "optimizer: takes a function .*, got one that returned a NoneType",
        ),
        ({"transform": lambda: 3}, "transform: takes a function that maps .*too many positional"),
        ({"transform": lambda x: (x, x)}, "transform: takes .*, got one that returned a tuple of 2 elements"),
        ({"transform": lambda x: None}, "transform: takes .*, got one that returned a NoneType"),
        ({"transform": lambda x: x.float()}, r"transform: takes .*of the same dtype .*torch\.float32"),
        ({"transform": lambda x: x[:3]}, r"transform: takes .*as many points .*shape \(3, 2\)"),
        ({"transform": lambda x: x[:, :1]}, "data: does not fit the model: x: takes 2 features"),
        ({"snapshots": anode.Snapshots(x, 5)}, r"snapshots\.at: takes a list of iterations, .*got 5"),
        (
            {"snapshots": anode.Snapshots(x, [0.5])},
            r"snapshots\.at: takes a list of iterations, .*got \[0.5\]",
        ),
        (
            {"data": (x.long(), y)},
            r"data: takes torch.float64, .*int64; convert it with x\.to\(torch\.float64\)",
        ),
        ({"data": (x, y + 0j)}, "data: takes real targets for loss 'huber', got torch.complex128"),
    ],
    ids=range(18),
)
def test_a_function_that_cannot_be_used_is_named(options, said):
    model = model_of()
    before = values_of(model)
    with pytest.raises((ValueError, TypeError), match=said):
        fit(model, **{"data": data_of(), **options})
    assert same(values_of(model), before)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (composed(head=Own(4, 1)), r"head: does not fit x of shape \(1, 2\), whose state has shape \(1, 3\): mat1"),
        (
            composed(field=OwnField(4, 4)),
            r"field: does not fit x of shape \(1, 2\), whose state has .*\(1, 3\): mat1",
        ),
        (composed(field=Own(3, 3)), r"field: does not fit x of shape .*called as f\(t, y\), got Own\(x\): too many"),
        (
            composed(field=OwnField(3, 2)),
            r"field: takes a module that returns the shape of its state, \(1, 3\), got \(1, 2\)",
        ),
        (composed(field=OwnField(3, 3, lambda h: None)), "field: takes a module that returns .*, got a NoneType"),
        (composed(augment=Nothing()), "field: does not fit x of shape .*, whose state has shape a NoneType"),
        (composed(head=Own(3, 1, lambda h: None)), "model: takes a module that returns one tensor .*got .*a NoneType"),
        (Own(2, 1, lambda h: (h, h)), "model: takes a module that returns one tensor .*got one that returns a tuple"),
        (Own(2, 1, lambda h: {"a": h}), "model: takes a module that returns one tensor .*got one that returns a dict"),
        (Own(3, 1), r"data: does not fit the model: Own cannot be called with a tensor of shape \(1, 2\)"),
        (anode.MLPField(2).double(), r"data: .*MLPField cannot be called .*; train a field f\(t, h\) as anode\.Flow"),
    ],
    ids=range(11),
)
def test_what_cannot_go_together_is_named_with_the_shapes(model, said):
    with pytest.raises((ValueError, TypeError), match=said):
        fit(model, data_of())


def test_a_loss_that_broadcasts_points_against_each_other_is_named():
    data = data_of()
    said = r"loss: returns a loss for every pair of points, .*predictions of shape \(8, 1\) and targets of shape \(8,\)"
    with pytest.raises(ValueError, match=said):
        fit(model_of(), (data.x, data.y[:, 0]), loss=lambda p, t: (p - t) ** 2, batch_size=8)
    fit(model_of(), (data.x, data.y[:, 0]), loss=lambda p, t: (p[:, 0] - t) ** 2, batch_size=8)


def test_a_plain_module_may_take_whole_numbers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 1))
    words = torch.randint(5, (64, 2))
    history = anode.fit(model, (words, words.sum(1, keepdim=True).float()), epochs=20, lr=1e-2, progress=False)
    assert history.loss[-1] < history.loss[0]
    with pytest.raises(ValueError, match=r"data: .*Linear .*; convert whole numbers with x\.float"):
        fit(nn.Linear(2, 1), (words, words.float()))


class Embedded(anode.Augment):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 4)

    def forward(self, x):
        return self.table(x).mean(1)


def test_an_augmentation_may_embed_whole_numbers():
    torch.manual_seed(0)
    model = anode.NeuralODE(field=anode.MLPField(4, 8), augment=Embedded(), head=nn.Linear(4, 1))
    words = torch.randint(5, (64, 2))
    data = words, words.sum(1, keepdim=True).float()
    history = anode.fit(model, data, validation=data, epochs=10, lr=1e-2, progress=False)
    assert history.validation[-1] < history.validation[0]


def test_a_transform_may_give_points_another_shape():
    images, labels = torch.rand(12, 1, 9, 9), torch.arange(12) % 3
    model = anode.ImageNeuralODE((1, 8, 8), 3, filters=2)
    history = anode.fit(model, (images, labels), transform=lambda x: x[..., 1:, 1:], epochs=1, progress=False)
    assert len(history) == 1


class Club(nn.Module):
    """A module whose attribute has the name of a stack's."""

    def __init__(self):
        super().__init__()
        self.line, self.members = nn.Linear(2, 1), [1, 2, 3]

    def forward(self, x):
        return self.line(x)


@pytest.mark.parametrize("build", [Club, lambda: nn.Sequential(Club())], ids=["itself", "a part"])
def test_an_attribute_called_members_makes_no_stack(build):
    model = build().double()
    assert fit(model, data_of()).members is None
    assert fit(anode.stack([model, model]), data_of()).members == 2


@pytest.mark.parametrize("model", [anode.NeuralODE(2, 1), anode.ResNet(2, 1)], ids=["NeuralODE", "ResNet"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (x.numpy(), r"x: takes a tensor, got a NumPy .*; convert it with torch\.as_tensor\(x, dtype=torch\.float32"),
        ([[1.0, 2.0]], "x: takes a tensor, got a list of 1 elements"),
        (x, r"x: takes torch\.float32, .*got torch\.float64; convert it with x\.to\(torch\.float32\)"),
        (x.long(), r"x: takes torch\.float32, .*got torch\.int64"),
    ],
    ids=["numpy", "list", "double", "whole"],
)
def test_a_model_names_an_input_that_it_cannot_take(model, given, said):
    with pytest.raises(TypeError, match=said):
        model(given)


class Lift(anode.Augment):
    """Appends three features to inputs of seven."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(7, 3)

    def forward(self, x):
        return torch.cat([x, self.line(x)], dim=-1)


class TimeSecond(nn.Linear):
    """A network as those of diffusion models, which are called with the time last."""

    def __init__(self):
        super().__init__(2, 2)

    def forward(self, h, t):
        return super().forward(h) * t


NAN = torch.tensor([[1.0, float("nan")], [1.0, 2.0], [3.0, 4.0]])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: composed(head=Own(4, 1))(x), r"head: does not fit x of shape .*whose state has .*3\): mat1"),
        (lambda: composed(field=OwnField(4, 4))(x), r"field: does not fit x of shape .*whose state has .*3\): mat1"),
        (
            lambda: composed(field=Own(3, 3))(x),
            r"field: .*f\(t, y\), got Own\(x\): .*; .*pass torch\.nn\.Sequential\(f\)",
        ),
        (
            lambda: anode.Flow(nn.TransformerEncoderLayer(4, 2, 8))(torch.rand(2, 3, 4)),
            r"field: does not fit x .*called as f\(t, h\), and it takes h alone; pass torch\.nn\.Sequential\(field\)$",
        ),
        (lambda: anode.Flow(TimeSecond())(torch.rand(3, 2)), r"field: .*and it takes \(h, t\); pass a module that"),
        (lambda: composed(field=OwnField(3, 2))(x), r"field: takes a module that returns the shape of its state"),
        (lambda: anode.Flow(anode.MLPField(3))(torch.ones(4, 2)), r"field: does not fit x .*: h: takes 3 features"),
        (lambda: anode.Flow(nn.Sequential(nn.Linear(3, 2)))(torch.ones(4, 2)), "field: does not fit x .*mat1"),
        (lambda: anode.NeuralODE(20, 1, augment=Lift()), r"augment: does not fit x of shape \(1, 20\): mat1"),
        (lambda: anode.NeuralODE(2, 1)(NAN), "x: takes finite values, got NaN or infinity in 1 of 3 rows"),
        (lambda: anode.Flow(anode.MLPField(2))(NAN), "x: takes finite values, got NaN or infinity in 1 of 3 rows"),
        (lambda: anode.NeuralODE(2, 1)(torch.ones(0, 2)), r"x: takes at least one point, got .* shape \(0, 2\)"),
        (lambda: anode.Flow(anode.MLPField(2))([1.0, 2.0]), r"x: takes a tensor, got a list .*torch\.as_tensor\(x\)"),
        (lambda: anode.NeuralODE(2, 1, time="x"), "time: takes True or False, got 'x'"),
        (lambda: anode.ConvField(2, time=1), "time: takes True or False, got 1"),
    ],
    ids=range(15),
)
def test_a_model_that_is_called_directly_names_the_part_that_does_not_fit(call, said):
    with pytest.raises((ValueError, TypeError), match=f"^{said}"):
        call()


class OwnError(RuntimeError):
    pass


@pytest.mark.parametrize("error", [OwnError("mine"), RuntimeError("late")], ids=["own", "late"])
def test_errors_of_a_field_that_mean_something_else_stay_as_they_are(error):
    class Field(nn.Module):
        def forward(self, t, h):
            if t > 0 or isinstance(error, OwnError):
                raise error
            return h

    with pytest.raises(RuntimeError) as found:
        anode.Flow(Field(), engine="torch")(torch.ones(4, 2))
    assert found.value is error


def test_settings_that_are_wrong_are_not_blamed_on_a_part_of_the_model():
    with pytest.raises(ValueError, match=r"^rtol: takes a number above 0, got -1"):
        anode.NeuralODE(2, 1).run(torch.ones(4, 2), rtol=-1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"evaluate_every": 3}, r"evaluate_every: takes None without validation data \(pass validation=.*, got 3"),
        ({"checkpoint_every": 3}, r"checkpoint_every: takes None without a folder \(pass checkpoint=.*, got 3"),
        ({"loss": nn.CrossEntropyLoss()}, "loss: takes a loss other than .*always 0, got CrossEntropyLoss.*BCEWith"),
        ({"loss": nn.functional.cross_entropy}, "loss: takes a loss other than cross entropy .*with one output"),
    ],
    ids=["evaluate_every", "checkpoint_every", "CrossEntropyLoss", "cross_entropy"],
)
def test_what_would_have_no_effect_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        fit(model_of(), data_of(), **options)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: anode.MLPField(2, hiden=3), "hiden: is not an argument of MLPField, .*; did you mean 'hidden'"),
        (lambda: anode.ResNet(2, 1, hiden=3), "hiden: is not an argument of ResNet, .*; did you mean 'hidden'"),
        (
            lambda: anode.ImageNeuralODE((1, 8, 8), 3, rtoll=1),
            "rtoll: is not an argument of ImageNeuralODE, .*; did you mean 'rtol'",
        ),
        (lambda: anode.Solver(metod=3), "metod: is not an argument of Solver, .*; did you mean 'method'"),
        (lambda: anode.Tableau(ordr=3), "ordr: is not an argument of Tableau, .*; did you mean 'order'"),
        (lambda: anode.Solver("euler", *[1] * 13), "takes from 1 to 14 positional"),
    ],
    ids=["field", "model", "settings", "solver", "tableau", "positional"],
)
def test_an_argument_that_a_class_does_not_have_is_named_with_the_nearest_one(call, said):
    with pytest.raises(TypeError, match=said):
        call()


@pytest.mark.parametrize(("name", "near"), [("batchsize", "batch_size"), ("epoch", "epochs")])
def test_an_argument_that_fit_does_not_have_is_named_with_the_nearest_one(name, near):
    said = rf"^{name}: is not an argument of fit, .*optimizer.*; did you mean '{near}'\?$"
    with pytest.raises(TypeError, match=said):
        anode.fit(model_of(), data_of(), **{name: 3})


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            (x.numpy(), y.numpy()),
            r"got a tuple of 2 parts \(ndarray, ndarray\); convert .* torch\.as_tensor",
        ),
        (torch.utils.data.TensorDataset(x, y), r"got TensorDataset; pass DataLoader\(data"),
        (nn.Linear(2, 1), "got Linear$"),
    ],
    ids=["arrays", "dataset", "module"],
)
def test_data_of_other_kinds_are_named_with_what_to_do(data, said):
    with pytest.raises(TypeError, match=rf"^data: takes a Dataset, .*{said}"):
        fit(model_of(), data)


class Scaled(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, prediction, target):
        return (prediction - target).square() * self.scale


@pytest.mark.parametrize("wrap", [lambda loss: loss, lambda loss: anode.Regularised(anode.Kinetic(), loss=loss)])
def test_a_loss_whose_parameters_are_not_trained_warns(wrap, recwarn):
    scale = nn.Parameter(torch.ones((), dtype=torch.float64))
    with pytest.warns(UserWarning, match="loss: fit does not train the parameters of Scaled; make it a part") as caught:
        anode.fit(model_of(), data_of(), loss=wrap(Scaled(scale)), epochs=1)
    assert caught[0].filename == __file__
    recwarn.clear()
    model = model_of()
    model.scale = scale
    anode.fit(model, data_of(), loss=wrap(Scaled(scale)), epochs=1)
    assert scale != 1
    anode.fit(model_of(), data_of(), loss=wrap(Scaled(scale).requires_grad_(False)), epochs=1)
    assert not recwarn.list


def test_sparse_gradients_are_refused():
    model = nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Flatten(), nn.Linear(8, 1))
    x = torch.randint(0, 5, (20, 2))
    with pytest.raises(ValueError, match=r"model: takes one whose gradients are dense; pass sparse=False"):
        anode.fit(model, (x, x.float().mean(1, keepdim=True)), epochs=1)
