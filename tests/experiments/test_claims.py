import re
from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

import anode
from anode.experiments.certificates import Certificates
from anode.experiments.findings import Finding, by_chance, known
from anode.experiments.runs import Result
from anode.experiments.study import mean_std, nfe_growth
from anode.experiments.toy.claims import CLAIMS, epochs_to
from anode.experiments.toy.flows import CONSTANT, FITTED, ends, euler
from anode.experiments.toy.protocols import protocol
from anode.experiments.toy.runs import MODELS
from anode.experiments.toy.studies import STUDIES
from anode.models.ensemble import stack
from anode.train.history import History
from anode.train.record import Failure
from helpers.tiny import PAPER

REPEATS = 5
BY_NUMBER = {claim.number: claim for claim in CLAIMS}
HALF = 0.5 * CONSTANT


def made(rate: float = 0.0, loss=(HALF, 0.01, 0.01), nfe=(20, 20, 20), validation=(0.1, 0.1, 0.1)) -> dict:
    """What one repeat of a run came to: the losses and NFE of its epochs, and a field that is rate times h."""
    return {"rate": rate, "loss": loss, "nfe": nfe, "validation": validation}


# For each claim what a repeat has to be like to agree, and all ways in which another can disagree.
CASES = {
    1: (
        {"map-g": made(-3), "map-identity": made(0)},
        [
            {"map-g": made(0), "map-identity": made(0)},  # the points stay apart
            {"map-g": made(-3), "map-identity": made(-0.5)},  # the identity is not learned
        ],
    ),
    2: (
        {"map-g": made(-3)},
        [{"map-g": made(0)}, {"map-g": made(1)}, {"map-g": made(-0.9)}],  # Euler's steps do not cross either
    ),
    3: (
        {"g-d1-resnet": made(loss=(HALF, 0.02)), "g-d1-node": made(loss=(HALF, 0.3))},
        [
            {"g-d1-resnet": made(loss=(HALF, 0.2)), "g-d1-node": made(loss=(HALF, 0.3))},  # neither fits
            {"g-d1-resnet": made(loss=(HALF, 0.02)), "g-d1-node": made(loss=(HALF, 0.02))},  # both fit
        ],
    ),
    4: (
        {"g-d2-resnet": made(loss=(HALF, 0.02, 0.01)), "g-d2-node": made(loss=(HALF, HALF, 0.02))},
        [
            {"g-d2-resnet": made(loss=(HALF, 0.02, 0.01)), "g-d2-node": made(loss=(HALF, HALF, HALF))},  # does not fit
            {"g-d2-resnet": made(loss=(HALF, HALF, 0.02)), "g-d2-node": made(loss=(HALF, 0.02, 0.02))},  # sooner
            {"g-d2-resnet": made(loss=(HALF, 0.02, 0.02)), "g-d2-node": made(loss=(HALF, 0.02, 0.02))},  # as soon
            {"g-d2-resnet": made(loss=(HALF, 0.02, 0.02)), "g-d2-node": made(loss=(HALF, 0.02, HALF))},  # for a while
        ],
    ),
    5: (
        {
            "g-d2-resnet": made(loss=(0.2, 0.1)),
            "g-d2-node": made(loss=(0.4, 0.3)),
            "separable-d2-resnet": made(loss=(0.2, 0.1)),
            "separable-d2-node": made(loss=(0.3, 0.2)),
        },
        [
            {
                "g-d2-resnet": made(loss=(0.2, 0.1)),
                "g-d2-node": made(loss=(0.25, 0.15)),
                "separable-d2-resnet": made(loss=(0.2, 0.1)),
                "separable-d2-node": made(loss=(0.3, 0.2)),
            }
        ],
    ),
    6: ({"g-d2-node": made(nfe=(20, 30, 40))}, [{"g-d2-node": made(nfe=(20, 40, 24))}]),
    7: (
        {
            f"g-d{d}-{model}": made(loss=losses)
            for d in (1, 2)
            for model, losses in (("node", (HALF, 0.2, 0.1)), ("anode", (HALF, 0.02, 0.02)))
        },
        [
            {
                f"g-d{d}-{model}": made(loss=losses)
                for d in (1, 2)
                for model, losses in (
                    ("node", (HALF, 0.2, 0.1)),
                    ("anode", (HALF, 0.05, 0.2) if d == worse else (HALF, 0.02, 0.02)),
                )
            }
            for worse in (1, 2)
        ]
        + [
            {
                f"g-d{d}-{model}": made(loss=losses)
                for d in (1, 2)
                for model, losses in (("node", (HALF, 0.1, 0.1)), ("anode", (HALF, HALF, 0.05)))
            }  # lower, but later, though before the end
        ],
    ),
    8: (
        {"g-d1-node": made(nfe=(20, 30, 40)), "g-d1-anode": made(nfe=(20, 20, 22))},
        [
            {"g-d1-node": made(nfe=(20, 30, 30)), "g-d1-anode": made(nfe=(20, 20, 22))},
            {"g-d1-node": made(nfe=(20, 30, 40)), "g-d1-anode": made(nfe=(20, 30, 40))},
        ],
    ),
    9: (
        {"slices-d2-node": made(validation=(0.4, 0.3, 0.2)), "slices-d2-anode": made(validation=(0.4, 0.1, 0.015))},
        [
            {"slices-d2-node": made(validation=(0.4, 0.3, 0.2)), "slices-d2-anode": made(validation=(0.4, 0.2, 0.1))},
            {
                "slices-d2-node": made(validation=(0.4, 0.02, 0.012)),
                "slices-d2-anode": made(validation=(0.4, 0.1, 0.02)),
            },
        ],
    ),
    17: (
        {"g-d2-node": made(0.5), "g-d2-anode": made(-0.5)},
        [
            {"g-d2-node": made(-35), "g-d2-anode": made(0.5)},  # too contracting to be undone
            {"g-d2-node": made(0.5), "g-d2-anode": made(-35)},
        ],
    ),
}
FLOWS = {1, 2, 17}
DISAGREEING = [(number, way) for number, (_, ways) in CASES.items() for way in range(len(ways))]


