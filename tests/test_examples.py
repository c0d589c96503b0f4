import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]


@pytest.fixture
def run(capfd, monkeypatch, threads):
    """Runs a script in this process, where torch is imported already, and returns what it printed."""
    dtype = torch.get_default_dtype()

    def run(script, *arguments):
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        runpy.run_path(str(ROOT / script), run_name="__main__")
        return capfd.readouterr().out

    yield run
    torch.set_default_dtype(dtype)


def test_the_example_trains_saves_and_draws(run, tmp_path):
    printed = run("examples/your_own_data.py", "--out", str(tmp_path), "--epochs", "3")
    assert printed.count("validation loss") == 5
    assert (tmp_path / "model.safetensors").is_file()
    assert (tmp_path / "flow.png").stat().st_size > 10_000


def numbers(line):
    """The numbers in a line, without those within words."""
    return [float(found) for found in re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?", line)]


@pytest.mark.slow
def test_the_density_flow_is_a_density_and_better_than_a_normal_distribution(run):
    *_, all_data, integral, samples, data = run("examples/density_flow.py").splitlines()
    assert numbers(integral) == [pytest.approx(1, abs=1e-3)]
    learned, normal = numbers(all_data)
    assert learned < normal - 0.5
    assert numbers(samples) == pytest.approx(numbers(data), abs=0.1)


@pytest.mark.slow
def test_the_hamiltonian_conserves_its_energy_as_scipy_sees_it(run):
    loss, *drifts, scipy, _ = run("examples/hamiltonian.py").splitlines()
    assert numbers(loss)[0] < 0.003
    assert [numbers(line)[1] < 20 * numbers(line)[0] for line in drifts] == [True] * 3
    assert numbers(scipy)[0] < 1e-7


@pytest.mark.slow
def test_the_rates_are_found_though_most_times_are_missing(run):
    *_, missing, rates = run("examples/noisy_trajectory.py").splitlines()
    assert numbers(missing)[0] < 10
    assert numbers(rates)[0] < 5


@pytest.mark.slow
def test_two_processes_train_as_one_does(run):
    alone, together = map(numbers, run("examples/several_processes.py").splitlines())
    assert together == pytest.approx([2, *alone], rel=1e-3)


@pytest.mark.slow
def test_a_price_on_energy_saves_evaluations(run):
    free, _, costly = map(numbers, run("examples/regulariser.py").splitlines())
    assert costly[2] < 0.8 * free[2]
    assert costly[3] < free[3]
    assert costly[1] < 0.05


@pytest.mark.slow
def test_the_spread_of_the_ensemble_grows_where_there_are_no_data(run):
    _, known, gap = map(numbers, run("examples/ensemble.py").splitlines())
    assert gap[1] > 1.5 * known[1]
    assert known[2] > 80


def test_every_example_is_run_here():
    tested = set(re.findall(r'run\("examples/(\w+\.py)"', Path(__file__).read_text()))
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == tested


TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_begins_with_a_picture_and_ends_with_an_exercise(path):
    title, first, *_, last = path.read_text().split("# %%")[1:]
    assert title.startswith(" [markdown]\n# # ")
    assert "plt." in first
    assert last.startswith(" [markdown]\n# ## Exercise\n")


@pytest.mark.slow
def test_the_benchmark_of_the_core_compares_equal_work(run, tmp_path):
    printed = run("benchmarks/core.py", "--seconds", "0", "--json", str(tmp_path / "rows.json"))
    rows = [line.split("x   ")[1].split(" / ") for line in printed.splitlines() if "x   " in line]
    assert len(rows) == 7
    assert all(theirs == ours for theirs, ours in rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["images", "search"])
def test_the_long_benchmarks_say_what_they_do(run, capfd, name):
    with pytest.raises(SystemExit) as end:
        run(f"benchmarks/{name}.py", "--help")
    assert end.value.code == 0
    assert capfd.readouterr().out.startswith("usage:")


@pytest.mark.slow
def test_the_benchmark_of_memory_measures_a_step():
    command = [sys.executable, ROOT / "benchmarks" / "memory.py", "anode discrete", "1"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    assert float(printed) > 50


@pytest.mark.slow
def test_the_benchmark_of_images_compares_equal_work(run, tmp_path):
    options = ["mnist", "--batch", "2", "--turns", "1", "--threads", "1", "--json", str(tmp_path / "rows.json")]
    printed = run("benchmarks/images.py", *options)
    assert "NFE 20" in printed
    assert [line.split()[0] for line in printed.splitlines()[1:4]] == ["anode", "odeint", "odeint_adjoint"]
    assert set(json.loads((tmp_path / "rows.json").read_text())["mnist"]) == {
        *("anode", "odeint", "odeint_adjoint", "nfe", "peak MB", "images/s")
    }
