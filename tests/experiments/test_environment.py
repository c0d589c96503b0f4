import json
import re
from datetime import date
from pathlib import Path

import torch

import anode
from anode.experiments import environment as module
from anode.experiments.environment import environment, revision, together


def test_the_environment_says_with_what_and_where_results_were_computed():
    found = environment()
    assert (found["anode"], found["torch"]) == (anode.__version__, torch.__version__)
    assert {"numpy", "python", "platform", "processors", "revision", "date"} <= set(found)
    assert date.fromisoformat(found["date"]) <= date.today()
    assert json.loads(json.dumps(found)) == found


def test_where_runs_differ_all_that_there_is_is_named():
    ones = [{"torch": "2", "engine": "native"}, {"torch": "3", "engine": "native"}, {"torch": "2"}]
    assert together(ones) == {"torch": "2; 3", "engine": "native; not recorded"}
    assert together([]) == {}


def test_the_revision_is_that_of_the_repository_or_nothing():
    expected = r"[0-9a-f]{10,40}(-dirty)?|.+-g[0-9a-f]{10}(-dirty)?"
    assert (Path(anode.__file__).parents[2] / ".git").exists() == bool(re.fullmatch(expected, revision()))


def test_there_is_no_revision_outside_of_a_repository(monkeypatch, tmp_path):
    installed = tmp_path / "lib" / "python" / "anode" / "experiments" / "environment.py"
    monkeypatch.setattr(module, "__file__", str(installed))
    assert revision() == ""


def test_there_is_no_revision_where_git_is_missing_or_fails(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert revision() == ""
    (tmp_path / "git").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "git").chmod(0o755)
    assert revision() == ""
    assert environment()["revision"] == ""