def linear(field: anode.MLPField, rate: float) -> None:
    """Make a field rate times h: rectified h and -h through all layers, and their difference at the end."""
    d = field.dim
    with torch.no_grad():
        for parameter in field.parameters():
            parameter.zero_()
        first, *middle, last = field.weights
        first[:d], first[d : 2 * d] = torch.eye(d), -torch.eye(d)
        for weight in middle:
            weight[: 2 * d, : 2 * d] = torch.eye(2 * d)
        last[:, :d], last[:, d : 2 * d] = rate * torch.eye(d), -rate * torch.eye(d)


def results_of(repeats: list[dict]) -> dict[str, Result]:
    """Results by run, from what each repeat came to."""
    found = {}
    for name in repeats[0]:
        columns = [repeat[name] for repeat in repeats]
        run = protocol(name, len(columns), 0)
        models = [MODELS[run.model](run) for _ in columns]
        for model, column in zip(models, columns, strict=True):
            if run.model != "ResNet":
                linear(model.field if run.model == "flow" else model.flow.field, column["rate"])
        loss = np.array([column["loss"] for column in columns], dtype=np.float32).T
        nfe = np.array([column["nfe"][: len(loss)] for column in columns], dtype=np.int64).T
        validation = np.array([column["validation"] for column in columns], dtype=np.float32).T
        history = History(
            loss=loss,
            nfe=nfe,
            accepted=nfe // 6,
            rejected=0 * nfe,
            nfe_backward=nfe[:, 0],
            seconds=np.zeros(len(loss), dtype=np.float32),
            batches=1,
            validation=validation if run.slices else validation[:0],
        )
        found[name] = Result(
            PAPER[name].__class__(**{**run.__dict__, "epochs": len(loss)}), stack(models), history, 1.0
        )
    return found


def checked(number: int, repeats: list[dict]) -> Finding:
    return BY_NUMBER[number].find(results_of(repeats))


def test_every_claim_of_the_paper_about_toy_data_is_checked_in_a_figure_from_runs_there_are():
    assert sorted(BY_NUMBER) == [*range(1, 10), 17] == sorted(CASES)
    for claim in CLAIMS:
        assert claim.figure in STUDIES
        assert set(claim.runs) <= set(PAPER)
        assert set(CASES[claim.number][0]) == set(claim.runs)
        assert claim.statement
        assert claim.criterion


@pytest.mark.parametrize("number", CASES)
def test_a_claim_holds_if_all_repeats_agree(number):
    finding = checked(number, [CASES[number][0]] * REPEATS)
    assert finding.votes.tolist() == [True] * REPEATS
    assert finding.verdict == "held"
    assert finding.test == "true in 5 of 5 repeats (sign test, p = 0.031)"


