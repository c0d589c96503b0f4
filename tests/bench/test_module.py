"""What users write themselves, side by side, on tasks of a moment."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import torchdiffeq
from typer.testing import CliRunner

import anode
from anode.bench import speed
from anode.bench.sides import fields_in_torch, ours, with_torchdiffeq, your_loop, your_module, your_module_in_fit
from anode.bench.sides import your_module_in_solve as in_solve
from anode.bench.sides.in_torch import by_hook, by_odeint
from anode.bench.speed import PARTS, Found, Part, error_of, kept
from anode.bench.tables import own
from anode.bench.tasks import FIELDS, RATES, SPIRAL, Task
from anode.bench.turns import Entry, Row, alike
from anode.bench.works import entries
from anode.cli import app
from anode.files import DamagedFileError

TRAIN = Task("train", sizes=(3, 4, 3), activations=("relu", "none"), time=True, zeros=1, batch=1000)


def tiny(field, **changes):
    """A task of a moment with a field."""
    sizes = {"second order": (4, 8, 2), "cubic": (2, 2), "lotka-volterra": (2, 2)}.get(field, (2, 8, 2))
    time = field in ("network", "opaque", "density")
    task = Task("gradient", sizes, ("tanh", "none")[-(len(sizes) - 1) :], time=time, batch=5, tol=1e-5, field=field)
    return replace(task, **changes)


def slope(task, t=0.3):
    """A field's value at the start."""
    net, y = fields_in_torch.module(task), fields_in_torch.start(task)
    return fields_in_torch.flat(net(torch.tensor(t, dtype=getattr(torch, task.dtype)), y)), y, net


def perceptron(task, y):
    """The perceptron of a task, in NumPy."""
    for (matrix, bias), activation in zip(task.weights(), task.activations, strict=True):
        y = y @ matrix.T + bias
        y = np.tanh(y) if activation == "tanh" else y
    return y


def test_fields_compute_what_they_are_said_to():
    y = tiny("network", double=True).state()
    t = np.full((5, 1), 0.3)

    def value(field):
        return slope(tiny(field, double=True))[0].detach().numpy()

    task = tiny("network", double=True)
    np.testing.assert_allclose(value("network"), perceptron(task, np.hstack([y, t])))
    np.testing.assert_allclose(value("opaque"), value("network"))
    np.testing.assert_allclose(value("cubic"), y**3 @ np.array(SPIRAL))
    np.testing.assert_allclose(value("cubic network"), perceptron(tiny("cubic network", double=True), y**3))
    births, eaten, deaths, fed = RATES
    prey, predators = y.T
    expected = [(births - eaten * predators) * prey, (fed * prey - deaths) * predators]
    np.testing.assert_allclose(value("lotka-volterra"), np.stack(expected, 1))


def test_gates_of_time_scale_and_shift_every_layer():
    task = tiny("squash", double=True)
    y = task.state()
    for (matrix, bias), (gate, offset, shift), last in zip(task.weights(), task.gates(), (False, True), strict=True):
        y = (y @ matrix.T + bias) / (1 + np.exp(-(0.3 * gate + offset))) + 0.3 * shift
        y = y if last else np.tanh(y)
    np.testing.assert_allclose(slope(task)[0].detach().numpy(), y)


def test_the_second_half_of_a_second_order_state_is_the_slope_of_the_first():
    task = tiny("second order", double=True)
    value, y, _ = slope(task)
    assert torch.equal(value[:, :2], y[:, 2:])
    np.testing.assert_allclose(value[:, 2:].detach(), perceptron(task, y.numpy()))


def test_a_density_loses_the_trace_of_the_jacobian():
    value, (points, _), net = slope(tiny("density", double=True))
    t = torch.tensor(0.3, dtype=torch.float64)
    for point, (_, _, lost) in zip(points.detach(), value.detach(), strict=True):
        jacobian = torch.autograd.functional.jacobian(lambda z: net.net(torch.cat([z, t[None]])), point)
        assert lost.item() == pytest.approx(-jacobian.trace().item())


@pytest.mark.parametrize("kind", ["gradient", "solve"])
@pytest.mark.parametrize("field", FIELDS)
def test_every_field_is_solved_as_torchdiffeq_solves_it(field, kind):
    task = tiny(field, kind=kind)
    works = [side.work(task) for side in (with_torchdiffeq, your_module, in_solve)]
    theirs, *ours = [work.run() for work in works]
    for outcome in ours:
        assert outcome.shape[0] == 5
        np.testing.assert_allclose(outcome, theirs, rtol=1e-3)
    counts = {int(work.nfe()[0]) for work in works}
    assert len(counts) == 1
    assert works[0].engine() == ""
    assert works[1].engine() == works[2].engine() != ""


