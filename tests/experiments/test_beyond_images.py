from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from anode.experiments.beyond.claims import IMAGE_CLAIMS
from anode.experiments.beyond.on_images import DATA, NETWORKS, SIZE, network, of_family, runs
from anode.experiments.beyond.runs import LABELS, cost_of
from anode.experiments.beyond.studies import IMAGE_STUDIES
from anode.experiments.beyond.widths import WITHIN, spread
from anode.experiments.certificates import Certificates
from anode.experiments.halves import HALVES, Protocols, family_protocols
from anode.experiments.images.scales import SCALES
from anode.experiments.reproduce import planned, reproduce
from anode.experiments.runs import load, save
from anode.experiments.settings import Settings
from anode.experiments.workers import do_runs
from helpers.made_up import made, result_of
from helpers.tiny import quiet

SCALE_NAMES = ("medium", "smoke")
RUNS = {name: runs(SCALES[name]) for name in SCALE_NAMES}
FAMILY, FOUR = [of_family(kind) for kind in LABELS], [network(*both) for both in NETWORKS]
REPEATS = 5
each_scale = pytest.mark.parametrize("scale", SCALE_NAMES)

pytestmark = pytest.mark.usefixtures("one_thread")


def shrunk(name: str, repeats: int = 1, seed: int = 0):
    """A run of the smoke scale, with even less to do."""
    small = {"side": 4, "filters": 2, "train_size": 32, "batch_size": 32, "test_size": 16, "evaluate_every": 3}
    return replace(family_protocols(SCALES["smoke"]).run(name, repeats, seed), **small)


@cache
def trained(name: str):
    with TemporaryDirectory() as folder:
        do_runs([shrunk(name)], Path(folder), 1, quiet())
        return load(shrunk(name), Path(folder))


# ---------------------------------------------------------------------------------------------------------------- runs


@each_scale
@pytest.mark.parametrize("group", [FAMILY, FOUR], ids=["family", "networks"])
def test_models_that_are_compared_have_equally_many_parameters(scale, group):
    assert spread([RUNS[scale][name].parameters for name in group]) <= WITHIN


@each_scale
def test_the_networks_have_about_as_many_parameters_as_later_work(scale):
    assert all(abs(RUNS[scale][name].parameters / SIZE - 1) <= WITHIN for name in FOUR)
    assert SIZE == 35_000


@pytest.mark.parametrize("kind", LABELS)
def test_all_states_have_six_channels_but_the_nodes(kind):
    model = RUNS["medium"][of_family(kind)].build()
    x = model.head.weight.new_zeros(2, 1, 14, 14)
    assert model.features(x).shape == (2, 1 if kind == "node" else 6, 14, 14)


@each_scale
def test_runs_differ_in_the_model_alone_and_use_the_data_of_the_image_half(scale):
    blank = {"name": "", "kind": "", "augment": 0, "filters": 0, "pooled": False}
    (run,) = {replace(run, **blank) for run in RUNS[scale].values()}
    size = SCALES[scale].sizes[DATA]
    assert (run.data, run.side, run.train_size, run.test_size, run.epochs) == (
        size.data,
        size.side,
        size.train,
        size.test,
        size.epochs,
    )
    assert (run.lr, run.repeats, run.max_steps) == (SCALES[scale].lr, SCALES[scale].repeats, 1000)


def test_models_take_the_settings_of_their_run():
    for name in ("mnist-node", "mnist-control", "pooled-zeros"):
        run = replace(RUNS["smoke"][name], max_steps=7)
        solver = run.build().flow.solver
        assert (solver.max_steps, solver.rtol, solver.atol) == (7, 1e-3, 1e-3)


@pytest.mark.parametrize("name", [*FAMILY, *FOUR])
def test_every_model_is_trained_and_certified(name):
    result = trained(name)
    assert result.trained.all()
    assert result.run.label in LABELS.values()
    assert np.isfinite(result.history.validation_accuracy).all()
    assert np.isfinite(cost_of(result)).all()
    assert ("pooling" in result.run.described()["network"]) == name.startswith("pooled")


def test_a_run_comes_back_from_disk(tmp_path):
    result = trained("pooled-zeros")
    save(result, tmp_path)
    read = load(result.run, tmp_path)
    x = next(result.model[0].parameters()).new_ones(2, 1, 4, 4)
    np.testing.assert_array_equal(read.history.loss, result.history.loss)
    assert (read.model[0](x) == result.model[0](x)).all()


# -------------------------------------------------------------------------------------------------------------- claims

BY_NUMBER = {claim.number: claim for claim in IMAGE_CLAIMS}
NODES = ("mnist-node", "plain-node", "pooled-node")

# For each claim what came of its runs if it is true, and ways in which it is not: by run, and for all others.
CASES = {
    36: (
        {"mnist-node": made(accuracy=0.8)},
        [{}, {"mnist-node": made(accuracy=0.8), "mnist-heavy-ball": made(accuracy=0.7)}],
    ),
    37: (
        {"mnist-hidden": made(test_loss=0.4)},
        [{}, {"mnist-hidden": made(test_loss=0.4, nfe=26)}, {"mnist-hidden": made(test_loss=0.6, nfe=14)}],
    ),
    38: (
        {"mnist-heavy-ball": made(nfe=14)},
        [{}, {"mnist-heavy-ball": made(nfe=14), "mnist-zeros": made(nfe=8)}],
    ),
    39: (
        {"plain-node": made(accuracy=0.7), "plain-zeros": made(accuracy=0.8)},
        [{"plain-zeros": made(accuracy=0.95)}, {}],
    ),
    40: (
        {"plain-node": made(accuracy=0.7), "pooled-node": made(accuracy=0.85)},
        [{}, {"plain-node": made(accuracy=0.85), "pooled-node": made(accuracy=0.7)}],
    ),
}
WAYS = [(number, way) for number, (_, ways) in CASES.items() for way in range(len(ways))]


