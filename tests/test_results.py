"""The results that are committed, and what the documentation says of them."""

import json
import re
from collections import Counter
from pathlib import Path
from statistics import median

import pytest

from anode.experiments.beyond.protocols import all_runs
from anode.experiments.beyond.rates import RATES
from anode.experiments.beyond.runs import LABELS

ROOT = Path(__file__).parents[1]
DOCS = " ".join((ROOT / "docs" / "reproduce.md").read_text().split())


def claims_of(half: str) -> dict[int, dict]:
    content = json.loads((ROOT / "results" / half / "anode-results.json").read_text())
    return {claim["number"]: claim for claim in content["claims"]}


def test_the_documentation_says_what_came_of_the_toy_half():
    claims = claims_of("toy")
    assert [number for number, claim in claims.items() if claim["verdict"] != "held"] == [17]
    assert "nine of ten claims held" in DOCS
    counts = {number: claim["test"].split()[2] for number, claim in claims.items() if claim["verdict"] == "held"}
    numbers = [number for number, agreeing in counts.items() if agreeing != "20"]
    *first, last = (f"{number}" for number in numbers)
    *before, end = (counts[number] for number in numbers)
    listed = f"Claims {', '.join(first)} and {last} held in {', '.join(before)} and {end} of 20 repeats"
    assert listed in DOCS


def test_the_documentation_says_where_verdicts_differ_at_a_certified_tolerance():
    judged = {number: claim for number, claim in claims_of("toy").items() if "certified" in claim}
    assert sorted(judged) == [6, 8, 17]
    differ = [number for number, claim in judged.items() if claim["certified"]["verdict"] != claim["verdict"]]
    assert f"the verdicts on claims {differ[0]} and {differ[1]} change" in DOCS
    found = {n: {each["name"]: each["value"] for each in c["certified"]["numbers"]} for n, c in judged.items()}
    node, anode = (found[8][f"{model}, growth"].split()[1][:4].rstrip(";") for model in ("NODE", "ANODE"))
    assert f"not held: {float(node):.1f} and {float(anode):.1f} times" in DOCS
    ratios = [found[n]["NODE's NFE over ANODE's, each at its own tolerance"].split()[1].rstrip(";") for n in (8, 17)]
    assert f"takes {ratios[0]} times the evaluations of the ANODE in d = 1 and {ratios[1]} times in d = 2" in DOCS


def test_the_documentation_says_what_came_of_the_image_half():
    found = Counter(claim["verdict"] for claim in claims_of("images").values())
    said = ", ".join(f"{found[verdict]} {verdict}" for verdict in ("held", "not held", "inconclusive"))
    assert f"Its {found.total()} claims: {said}." in DOCS


@pytest.mark.parametrize(("data", "name"), [("MNIST", "MNIST"), ("CIFAR10", "CIFAR-10"), ("SVHN", "SVHN")])
def test_the_documentations_accuracies_are_those_of_the_image_half(data, name):
    numbers = {entry["name"].split(" (")[0]: entry["value"] for entry in claims_of("images")[14]["numbers"]}
    assert f"| {name} | {numbers[f'{data}, NODE']} | {numbers[f'{data}, ANODE']} |" in DOCS


BEYOND = (ROOT / "docs" / "beyond.md").read_text()


def runs_of(half: str) -> dict[str, dict]:
    return {path.stem: json.loads(path.read_text()) for path in (ROOT / "results" / half / "runs").glob("*.json")}


def test_the_documentation_has_the_verdict_of_every_claim_beyond_the_paper():
    rows = dict(re.findall(r"^\| (\d+): [^|]+ (\|[^|]*\|[^|]*\|)$", BEYOND, re.MULTILINE))
    claims = claims_of("beyond")
    assert {int(number) for number in rows} == set(claims)
    for number, claim in claims.items():
        judged = [claim, *([claim["certified"]] if "certified" in claim else [])]
        cells = [f"{each['verdict']}, {each['test'].split()[2]} of 20" for each in judged]
        assert rows[str(number)] == f"| {' | '.join([*cells, ''][:2])} |".replace("|  |", "| |")


def test_the_documentations_table_of_the_family_is_that_of_the_results():
    runs = runs_of("beyond")
    columns = ["g-d1", "g-d2", "g-d5", "g-d10", "nested-d2"]
    for kind, label in LABELS.items():
        cells = [family_cell(runs[f"{column}-{kind}"]) for column in columns]
        assert f"| {label} | {' | '.join(cells)} |" in BEYOND


def family_cell(run: dict) -> str:
    certificates = run["certificates"]["last"]
    nfe = dict(zip(certificates["tolerances"], certificates["nfe"], strict=True))
    own = [nfe[tolerance][i] for i, tolerance in enumerate(certificates["loosest"]) if tolerance is not None]
    solved = [count for count in nfe[1e-3] if count is not None]  # of the other repeats the solve failed
    return f"{median(run['measured']['held-out']):.1e}; {median(solved):.0f}, {median(own):.0f}"


def test_the_learning_rates_beyond_the_paper_are_the_best_of_the_search():
    found = json.loads((ROOT / "results" / "beyond" / "search.json").read_text())
    known = {name: {rate: loss for rate, loss in each.items() if loss is not None} for name, each in found.items()}
    assert {name: float(min(losses, key=losses.get)) for name, losses in known.items()} == RATES


def test_the_results_beyond_the_paper_are_those_of_the_protocols():
    runs = runs_of("beyond")
    there = {name: json.loads(json.dumps(run.protocol())) for name, run in all_runs().items() if name in runs}
    assert {name: run["protocol"] for name, run in runs.items()} == there
