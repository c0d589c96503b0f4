"""The results that are committed, and what the documentation says of them."""

import json
from collections import Counter
from pathlib import Path

import pytest

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
