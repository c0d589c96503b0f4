import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(script, *arguments):
    return subprocess.run(
        [sys.executable, str(ROOT / script), *arguments], capture_output=True, text=True, timeout=300, check=True
    )


def test_the_example_trains_saves_and_draws(tmp_path):
    printed = run("examples/your_own_data.py", "--out", str(tmp_path), "--epochs", "3").stdout
    assert printed.count("validation loss") == 5
    assert (tmp_path / "model.safetensors").is_file()
    assert (tmp_path / "flow.png").stat().st_size > 10_000


def test_every_example_is_run_here():
    assert [path.name for path in (ROOT / "examples").glob("*.py")] == ["your_own_data.py"]


@pytest.mark.slow
def test_the_benchmark_of_the_core_compares_equal_work(tmp_path):
    printed = run("benchmarks/core.py", "--seconds", "0", "--json", str(tmp_path / "rows.json")).stdout
    rows = [line.split("x   ")[1].split(" / ") for line in printed.splitlines() if "x   " in line]
    assert len(rows) == 7
    assert all(theirs == ours for theirs, ours in rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["images", "search"])
def test_the_long_benchmarks_say_what_they_do(name):
    assert run(f"benchmarks/{name}.py", "--help").stdout.startswith("usage:")


@pytest.mark.slow
def test_the_benchmark_of_memory_measures_a_step():
    assert float(run("benchmarks/memory.py", "anode discrete", "1").stdout) > 50


@pytest.mark.slow
def test_the_benchmark_of_images_compares_equal_work(tmp_path):
    options = ["mnist", "--batch", "2", "--turns", "1", "--threads", "1", "--json", str(tmp_path / "rows.json")]
    printed = run("benchmarks/images.py", *options).stdout
    assert "NFE 20" in printed
    assert [line.split()[0] for line in printed.splitlines()[1:4]] == ["anode", "odeint", "odeint_adjoint"]
    assert set(json.loads((tmp_path / "rows.json").read_text())["mnist"]) == {
        *("anode", "odeint", "odeint_adjoint", "nfe", "peak MB", "images/s")
    }