@pytest.mark.parametrize("field", ["network", "density"])
def test_means_over_several_times_are_those_of_torchdiffeq(field):
    several, last = tiny(field, kind="gradient", outputs=7), tiny(field, kind="gradient")
    theirs, *ours = [side.work(several).run() for side in (with_torchdiffeq, your_module, in_solve)]
    for outcome in ours:
        np.testing.assert_allclose(outcome, theirs, rtol=1e-3)
    assert np.abs(theirs - with_torchdiffeq.work(last).run()).max() > 1e-2


@pytest.mark.parametrize("method", ["euler", "midpoint", "rk4"])
def test_fixed_steps_are_those_of_torchdiffeq(method):
    task = tiny("opaque", kind="solve", method=method, step=0.1)
    works = [side.work(task) for side in (with_torchdiffeq, your_module, in_solve)]
    theirs, *ours = [work.run() for work in works]
    for outcome in ours:
        np.testing.assert_allclose(outcome, theirs, rtol=1e-5)
    stages = {"euler": 1, "midpoint": 2, "rk4": 4}[method]
    assert [work.nfe().tolist() for work in works] == [[10 * stages]] * 3


@pytest.mark.parametrize("fused", [False, True])
def test_all_ways_to_train_come_to_the_same_losses(fused):
    task = replace(TRAIN, fused=fused)
    works = [side.work(task) for side in (with_torchdiffeq, your_module, in_solve, your_module_in_fit, your_loop)]
    found = [work.run() for work in works]
    theirs, *ours = found
    assert len(theirs) == task.iterations > 1
    for losses in ours:
        np.testing.assert_allclose(losses, theirs, rtol=1e-3)
    assert len({tuple(work.nfe().tolist()) for work in works}) == 1
    for work, losses in zip(works, found, strict=True):
        np.testing.assert_array_equal(work.run(), losses)  # from the same start each time
    assert all(work.engine() for work in works[1:])


@pytest.mark.parametrize("name", speed.FAMILY)
def test_members_of_the_family_are_trained_as_with_torchdiffeq(name):
    task = replace(TRAIN, family=name)
    theirs, *mine = [side.work(task) for side in (with_torchdiffeq, ours, your_loop)]
    losses, nfe = theirs.run(), theirs.nfe()
    for work in mine:
        np.testing.assert_allclose(work.run(), losses, rtol=1e-3)
        np.testing.assert_array_equal(work.nfe(), nfe)
    assert mine[1].engine() == "native"


def test_what_a_module_keeps_besides_computing_is_kept():
    net = fields_in_torch.module(tiny("opaque"))
    task, counts = tiny("opaque", kind="solve"), []
    solve = your_module.by_counter(by_odeint(task, anode.odeint), counts)
    with torch.no_grad():
        solve(net, fields_in_torch.start(task))
    assert [len(net.times)] == counts


@pytest.mark.parametrize("field", [name for name in FIELDS if name != "opaque"])
def test_fields_and_their_gradients_are_the_same_in_jax(field):
    pytest.importorskip("diffrax")
    import jax

    from anode.bench.sides import fields_in_jax

    task = tiny(field)
    value, _, net = slope(task)
    value.sin().sum().backward()
    theirs, y = fields_in_jax.field(task), fields_in_jax.start(task)

    def flat(net):
        return jax.numpy.concatenate(jax.tree.leaves(net(0.3, y, None)), 1)

    np.testing.assert_allclose(flat(theirs), value.detach(), rtol=1e-5, atol=1e-6)
    gradients = jax.tree.leaves(jax.grad(lambda net: jax.numpy.sin(flat(net)).sum())(theirs))
    norms = [
        np.sqrt(sum(float((g**2).sum()) for g in each)) for each in (gradients, [p.grad for p in net.parameters()])
    ]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_who_does_other_work_than_torchdiffeq_is_named():
    rows = [
        Row("odeint", "anode, your module", 1, [1.0], nfe=20, outcome=[1.0]),
        Row("solve", "anode, your module in solve", 1, [1.0], nfe=26, outcome=[1.0]),
        Row("fit", "anode, your module in fit", 1, [1.0], nfe=20, outcome=[1.01]),
        Row("torchdiffeq", "torchdiffeq", 1, [1.0], nfe=20, outcome=[1.0]),
        Row("diffrax", "diffrax", 1, [1.0], nfe=32, outcome=[1.0001]),
    ]
    checked = alike(rows)
    assert [row.failed for row in checked] == [
        "",
        "took 26 evaluations, torchdiffeq 20",
        "result differs from torchdiffeq's by 1.0e-02",
        "",
        "",
    ]
    assert [len(row.seconds) for row in checked] == [1, 0, 0, 1, 1]
    assert alike(rows[:3]) == rows[:3]  # nobody to compare with


