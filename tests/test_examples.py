import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run(script, *arguments):
    return subprocess.run(
        [sys.executable, str(ROOT / script), *arguments], capture_output=True, text=True, timeout=300, check=True
    )


def test_the_demonstration_trains_both_models_and_draws_them(tmp_path):
    printed = run("examples/demonstration.py", "--epochs", "1", "--out", str(tmp_path)).stdout
    assert "augmented neural ODE" in printed
    assert (tmp_path / "demonstration.png").stat().st_size > 10_000


def test_the_benchmark_compares_equal_work(tmp_path):
    printed = run("benchmarks/core.py", "--seconds", "0", "--json", str(tmp_path / "rows.json")).stdout
    rows = [line.split("x   ")[1].split(" / ") for line in printed.splitlines() if "x   " in line]
    assert len(rows) == 7
    assert all(theirs == ours for theirs, ours in rows)


def test_the_demonstration_names_a_mistake_in_one_line(tmp_path):
    (tmp_path / "file").touch()
    for arguments, name in ((["--epochs", "0"], "--epochs"), (["--out", str(tmp_path / "file")], "--out")):
        script = [sys.executable, str(ROOT / "examples/demonstration.py"), *arguments]
        result = subprocess.run(script, capture_output=True, text=True, timeout=300, check=False)
        assert result.returncode == 2
        assert name in result.stderr.splitlines()[-1]
        assert "Traceback" not in result.stderr