@pytest.mark.parametrize(("number", "way"), DISAGREEING)
def test_a_claim_does_not_hold_if_all_repeats_disagree(number, way):
    finding = checked(number, [CASES[number][1][way]] * REPEATS)
    assert finding.votes.tolist() == [False] * REPEATS
    assert finding.verdict == "not held"


@pytest.mark.parametrize(("number", "way"), DISAGREEING)
def test_a_claim_is_inconclusive_if_some_repeats_agree_and_some_do_not(number, way):
    agrees, ways = CASES[number]
    finding = checked(number, [agrees, ways[way], agrees, ways[way], agrees])
    assert finding.votes.tolist() == [True, False, True, False, True]
    assert finding.verdict == "inconclusive"


@pytest.mark.parametrize(("number", "name"), [(claim.number, name) for claim in CLAIMS for name in claim.runs])
def test_a_repeat_that_failed_counts_against_the_claim(number, name):
    results = results_of([CASES[number][0]] * REPEATS)
    history = results[name].history
    history.loss[-1, 2] = np.nan
    history.validation[-1:, 2] = np.nan
    history.failures.append(Failure(2, len(history) - 1, "MAX_STEPS: too many", "MAX_STEPS"))
    finding = BY_NUMBER[number].find(results)
    assert finding.votes.tolist() == [True, True, False, True, True]
    assert all("nan" not in value for _, value in finding.numbers)


@pytest.mark.parametrize("number", sorted(FLOWS))
def test_a_repeat_whose_flow_cannot_be_solved_counts_against_the_claim_and_does_not_stop_the_others(number):
    results = results_of([CASES[number][0]] * 2)
    name = BY_NUMBER[number].runs[0]
    with torch.no_grad():
        for key, parameter in results[name].model.named_parameters():
            if "weights" in key:
                parameter[0] = torch.inf
    results[name].history.loss[-1, 0] = np.nan
    assert BY_NUMBER[number].find(results).votes.tolist() == [False, True]


@pytest.mark.parametrize("number", CASES)
def test_the_numbers_of_a_claim_are_means_and_standard_deviations(number):
    finding = checked(number, [CASES[number][0]] * REPEATS)
    names = [name for name, _ in finding.numbers]
    assert len(set(names)) == len(names)
    assert any(re.fullmatch(r"(median [\d.e+-]+; )?-?[\d.e+-]+ ± [\d.e+-]+", value) for _, value in finding.numbers)


def test_the_numbers_are_those_of_the_repeats():
    agrees = CASES[3][0]
    losses = [0.01, 0.02, 0.03, 0.01, 0.02]
    finding = checked(3, [agrees | {"g-d1-resnet": made(loss=(HALF, loss))} for loss in losses])
    assert dict(finding.numbers) == {
        "ResNet fits": "true in 5 of 5 repeats",
        "NODE does not": "true in 5 of 5 repeats",
        "ResNet, final loss": f"{np.mean(losses):.3g} ± {np.std(losses):.2g}",
        "NODE, final loss": "0.3 ± 0",
    }


def test_the_numbers_say_how_many_repeats_they_leave_out():
    slow, quick = made(loss=(HALF, HALF, HALF)), made(loss=(HALF, 0.01, 0.01))
    repeats = [{"g-d2-resnet": quick, "g-d2-node": each} for each in (quick, slow, slow, slow, slow)]
    numbers = dict(checked(4, repeats).numbers)
    assert "1 of 5" in next(value for name, value in numbers.items() if name.startswith("NODE, epochs"))


@pytest.mark.parametrize("repeats", [1, 2, 5, 20, 51])
def test_the_sign_test_is_scipys(repeats):
    for agreeing in range(repeats + 1):
        expected = binomtest(agreeing, repeats, 0.5, alternative="greater").pvalue
        assert by_chance(np.arange(repeats) < agreeing) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("repeats", [1, 3, 4, 5, 10, 20])
