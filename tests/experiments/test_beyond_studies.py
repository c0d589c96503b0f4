import json

import pytest

from anode.experiments.beyond import printed
from anode.experiments.beyond.runs import LABELS
from anode.experiments.beyond.studies import STUDIES, densities
from anode.experiments.halves import HALVES
from anode.experiments.reproduce import planned
from anode.experiments.settings import Settings
from anode.experiments.study import draw
from helpers.tiny_beyond import results

PANELS = {
    "family": 10,
    "parity": 3,
    "how-many": 3,
    "why": 4,
    "noise": 2,
    "regularisers": 2,
    "densities": 30,
    "likelihoods": 8,
}


@pytest.mark.parametrize("name", PANELS)
def test_a_study_is_drawn_and_described_from_its_runs(name, monkeypatch):
    monkeypatch.setattr(densities, "CELLS", 8)
    monkeypatch.setattr(densities, "DRAWS", 2)
    drawing = STUDIES[name].draw(results())
    assert len(drawing.figure.axes) == PANELS[name]
    assert all(ax.lines or ax.collections for ax in drawing.figure.axes)
    assert all(len(row) == len(drawing.columns) for row in drawing.rows)
    assert "nan" not in drawing.remark


def test_a_study_becomes_files(tmp_path):
    draw(STUDIES["how-many"], results(), tmp_path)
    told = json.loads((tmp_path / "how-many.json").read_text())
    assert (tmp_path / "how-many.png").stat().st_size > 10_000
    assert len(told["protocol"]) == len(STUDIES["how-many"].runs)
    assert all(run["optimiser"].startswith("Adam") for run in told["protocol"])


def test_the_command_finds_all_of_it_and_single_studies():
    assert list(STUDIES) == list(PANELS)
    whole = planned(Settings(["beyond"]))
    assert (whole.repeats, len(whole.studies), len(whole.claims)) == (20, len(STUDIES), 17)
    assert "no images" in whole.protocols.note
    part = planned(Settings(["how-many"], repeats=2, seed=3))
    assert {run.name for run in part.runs} == set(STUDIES["how-many"].runs)
    assert {claim.number for claim in part.claims} == {25, 26, 27}
    assert whole.out.name == "beyond"


def test_no_study_and_no_claim_is_also_one_of_the_paper():
    paper = [HALVES[name] for name in ("toy", "images")]
    assert not set(STUDIES) & {study for half in paper for study in half.studies}
    assert not {claim.number for claim in HALVES["beyond"].claims} & {c.number for half in paper for c in half.claims}


def test_the_printed_tables_have_a_row_per_model_and_a_row_per_claim():
    rows = [*printed.family(results())]
    assert len(rows) == 2 + len(LABELS)
    assert {row.count("|") for row in rows} == {7}
    judged = {"number": 3, "statement": "Noise helps.", "verdict": "held", "test": "true in 4 of 5 repeats (sign test)"}
    certified = {"verdict": "not held", "test": "true in 0 of 5 repeats"}
    assert [*printed.claims({"claims": [judged, {**judged, "certified": certified}]})][2:] == [
        "| 3: Noise helps. | held, 4 of 5 | |",
        "| 3: Noise helps. | held, 4 of 5 | not held, 0 of 5 |",
    ]


def test_tables_of_other_protocols_are_refused(tmp_path):
    (tmp_path / "anode-results.json").write_text('{"repeats": 2, "seed": 0, "claims": []}')
    with pytest.raises(ValueError, match="no results of this version's g-d1-node"):
        printed.main(tmp_path)
