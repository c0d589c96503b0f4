"""Traced solves in the ways people use them: other states, methods and times, derivatives again, threads, memory."""

import gc
import io
import threading
import weakref

import pytest
import torch
from torch import nn

import anode

POINTS = torch.linspace(-0.9, 1.1, 2000, dtype=torch.float64)


class Field(nn.Module):
    """Time concatenated, and a rate that is computed from a parameter."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 5), nn.Linear(5, 2)
        self.log_rate = nn.Parameter(torch.tensor(-0.3))

    def forward(self, t, y):
        h = torch.cat([y, torch.ones_like(y[:, :1]) * t], 1)
        return self.second(torch.tanh(self.first(h))) * self.log_rate.exp()


def field():
    torch.manual_seed(2)
    return Field().double()


def points(*shape):
    return POINTS[:: max(1, 2000 // max(1, torch.Size(shape).numel()))][: torch.Size(shape).numel()].reshape(shape)


def found(f, y, engine, span=(0.0, 1.0), **settings):
    y0 = y.detach().requires_grad_()
    solution = anode.solve(f, y0, span, engine=engine, **settings)
    ys = solution.ys
    params = list(f.parameters()) if isinstance(f, nn.Module) else []
    total = (ys * torch.linspace(0.5, 1.5, ys.numel(), dtype=ys.dtype).view_as(ys)).sum()
    return solution, [ys.detach(), *torch.autograd.grad(total, [y0, *params])]


def assert_same(f, y, **settings):
    (ours, by_engine), (plain, by_loop) = (found(f, y, engine, **settings) for engine in ("auto", "torch"))
    for x, expected in zip(by_engine, by_loop, strict=True):
        torch.testing.assert_close(x, expected, rtol=1e-9, atol=1e-9)
    assert torch.equal(torch.as_tensor(ours.stats.nfe), torch.as_tensor(plain.stats.nfe))
    return str(ours.engine)


FIXED = ("euler", "midpoint", "heun2", "heun3", "rk4", "rk4_classic")
ADAPTIVE = tuple(name for name in anode.METHODS if name not in FIXED)


@pytest.mark.parametrize("method", [*FIXED, *ADAPTIVE])
@pytest.mark.parametrize("span", [(0.0, 1.0), (1.0, -0.5)], ids=["forward", "backward"])
def test_every_method_solves_a_traced_field(method, span):
    settings = {"step_size": 0.13} if method in FIXED else {}
    times = torch.linspace(*span, 7).tolist()
    assert assert_same(field(), points(5, 2), method=method, span=span, save_at=times, **settings) == "native"


STATES = {
    "number": lambda: points(),
    "vector": lambda: points(5),
    "batch of one": lambda: points(1, 2),
    "large batch": lambda: points(1000, 2),
    "matrices": lambda: points(3, 4, 2),
    "transposed": lambda: points(4, 3).t(),
    "strided": lambda: points(8, 4)[::2, 1:3],
    "expanded": lambda: points(1, 4).expand(3, 4),
}


@pytest.mark.parametrize("state", STATES)
def test_states_of_any_shape_and_layout_are_solved(state):
    def f(t, y):
        return torch.sin(y) * t - 0.1 * y**2

    assert assert_same(f, STATES[state]()) == "native"


def test_each_sample_may_have_steps_of_its_own():
    assert assert_same(field(), points(6, 2) * 3, control="sample") == "native"


@pytest.mark.parametrize(
    "f",
    [
        lambda t, y: y - y.mean(0),
        lambda t, y: -0.1 * y * y.sum(),
        lambda t, y: y.flip(0) - y,
        lambda t, y: y[0] - y,
        lambda t, y: y.roll(1, 0) - y,
        lambda t, y: y.amax(0) - y,
        lambda t, y: -0.1 * (y @ y.t()) @ y,
        lambda t, y: -0.1 * y * torch.arange(y.shape[0]).view(-1, 1),
        lambda t, y: -0.1 * y * len(y),
        lambda t, y: -0.5 * y.reshape(-1).view(2, -1).t().reshape(y.shape),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 400])
def test_points_that_mix_are_solved_as_one_state_or_in_python(f, size):
    assert_same(f, points(size, 2) * 0.1)


@pytest.mark.parametrize("mixes", [False, True], ids=["per point", "as one point"])
def test_a_network_of_many_numbers_is_left_to_torch(mixes):
    """To trace a transformer on a few hundred numbers took minutes."""

    def f(t, y):
        for _ in range(80):
            y = torch.sin(y - 0.5 * y.mean(0) if mixes else y)
        return y

    said = assert_same(f, points(1, 500))
    assert said.startswith("torch")
    assert mixes or said == "torch (f computes more than 32768 numbers per point)"


def test_second_derivatives_reach_what_the_programs_tensors_are_computed_from():
    results = []
    for engine in ("auto", "torch"):
        f, y0 = field(), points(4, 2).clone().requires_grad_()
        solution = anode.solve(f, y0, (0.0, 1.0), engine=engine, gradient="stored")
        wanted = [y0, *f.parameters()]
        first = torch.autograd.grad((solution.y1**2).sum(), wanted, create_graph=True)
        results.append([*first, *torch.autograd.grad(sum((g**2).sum() for g in first), wanted)])
    for x, expected in zip(*results, strict=True):
        torch.testing.assert_close(x, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("gradient", ["discrete", "stored"])
def test_a_graph_that_is_kept_is_differentiated_twice_and_then_no_more(gradient):
    f, y0 = field(), points(4, 2).clone().requires_grad_()
    total = anode.solve(f, y0, (0.0, 1.0), gradient=gradient).y1.sum()
    first = torch.autograd.grad(total, [y0, *f.parameters()], retain_graph=True)
    second = torch.autograd.grad(total, [y0, *f.parameters()])
    assert all(map(torch.equal, first, second))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(total, y0)


@pytest.mark.parametrize("gradient", ["discrete", "stored"])
def test_parameters_that_change_before_the_backward_pass_are_refused(gradient):
    f = field()
    total = anode.solve(f, points(4, 2), (0.0, 1.0), gradient=gradient).y1.sum()
    with torch.no_grad():
        f.first.weight.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def test_threads_may_share_a_module():
    f, y = field(), points(5, 2)
    expected, wrong = anode.solve(f, y, (0.0, 1.0), engine="torch").y1.detach(), []

    def work():
        for _ in range(20):
            y0 = y.clone().requires_grad_()
            y1 = anode.solve(f, y0, (0.0, 1.0)).y1
            torch.autograd.grad(y1.sum(), y0)
            wrong.extend([] if torch.allclose(y1, expected, rtol=1e-9, atol=1e-9) else [1])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("wrapped", [False, True], ids=["module", "lambda"])
def test_a_module_that_was_traced_can_be_forgotten(wrapped):
    def use():
        f = field()
        anode.solve((lambda t, y: f(t, y)) if wrapped else f, points(4, 2), (0.0, 1.0))
        return weakref.ref(f)

    kept = use()
    gc.collect()
    assert kept() is None


def test_a_module_that_was_traced_can_be_saved_and_loaded():
    f = field()
    assert assert_same(f, points(4, 2)) == "native"
    stream = io.BytesIO()
    torch.save(f, stream)
    stream.seek(0)
    assert assert_same(torch.load(stream, weights_only=False), points(4, 2)) == "native"


class Unrecordable(nn.Module):
    """Draws random numbers, and counts before or after it does."""

    def __init__(self, early):
        super().__init__()
        self.early, self.nfe, self.noise = early, 0, nn.Dropout(0.5)

    def forward(self, t, y):
        if self.early:
            self.nfe += 1
            return -self.noise(y)
        slope = -self.noise(y)
        self.nfe += 1
        return slope


@pytest.mark.parametrize("early", [True, False])
def test_counters_are_right_though_f_could_not_be_traced(early):
    f = Unrecordable(early)
    solution = anode.solve(f, points(4, 2), (0.0, 1.0), method="rk4", step_size=0.25)
    assert "random numbers" in str(solution.engine)
    assert f.nfe == solution.stats.calls


def test_statistics_are_updated_once_per_evaluation_though_f_could_not_be_traced():
    norm = nn.BatchNorm1d(2).double()
    solution = anode.solve(lambda t, y: -norm(y), points(4, 2), (0.0, 1.0), method="rk4", step_size=0.25)
    assert "writes into" in str(solution.engine)
    assert int(norm.num_batches_tracked) == solution.stats.calls


def test_slopes_that_become_nan_end_the_solve_as_in_python():
    def f(t, y):
        return torch.where(t > 0.5, y * torch.nan, -y)

    ours, plain = (anode.solve(f, points(3, 2), (0.0, 1.0), engine=engine) for engine in ("auto", "torch"))
    assert str(ours.engine) == "native"
    assert ours.status == plain.status
    torch.testing.assert_close(ours.y1, plain.y1, rtol=1e-6, atol=1e-6)


def state_of(parts):
    return points(6, 2) if parts == 1 else (points(6, 1), points(6, 1).flip(0))


def on_parts(f, parts):
    if parts == 1:
        return f
    return lambda t, y: tuple(f(t, torch.cat(y, 1)).split(1, 1))


@pytest.mark.parametrize("control", ["joint", "sample"])
@pytest.mark.parametrize("parts", [1, 2], ids=["tensor", "tuple"])
@pytest.mark.parametrize("times", [[0.0, 0.3, 1.0], [0.2, 0.3, 0.7], [1.0], [0.4]], ids=str)
def test_single_outputs_and_all_of_them_have_the_same_values_and_gradients(times, parts, control):
    f = field()

    def gradients(engine, read):
        solution = anode.solve(
            on_parts(f, parts), state_of(parts), (0.0, 1.0), save_at=times, control=control, engine=engine
        )
        states = read(solution)
        values = torch.stack([y if parts == 1 else torch.cat(y, 1) for y in states])
        weights = torch.linspace(0.5, 1.5, values.numel(), dtype=values.dtype).view_as(values)
        return [values.detach(), *torch.autograd.grad((values * weights).sum(), list(f.parameters()))]

    def rows(solution):
        ys = solution.ys
        return list(ys) if parts == 1 else list(zip(*ys, strict=True))

    expected = gradients("torch", lambda solution: solution.outputs)
    for read in (rows, lambda solution: solution.outputs):
        for found, wanted in zip(gradients("native", read), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("parts", [1, 2], ids=["tensor", "tuple"])
def test_a_failed_solve_keeps_the_outputs_that_it_reached_and_their_gradients(parts):
    f = field()

    def found(engine):
        times = torch.linspace(0.0, 2.0, 9).tolist()
        solution = anode.solve(
            on_parts(f, parts), state_of(parts), (0.0, 2.0), save_at=times, max_steps=2, engine=engine
        )
        assert solution.status == anode.Status.MAX_STEPS
        parts_of = (lambda y: (y,)) if parts == 1 else (lambda y: y)
        ys, last = torch.cat(parts_of(solution.ys), -1), torch.cat(parts_of(solution.y1), -1)
        reached = ys.isfinite()
        total = ys[reached].sum() + (last**2).sum()
        return [ys.detach(), *torch.autograd.grad(total, list(f.parameters()))]

    for ours, wanted in zip(found("native"), found("torch"), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("parts", [1, 2], ids=["tensor", "tuple"])
def test_gradients_of_several_outputs_can_be_differentiated_again(parts):
    f, t = field(), torch.linspace(0.0, 1.0, 4, dtype=torch.float64)

    def second(engine):
        y0 = state_of(parts)
        starts = [y.clone().requires_grad_() for y in ((y0,) if parts == 1 else y0)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ANODE_ENGINE", "torch" if engine == "torch" else "auto")
            ys = anode.odeint(on_parts(f, parts), starts[0] if parts == 1 else tuple(starts), t)
            ys = ys if parts == 1 else torch.cat(ys, -1)
            first = torch.autograd.grad((ys[1:3] ** 3).sum(), starts, create_graph=True)
            return torch.autograd.grad(sum((g**2).sum() for g in first), [*starts, *f.parameters()])

    for ours, wanted in zip(second("native"), second("torch"), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("grad", [True, False])
def test_a_defect_of_the_engine_does_not_end_a_solve(monkeypatch, grad):
    def fail(*_):
        raise ZeroDivisionError("division by zero")

    net, y0 = nn.Linear(2, 2), torch.rand(5, 2)
    monkeypatch.setattr("anode.engine.compiling.trace", fail)
    with torch.set_grad_enabled(grad):
        solution = anode.solve(lambda t, y: net(y), y0, (0.0, 1.0))
    assert str(solution.engine) == "torch (the engine failed to trace f: ZeroDivisionError: division by zero)"
    assert torch.equal(solution.y1, anode.solve(lambda t, y: net(y), y0, (0.0, 1.0), engine="torch").y1)