def test_a_verdict_is_as_the_sign_test_says_and_never_both(repeats):
    found = [Finding(np.arange(repeats) < agreeing, []).verdict for agreeing in range(repeats + 1)]
    for agreeing, verdict in enumerate(found):
        held = binomtest(agreeing, repeats, 0.5, alternative="greater").pvalue < 0.05
        refuted = binomtest(agreeing, repeats, 0.5, alternative="less").pvalue < 0.05
        assert verdict == ("held" if held else "not held" if refuted else "inconclusive")
    order = ["not held", "inconclusive", "held"]
    assert found == sorted(found, key=order.index)
    assert ("held" in found) == (repeats >= 5)


@pytest.mark.parametrize(
    ("agreeing", "repeats", "says"),
    [
        (1, 3, "; a verdict needs at least 5 repeats"),
        (4, 5, "; a verdict needs 5 of 5 repeats for the claim, or against it or one of its parts"),
        (10, 20, "; a verdict needs 15 of 20 repeats for the claim, or against it or one of its parts"),
        (15, 20, "p = 0.021)"),
    ],
)
def test_what_is_inconclusive_says_how_many_repeats_a_verdict_takes(agreeing, repeats, says):
    assert Finding(np.arange(repeats) < agreeing, []).test.endswith(says)


def test_a_claim_is_refuted_only_where_one_of_its_parts_is():
    coins = {"one": np.array([1, 1, 0, 0, 1], bool), "other": np.array([0, 0, 1, 1, 0], bool)}
    found = Finding.of_parts(coins, [("seen", "1")])
    assert not found.votes.any()  # coins seldom all show heads
    assert (found.verdict, found.weakest[0]) == ("inconclusive", "other")
    assert found.numbers == [("one", "true in 3 of 5 repeats"), ("other", "true in 2 of 5 repeats"), ("seen", "1")]
    refuted = Finding.of_parts({**coins, "third": np.zeros(5, bool)}, [])
    assert refuted.verdict == "not held"
    assert refuted.test == "true in 0 of 5 repeats (sign test, against 'third', p = 0.031)"
    everything = np.ones(5, bool)
    held = Finding.of_parts({"one": everything, "other": everything}, [])
    assert held.test == "true in 5 of 5 repeats (sign test, p = 0.031)"
    assert held.among(np.array([1, 1, 1, 1, 0], bool)).verdict == "inconclusive"
    assert held.among(~everything).verdict == "not held"


def test_a_repeat_in_which_something_is_unknown_does_not_vote():
    few, many = np.array([1, 1, 1, 1, 1.0]), np.array([2, 2, 2, 2, np.nan])
    some = Finding(known(few < many, few, many), [])
    assert (some.verdict, some.test.partition(" (")[0]) == ("inconclusive", "true in 4 of 5 repeats, unknown in 1")
    assert Finding(known(few > many, few, many), []).verdict == "inconclusive"
    nothing = np.full(5, np.nan)
    assert Finding(known(few < nothing, few, nothing), []).verdict == "inconclusive"
    lost = Finding.of_parts({"fewer": known(few < nothing, few, nothing), "lower": few > 1}, [])
    assert lost.numbers[0] == ("fewer", "true in 0 of 5 repeats, unknown in 5")
    assert lost.verdict == "not held"  # by its other part
    assert Finding(known(few < nothing, few, nothing), []).among(np.zeros(5, bool)).verdict == "not held"


def test_a_verdict_stands_whatever_the_repeats_that_do_not_vote_would_have_said():
    given = set()
    for votes in combinations_with_replacement([0.0, 1.0, np.nan], 8):
        parts = {"one": np.array(votes), "other": np.ones(8)}
        verdict = Finding.of_parts(parts, []).verdict
        for said in (0.0, 1.0) if verdict != "inconclusive" else ():
            known_now = {name: np.nan_to_num(part, nan=said) for name, part in parts.items()}
            assert Finding.of_parts(known_now, []).verdict == verdict
            given.add((verdict, np.isnan(votes).any()))
    assert given == {("held", False), ("held", True), ("not held", False), ("not held", True)}


def test_parts_are_counted_without_the_repeats_that_failed():
    found = Finding.of_parts({"one": np.ones(5, bool), "other": np.ones(5, bool)}, [])
    assert found.among(np.array([1, 1, 1, 1, 0], bool)).numbers[0] == ("one", "true in 4 of 5 repeats")


def certified(loosest: float, nfe: list[int]) -> Certificates:
    """Certificates of repeats that are alike, with the evaluations at tolerances of 1e-2, 1e-3 and 1e-4."""
    return Certificates((1e-2, 1e-3, 1e-4), np.full(REPEATS, loosest), np.tile(np.array(nfe, float)[:, None], REPEATS))