def results_of(number: int, repeats: list) -> dict:
    """The results that a claim needs, from what each repeat came to."""
    found = {}
    for name in BY_NUMBER[number].runs:
        columns = [repeat.get(name, made()) for repeat in repeats]
        found[name] = result_of(name, columns, among=RUNS["medium"])
        nfe = np.array([[column["nfe"] for column in columns]] * 2, float)
        found[name].certificates = {"last": Certificates((1e-3, 1e-4), np.full(len(columns), 1e-4), nfe)}
    return found


def test_every_claim_belongs_to_a_study_and_to_runs_there_are():
    assert list(BY_NUMBER) == list(CASES) == [*range(36, 41)]
    for claim in IMAGE_CLAIMS:
        assert set(claim.runs) <= set(IMAGE_STUDIES[claim.figure].runs)


@pytest.mark.parametrize("number", CASES)
def test_a_claim_is_judged_repeat_by_repeat(number):
    agrees, (disagrees, *_) = CASES[number]
    assert BY_NUMBER[number].find(results_of(number, [agrees] * REPEATS)).verdict == "held"
    finding = BY_NUMBER[number].find(results_of(number, [agrees, disagrees, agrees]))
    assert finding.votes.tolist() == [True, False, True]


@pytest.mark.parametrize(("number", "way"), WAYS)
def test_a_claim_does_not_hold_if_all_repeats_disagree(number, way):
    finding = BY_NUMBER[number].find(results_of(number, [CASES[number][1][way]] * REPEATS))
    assert finding.verdict == "not held"


@pytest.mark.parametrize("number", [number for number, claim in BY_NUMBER.items() if claim.certified])
def test_evaluations_are_judged_at_the_tolerance_that_is_certified_for_all(number):
    agrees, ways = CASES[number]
    for facts, verdict in ((agrees, "held"), *((way, "not held") for way in ways)):
        results = results_of(number, [facts] * REPEATS)
        for each in results.values():  # as many at 1e-3, which is not certified
            each.certificates["last"].nfe[0] = 20
        assert BY_NUMBER[number].find_certified(results).verdict == verdict


# ------------------------------------------------------------------------------------------------- studies and command


def test_the_command_finds_it_by_name_and_beyond_does_not_include_it():
    whole = planned(Settings(["beyond-images"]))
    assert (whole.scale, whole.repeats, whole.out.name) == ("medium", 5, "beyond-images")
    assert [study.id for study in whole.studies] == ["mnist", "architecture"]
    assert [claim.number for claim in whole.claims] == [*range(36, 41)]
    assert {whole.protocols.run(name, 5, 0).name for name in RUNS["medium"]} == {*FAMILY, *FOUR}
    part = planned(Settings(["architecture"], scale="smoke", epochs=3))
    assert {run.name for run in part.runs} == set(FOUR)
    assert {run.epochs for run in part.runs} == {3}
    others = [half for name, half in HALVES.items() if name != "beyond-images"]
    assert not set(IMAGE_STUDIES) & {name for half in others for name in (half.name, *half.studies)}
    assert not set(BY_NUMBER) & {claim.number for half in others for claim in half.claims}


def test_the_note_says_what_the_runs_have_in_common():
    run = RUNS["medium"]["mnist-zeros"]
    note = HALVES["beyond-images"].scales["medium"].note
    used = (
        f"{run.train_size:,} training images of 14x14 pixels, for {run.epochs} epochs with batch size {run.batch_size}"
    )
    assert note.startswith(f"The data are mnist: {used}, and {run.test_size:,} test images.")
    assert f"to within 2 %. All models have the same learning rate, {run.lr:g}" in note
    assert "The data are digits: 192 training images" in HALVES["beyond-images"].scales["smoke"].note


@pytest.mark.parametrize("name", IMAGE_STUDIES)
def test_a_study_is_drawn_and_described_from_its_runs(name):
    results = {each: trained(each) for each in IMAGE_STUDIES[name].runs}
    drawing = IMAGE_STUDIES[name].draw(results)
    assert len(drawing.figure.axes) == 3
    assert all(ax.lines and ax.collections for ax in drawing.figure.axes)
    assert len(drawing.rows) == len(results)
    assert all(len(row) == len(drawing.columns) for row in drawing.rows)
    assert "nan" not in drawing.remark


def test_a_study_is_made_from_the_command_to_the_report(tmp_path, monkeypatch):
    half = HALVES["beyond-images"]
    monkeypatch.setitem(HALVES, half.name, replace(half, scales={"smoke": Protocols(1, "a note.", shrunk)}))
    work = planned(Settings(["architecture"], tmp_path / "out", jobs=1))
    content, failed = reproduce(work, quiet())
    assert not failed
    assert (content["half"], content["studies"]) == ("beyond-images", ["architecture"])
    assert [claim["number"] for claim in content["claims"]] == [39, 40]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "How much of table 1 is architecture" in page