@pytest.mark.parametrize("work", [name for name, point in speed.OWN.items() if point[0].task.kind == "gradient"])
def test_no_decision_in_a_work_depends_on_rounding(work):
    task, counts = speed.OWN[work][0].task, []
    net, start = fields_in_torch.module(task), fields_in_torch.start(task)
    solve = by_hook(by_odeint(task, torchdiffeq.odeint), counts)
    for change in (1 - 2e-7, 1.0, 1 + 2e-7):
        with torch.no_grad():
            solve(net, tuple(part * change for part in start) if isinstance(start, tuple) else start * change)
    assert len(set(counts)) == 1


def test_the_works_are_those_of_one_thread_and_every_one_has_a_rival():
    part = PARTS["module"]
    assert len(set(part.works)) == len(part.works)
    for point in part.entries:
        assert all(entry.threads == entry.processes == 1 for entry in point)
        tasks = {replace(entry.task, fused=False) for entry in point}
        assert len(tasks) == 1
        assert "torchdiffeq" in [entry.side for entry in point]
    assert {entry.task.field for point in part.entries for entry in point} == set(FIELDS)


def test_errors_are_known_of_the_precise_solves_alone():
    row = Row("", "anode", 1, outcome=speed.truth()[:200].tolist())
    assert error_of(Entry("", "anode", replace(speed.EXACT, tol=1e-4)), row) == 0.0
    assert np.isnan(error_of(Entry("", "anode", TRAIN), row))


def few(*sides):
    """A part with two works."""
    task = replace(speed.EXACT, batch=2, tol=1e-6)
    ours = [("solve", "anode, your module in solve"), ("odeint", "anode, your module")]
    points = (entries(tiny("cubic"), *ours, rivals=sides), entries(task, ours[0], rivals=sides))
    return Part("own", points, works=("first", "second"))


@pytest.mark.slow
@pytest.mark.usefixtures("shared")
def test_the_command_shows_every_way_beside_the_rivals(tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "PARTS", {"module": few("torchdiffeq")})
    monkeypatch.setattr("anode.bench.turns.SECONDS", 0.01)
    result = CliRunner().invoke(app, ["bench", "speed", "--out", str(tmp_path), "--turns", "1"])
    assert (result.exit_code, result.exception) == (0, None)  # a slow machine prints lines about the progress
    assert "error" not in result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"module.json", "module.png", "module.svg", "speed.md"}
    found = kept(tmp_path, "module")
    assert all(row.nfe > 0 and not row.failed for rows in found.rows for row in rows)
    assert np.isnan(found.errors[0]).all()
    assert all(0 < error < 1e-4 for error in found.errors[1])
    _, columns, lines = own(found)
    assert [line[:2] for line in lines] == [["first", "solve"], ["first", "odeint"], ["second", "solve"]]
    assert all(line[columns.index("torchdiffeq")].endswith("x)") for line in lines)
    assert all(line[-1] for line in lines)  # which engine it was

    content = json.loads((tmp_path / "module.json").read_text())
    (tmp_path / "module.json").write_text(json.dumps({**content, "works": ["first", "another"]}))
    with pytest.raises(DamagedFileError, match=r"module\.json"):
        kept(tmp_path, "module")


def test_what_failed_or_is_not_there_leaves_its_place_in_the_table_empty(monkeypatch):
    monkeypatch.setattr(speed, "PARTS", {"module": few("torchdiffeq", "diffrax")})
    good = Row("solve", "anode, your module in solve", 1, [1e-3], nfe=20, engine="native")
    rival = Row("torchdiffeq", "torchdiffeq", 1, [8e-3], nfe=20)
    broken = Row("diffrax", "diffrax", 1, failed="no memory")
    quick = replace(rival, label="diffrax", side="diffrax", seconds=[5e-4], nfe=26)
    _, _, lines = own(Found("module", [[good, rival, quick], [good, broken]], []))
    assert lines == [
        ["first", "solve", "1 ms", "8 ms (8.0x)", "500 µs (0.50x)", "20 / 20 / 26", "native"],
        ["second", "solve", "1 ms", "", "no memory", "20 / - / -", "native"],
    ]