GROWS = certified(1e-2, [14, 20, 30]), certified(1e-4, [14, 20, 60])
STAYS = certified(1e-2, [14, 20, 30]), certified(1e-3, [14, 20, 32])
"""The models after the first epoch and after the last; at 1e-3 neither takes more evaluations than before."""


@pytest.mark.parametrize(
    ("number", "stages", "verdict"),
    [
        (6, {"g-d2-node": GROWS}, "held"),  # though at 1e-3 it does not grow
        (6, {"g-d2-node": STAYS}, "not held"),
        (8, {"g-d1-node": GROWS, "g-d1-anode": STAYS}, "held"),
        (8, {"g-d1-node": GROWS, "g-d1-anode": GROWS}, "not held"),
        (8, {"g-d1-node": STAYS, "g-d1-anode": STAYS}, "not held"),
        (6, {"g-d2-node": (GROWS[0], certified(np.nan, [14, 20, 60]))}, "inconclusive"),
        (8, {"g-d1-node": (STAYS[0], certified(np.nan, [14, 20, 60])), "g-d1-anode": STAYS}, "inconclusive"),
        (17, {"g-d2-node": GROWS, "g-d2-anode": STAYS}, "held"),
        (17, {"g-d2-node": (GROWS[0], certified(np.nan, [14, 20, 60])), "g-d2-anode": STAYS}, "not held"),
    ],
)
def test_claims_about_evaluations_are_judged_at_the_tolerance_that_all_models_share(number, stages, verdict):
    results = results_of([CASES[number][0]] * REPEATS)
    assert BY_NUMBER[number].find_certified(results) is None  # without certificates
    for name, (first, last) in stages.items():
        results[name].certificates = {"first": first, "last": last}
    finding = BY_NUMBER[number].find_certified(results)
    assert finding.verdict == verdict
    results[next(iter(stages))].history.loss[-1, 2] = np.nan
    assert not BY_NUMBER[number].find_certified(results).votes[2]


def test_the_best_constant_on_g_has_the_loss_that_is_said():
    y = anode.datasets.g(2).y
    losses = [torch.nn.functional.smooth_l1_loss(torch.full_like(y, c), y) for c in np.linspace(-1.5, 1.5, 601)]
    assert float(min(losses)) == pytest.approx(CONSTANT, abs=1e-5)
    assert pytest.approx(CONSTANT / 10) == FITTED


def test_a_spread_leaves_out_what_is_not_finite():
    assert mean_std(np.array([1.0, 2.0, np.nan, np.inf, 3.0])) == "2 ± 0.82 in 3 of 5 repeats"
    assert mean_std(np.array([np.nan, np.inf])) == "in none of 2 repeats"


def test_epochs_are_counted_to_the_first_below_a_level():
    result = results_of(
        [{"g-d2-node": made(loss=loss)} for loss in ((0.5, 0.1, 0.3), (0.5, 0.4, 0.3), (0.1, 0.5, 0.5))]
    )
    assert epochs_to(result["g-d2-node"], 0.2).tolist() == [2, np.inf, 1]
    assert epochs_to(result["g-d2-node"], np.array([0.4, 0.35, 0.05])).tolist() == [2, 3, np.inf]


def test_growth_is_from_the_first_epoch_to_the_last():
    result = results_of([{"g-d2-node": made(nfe=(20, 90, 30))}, {"g-d2-node": made(nfe=(20, 2, 10))}])["g-d2-node"]
    assert nfe_growth(result).tolist() == [1.5, 0.5]


def test_a_field_made_for_these_tests_has_the_flow_that_is_known():
    result = results_of([{"map-g": made(-3)}, {"map-g": made(0)}, {"map-g": made(1)}])["map-g"]
    expected = np.exp([[-3], [0], [1]]) * [-1, 1]
    np.testing.assert_allclose(ends(result), expected, rtol=0.02)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_euler_takes_so_many_steps_of_the_same_field(steps):
    flow = results_of([{"map-g": made(-3)}])["map-g"].member(0)
    with torch.no_grad():
        found = euler(flow, torch.tensor([[1.0]]), steps)[:, 0, 0]
    torch.testing.assert_close(found, (1 - 3 / steps) ** torch.arange(steps + 1.0))
