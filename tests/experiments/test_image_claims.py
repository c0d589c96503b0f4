import re

import numpy as np
import pytest

from anode.experiments.certificates import Certificates
from anode.experiments.findings import Finding
from anode.experiments.images.claims import (
    CLAIMS,
    TABLE1,
    UNSTABLE,
    evaluations_needed,
    lowest,
    reached,
    times_faster,
    unstable,
)
from anode.experiments.images.curves import percent
from anode.experiments.images.studies import STUDIES
from anode.train.record import Failure
from helpers.made_up import ITERATIONS, RUNS, falls, made, result_of, results_of

REPEATS = 5
BY_NUMBER = {claim.number: claim for claim in CLAIMS}

NODE = made(falls(24), nfe=30)  # at its lowest loss after 100 iterations
AT_ONCE = [200] * 4 + [20] + [200] * 20  # few evaluations just where the loss has fallen

# For each claim what a repeat has to be like to agree, and all ways in which another can disagree.
FAST = {
    "mnist-p0": NODE,
    "mnist-p10": made(falls(4)),  # 20 iterations: 5 times fewer
    "cifar10-p0": NODE,
    "cifar10-p10": made(falls(9)),  # 40 iterations: 2.5 times fewer
}
CHEAP = {
    "mnist-p0": NODE,
    "mnist-p10": made(falls(4), nfe=AT_ONCE),
    "cifar10-p0": NODE,
    "cifar10-p10": made(falls(4, 0.4), nfe=AT_ONCE),
}
EQUAL = {
    "mnist-node": made(0.5, 30),
    "mnist-p5": made(falls(20, 0.4), falls(20, 29, 90)),  # only the last tenth counts
    "cifar10-node": made(1.5, 50),
    "cifar10-p10": made(1.4, 49),
}
DECAY = {
    "mnist-node": made(0.3, 60),
    "mnist-node-decay": made(0.5, 40),
    "mnist-p5": made(0.4, 30),
    "mnist-p5-decay": made(0.9, 29),
}
TESTED = {f"{data}-node": made(accuracy=0.5) for data in TABLE1} | {
    "mnist-p5": made(accuracy=0.51),
    "cifar10-p10": made(accuracy=0.52),
    "svhn-p10": made(accuracy=0.53),
}
OVERFITTED = {"overfit-node": made(nfe=falls(24, 1001, 20)), "overfit-anode": made(nfe=1000)}
SCALED = {"tiny_imagenet-node": made(falls(24)), "tiny_imagenet-p5": made(falls(4, 0.4))}
MANY = {"mnist-p10": made(0.4, 30), "mnist-p100": made(0.5, 31)}

CASES = {
    10: (
        FAST,
        {
            "4.2 times on MNIST": FAST | {"mnist-p10": made(falls(5))},
            "2.3 times on CIFAR10": FAST | {"cifar10-p10": made(falls(10))},
            "never on MNIST": FAST | {"mnist-p10": made(0.51)},
            "never on CIFAR10": FAST | {"cifar10-p10": made(0.51)},
        },
    ),
    11: (
        CHEAP,
        {
            "0.7 on MNIST": CHEAP | {"mnist-p10": made(falls(4), 21)},
            "0.7 on CIFAR10": CHEAP | {"cifar10-p10": made(falls(4), 21)},
            "few only later": CHEAP | {"mnist-p10": made(falls(4), falls(5, 14, 40))},
            "never": CHEAP | {"cifar10-p10": made(0.51, 14)},
        },
    ),
    12: (
        EQUAL,
        {
            "loss on MNIST": EQUAL | {"mnist-p5": made(falls(20, 0.5), 29)},  # equal is not lower
            "loss on CIFAR10": EQUAL | {"cifar10-p10": made(1.6, 49)},
            "NFE on MNIST": EQUAL | {"mnist-p5": made(0.4, 30)},
            "NFE on CIFAR10": EQUAL | {"cifar10-p10": made(1.4, 51)},
            "at the end": EQUAL | {"mnist-p5": made(falls(22, 0.6, 0.1), 29)},
        },
    ),
    13: (
        DECAY,
        {
            "loss": DECAY | {"mnist-p5": made(0.5, 30)},
            "NFE": DECAY | {"mnist-p5": made(0.4, 40)},
            "no fewer with decay": DECAY | {"mnist-p5-decay": made(0.1, 30)},
            "fewest of the NODE": DECAY | {"mnist-node": made(0.3, 28)},
        },
    ),
    14: (
        TESTED,
        {data: TESTED | {f"{data}-node": made(accuracy=0.53)} for data in TABLE1}  # the same, at best
        | {"SVHN in training only": TESTED | {"svhn-p10": made(accuracy=0.49)}},
    ),
    15: (
        OVERFITTED,
        {
            "NODE stable": OVERFITTED | {"overfit-node": made(nfe=1000)},
            "ANODE unstable": OVERFITTED | {"overfit-anode": made(nfe=1001)},
            "both stable": OVERFITTED | {"overfit-node": made(nfe=20)},
        },
    ),
    16: (
        SCALED,
        {
            "slow": SCALED | {"tiny_imagenet-p5": made(falls(5, 0.4))},
            "fast but higher in the end": SCALED
            | {"tiny_imagenet-p5": made([2.0] * 4 + [0.4] * 18 + [0.6] * 3), "tiny_imagenet-node": made(falls(20))},
            "never": SCALED | {"tiny_imagenet-p5": made(0.51)},
        },
    ),
    18: (
        MANY,
        {
            "loss": MANY | {"mnist-p100": made(0.4, 31)},
            "NFE": MANY | {"mnist-p100": made(0.5, 30)},
        },
    ),
}
DISAGREEING = [(number, way) for number, (_, ways) in CASES.items() for way in ways]
UNTRAINED_AGAINST = [(claim.number, name) for claim in CLAIMS if not claim.failing_is_part_of_it for name in claim.runs]


def checked(number: int, repeats: list[dict]) -> Finding:
    return BY_NUMBER[number].find(results_of(repeats))


def fail(result, repeat: int, iterations) -> None:
    """Let iterations of a repeat be skipped, as where a solve fails."""
    rows = np.arange(ITERATIONS)[iterations]
    result.history.loss[rows, repeat] = result.history.accuracy[rows, repeat] = np.nan
    result.history.failures += [Failure(repeat, int(row), "MAX_STEPS: too many", "MAX_STEPS") for row in rows]


def test_every_claim_of_the_paper_about_images_is_checked_in_a_figure_from_runs_there_are():
    assert sorted(BY_NUMBER) == [10, 11, 12, 13, 14, 15, 16, 18] == sorted(CASES)
    for claim in CLAIMS:
        assert set(claim.runs) <= set(STUDIES[claim.figure].runs) <= set(RUNS)
        assert set(CASES[claim.number][0]) == set(claim.runs)
        assert all(set(way) == set(claim.runs) for way in CASES[claim.number][1].values())
        assert claim.statement
        assert claim.criterion


@pytest.mark.parametrize("number", CASES)
def test_a_claim_about_images_holds_if_all_repeats_agree(number):
    finding = checked(number, [CASES[number][0]] * REPEATS)
    assert finding.votes.tolist() == [True] * REPEATS
    assert finding.verdict == "held"


@pytest.mark.parametrize(("number", "way"), DISAGREEING)
def test_a_claim_about_images_does_not_hold_if_all_repeats_disagree(number, way):
    finding = checked(number, [CASES[number][1][way]] * REPEATS)
    assert finding.votes.tolist() == [False] * REPEATS
    assert finding.verdict == "not held"


@pytest.mark.parametrize(("number", "way"), DISAGREEING)
def test_each_repeat_has_a_vote_of_its_own(number, way):
    agrees, ways = CASES[number]
    finding = checked(number, [agrees, ways[way], agrees, ways[way], agrees])
    assert finding.votes.tolist() == [True, False, True, False, True]
    assert finding.verdict == "inconclusive"


@pytest.mark.parametrize("number", CASES)
def test_the_numbers_have_different_names_and_are_finite(number):
    finding = checked(number, [CASES[number][0]] * REPEATS)
    names = [name for name, _ in finding.numbers]
    assert len(set(names)) == len(names) >= 2
    assert all(re.search(r"\d", value) and "nan" not in value and "inf" not in value for _, value in finding.numbers)


NUMBERS = {
    10: {"MNIST: times fewer iterations": "5 ± 0", "CIFAR10: times fewer iterations": "2.5 ± 0"},
    11: {
        "MNIST: ANODE's NFE over NODE's at the same loss": "0.667 ± 0",
        "CIFAR10: ANODE's NFE over NODE's at the same loss": "0.667 ± 0",
    },
    12: {
        "MNIST, NODE: final loss": "0.5 ± 0",
        "MNIST, ANODE: final loss": "0.4 ± 0",
        "MNIST, NODE: final NFE": "30 ± 0",
        "MNIST, ANODE: final NFE": "29 ± 0",
        "CIFAR10, NODE: final loss": "1.5 ± 0",
        "CIFAR10, ANODE: final loss": "1.4 ± 0",
        "CIFAR10, NODE: final NFE": "50 ± 0",
        "CIFAR10, ANODE: final NFE": "49 ± 0",
    },
    13: {
        "NODE: final loss, NFE": "0.3 ± 0, 60 ± 0",
        "NODE with decay: final loss, NFE": "0.5 ± 0, 40 ± 0",
        "ANODE: final loss, NFE": "0.4 ± 0, 30 ± 0",
        "ANODE with decay: final loss, NFE": "0.9 ± 0, 29 ± 0",
    },
    14: {
        "MNIST, NODE (paper: 96.4 ± 0.5 %)": "50.0 ± 0.0 %",
        "MNIST, ANODE (paper: 98.2 ± 0.1 %)": "51.0 ± 0.0 %",
        "CIFAR10, NODE (paper: 53.7 ± 0.2 %)": "50.0 ± 0.0 %",
        "CIFAR10, ANODE (paper: 60.6 ± 0.4 %)": "52.0 ± 0.0 %",
        "SVHN, NODE (paper: 81.0 ± 0.6 %)": "50.0 ± 0.0 %",
        "SVHN, ANODE (paper: 83.5 ± 0.5 %)": "53.0 ± 0.0 %",
    },
    15: {
        "NODE: most evaluations in a solve": "1e+03 ± 0",
        "NODE: iterations that failed": "0",
        "NODE: final training loss": "1 ± 0",
        "ANODE: most evaluations in a solve": "1e+03 ± 0",
        "ANODE: iterations that failed": "0",
        "ANODE: final training loss": "1 ± 0",
    },
    16: {"NODE: final loss": "1.4 ± 0", "ANODE: final loss": "0.4 ± 0", "times fewer iterations": "5 ± 0"},
    18: {
        "p = 10: final loss": "0.4 ± 0",
        "p = 100: final loss": "0.5 ± 0",
        "p = 10: final NFE": "30 ± 0",
        "p = 100: final NFE": "31 ± 0",
        "p = 10: test loss": "0.5 ± 0",
        "p = 100: test loss": "0.5 ± 0",
    },
}


def measured(finding: Finding) -> dict[str, str]:
    """The numbers, without how many repeats agree with each part of the claim."""
    return {name: value for name, value in finding.numbers if not value.startswith("true in")}


@pytest.mark.parametrize("number", CASES)
def test_the_numbers_are_those_that_were_measured(number):
    assert measured(checked(number, [CASES[number][0]] * REPEATS)) == NUMBERS[number]


@pytest.mark.parametrize(("number", "way"), DISAGREEING)
def test_which_part_of_a_claim_is_true_is_said(number, way):
    agrees, ways = CASES[number]
    finding = checked(number, [agrees, ways[way], agrees, ways[way], agrees])
    counts = [value for _, value in finding.numbers if value.startswith("true in")]
    assert len(counts) >= 2
    assert set(counts) <= {"true in 5 of 5 repeats", "true in 3 of 5 repeats"}
    assert "true in 3 of 5 repeats" in counts


def test_the_numbers_are_means_and_standard_deviations_over_repeats():
    repeats = [MANY | {"mnist-p100": made(loss, 31 + i, test_loss=i)} for i, loss in enumerate((0.5, 0.7, 0.9))]
    numbers = dict(checked(18, repeats).numbers)
    assert numbers["p = 100: final loss"] == f"{0.7:.3g} ± {np.std([0.5, 0.7, 0.9]):.2g}"
    assert numbers["p = 100: final NFE"] == f"32 ± {np.std([31, 32, 33]):.2g}"
    assert numbers["p = 100: test loss"] == f"1 ± {np.std([0, 1, 2]):.2g}"


@pytest.mark.parametrize(("number", "name"), UNTRAINED_AGAINST)
def test_a_repeat_that_was_not_trained_to_the_end_counts_against_the_claim(number, name):
    results = results_of([CASES[number][0]] * 5)
    fail(results[name], 2, slice(70, None))
    finding = BY_NUMBER[number].find(results)
    assert finding.votes.tolist() == [True, True, False, True, True]
    assert all("nan" not in value and "inf" not in value for _, value in finding.numbers)


@pytest.mark.parametrize(("number", "name"), UNTRAINED_AGAINST)
def test_a_run_none_of_whose_iterations_could_be_solved_counts_against_the_claim(number, name):
    results = results_of([CASES[number][0]] * 5)
    for repeat in range(REPEATS):
        fail(results[name], repeat, slice(None))
    results[name].history.validation[:] = results[name].history.validation_accuracy[:] = np.nan
    finding = BY_NUMBER[number].find(results)
    assert finding.votes.tolist() == [False] * REPEATS
    assert all("nan" not in value and "inf" not in value for _, value in finding.numbers)


@pytest.mark.parametrize(("number", "name"), UNTRAINED_AGAINST)
def test_iterations_that_were_skipped_on_the_way_change_nothing(number, name):
    results = results_of([CASES[number][0]] * 5)
    for repeat in range(REPEATS):
        fail(results[name], repeat, np.r_[0:4, 30:33, 41:43, 92:95, 97:99])  # a whole stretch, and parts of some
    finding = BY_NUMBER[number].find(results)
    assert finding.votes.tolist() == [True] * REPEATS
    assert measured(finding) == NUMBERS[number]


def test_the_last_iteration_may_be_skipped_as_any_other():
    results = results_of([MANY] * REPEATS)
    fail(results["mnist-p100"], 2, [ITERATIONS - 1])
    assert BY_NUMBER[18].find(results).votes.tolist() == [True] * REPEATS


def test_a_test_accuracy_that_could_not_be_measured_counts_against_the_claim():
    results = results_of([TESTED] * REPEATS)
    results["svhn-p10"].history.validation_accuracy[-1, 1] = np.nan
    results["mnist-node"].history.validation_accuracy[-1, 3] = np.nan
    finding = BY_NUMBER[14].find(results)
    assert finding.votes.tolist() == [True, False, True, False, True]
    assert dict(finding.numbers)["SVHN, ANODE (paper: 83.5 ± 0.5 %)"] == "53.0 ± 0.0 % in 4 of 5 repeats"


# Claim 15, where failing is what is claimed


def test_a_node_whose_solves_fail_is_unstable_though_it_takes_few_evaluations():
    results = results_of([OVERFITTED | {"overfit-node": made(nfe=20)}] * REPEATS)
    for repeat in (0, 2, 4):
        fail(results["overfit-node"], repeat, [50])
    finding = BY_NUMBER[15].find(results)
    assert finding.votes.tolist() == [True, False, True, False, True]
    assert dict(finding.numbers)["NODE: iterations that failed"] == "3"


def test_a_node_that_failed_to_the_end_agrees_and_an_anode_that_failed_once_does_not():
    results = results_of([OVERFITTED | {"overfit-node": made(nfe=20)}] * REPEATS)
    for repeat in range(REPEATS):
        fail(results["overfit-node"], repeat, slice(60, None))
    fail(results["overfit-anode"], 1, [3])
    finding = BY_NUMBER[15].find(results)
    assert finding.votes.tolist() == [True, False, True, True, True]
    numbers = dict(finding.numbers)
    assert numbers["NODE: iterations that failed"] == str(40 * REPEATS)
    assert numbers["ANODE: iterations that failed"] == "1"
    assert numbers["NODE: final training loss"] == f"in none of {REPEATS} repeats"


def test_a_solve_that_failed_counts_with_the_evaluations_it_took():
    results = results_of([OVERFITTED] * 2)
    results["overfit-node"].history.nfe[:] = 20
    results["overfit-node"].history.nfe[7, 1] = 6002
    fail(results["overfit-node"], 1, [7])
    assert unstable(results["overfit-node"]).tolist() == [False, True]
    numbers = dict(BY_NUMBER[15].find(results).numbers)
    assert numbers["NODE: most evaluations in a solve"] == f"{3011:.3g} ± {2991:.2g}"


@pytest.mark.parametrize(("nfe", "expected"), [(UNSTABLE, False), (UNSTABLE + 1, True)])
def test_a_thousand_evaluations_are_stable_and_one_more_is_not(nfe, expected):
    result = result_of("overfit-node", [made(nfe=14), made(nfe=14)])
    result.history.nfe[41, 1] = nfe
    assert unstable(result).tolist() == [False, expected]


# What the claims are made of


def test_a_level_is_reached_at_the_end_of_the_first_stretch_whose_mean_is_there():
    result = result_of("mnist-p0", [made(falls(3), falls(3, 20, 30)), made(falls(7, 0.1), falls(8, 20, 30))])
    iterations, nfe = reached(result, np.array([0.5, 0.5]))
    assert (iterations.tolist(), nfe.tolist()) == ([16, 32], [20, 30])
    iterations, nfe = reached(result, np.array([0.4, 2.0]))
    assert (iterations.tolist(), nfe.tolist()) == ([np.inf, 4], [np.inf, 30])


def test_a_single_lucky_iteration_does_not_reach_a_level():
    result = result_of("mnist-p0", [made(1.0)])
    result.history.loss[10] = 0.0
    assert reached(result, np.array([0.5]))[0].tolist() == [np.inf]
    assert lowest(result).tolist() == [0.75]  # the mean of its stretch


def test_nothing_reaches_a_level_that_is_not_a_number_and_what_failed_reaches_none():
    result = result_of("mnist-p0", [made(1.0), made(1.0)])
    fail(result, 1, slice(None))
    assert reached(result, np.array([np.nan, 5.0]))[0].tolist() == [np.inf, np.inf]
    np.testing.assert_array_equal(lowest(result), [1.0, np.nan])


def test_the_lowest_loss_need_not_be_the_last_and_skipped_stretches_have_none():
    result = result_of("mnist-p0", [made([2.0] * 10 + [0.25] + [1.0] * 14)])
    fail(result, 0, slice(0, 8))
    assert lowest(result).tolist() == [0.25]


def test_a_gain_is_the_ratio_of_iterations_and_of_evaluations():
    node = result_of("mnist-p0", [made(falls(11), 40), made(falls(23), 60), made(falls(23), 60)])
    anode = result_of("mnist-p10", [made(falls(3), 10), made(falls(23), 90), made(0.9, 10)])
    np.testing.assert_array_equal(times_faster(node, anode), [3.0, 1.0, np.nan])
    assert evaluations_needed(node, anode).tolist() == [0.25, 1.5, np.inf]


def test_a_gain_over_a_node_that_was_never_trained_is_no_number():
    node, anode = result_of("mnist-p0", [made(1.0)]), result_of("mnist-p10", [made(1.0)])
    fail(node, 0, slice(None))
    assert np.isnan(times_faster(node, anode)).all()
    assert np.isnan(evaluations_needed(node, anode)).all()


def test_percents_are_of_those_that_were_measured():
    assert percent(np.array([0.5, 0.7])) == "60.0 ± 10.0 %"
    assert percent(np.array([0.5, np.nan, 0.7])) == "60.0 ± 10.0 % in 2 of 3 repeats"
    assert percent(np.array([np.nan, np.nan])) == "in none of 2 repeats"


@pytest.mark.parametrize("number", [12, 13, 18])
def test_evaluations_are_also_judged_at_the_tolerance_that_is_certified_for_all_models(number):
    claim, results = BY_NUMBER[number], results_of([CASES[number][0]] * 5)
    assert claim.find_certified(results) is None  # without certificates
    for i, result in enumerate(results.values()):
        nfe = result.history.nfe[-1].astype(float)
        loosest = np.full(5, 1e-2 if i % 2 else 1e-3)  # one of each pair needs 1e-3, so that all are compared there
        result.certificates = {"last": Certificates((1e-2, 1e-3), loosest, np.stack([nfe, nfe]))}
    assert claim.find_certified(results).verdict == "held"
    for result in results.values():
        result.certificates["last"].nfe[1] = 100 - result.certificates["last"].nfe[1]
    assert claim.find(results).verdict == "held"
    assert claim.find_certified(results).verdict == "not held"


@pytest.mark.parametrize("number", [12, 13, 18])
def test_a_model_without_a_certified_tolerance_refutes_nothing(number):
    claim, results = BY_NUMBER[number], results_of([CASES[number][0]] * 5)
    for i, result in enumerate(results.values()):
        nfe = np.full(5, 20.0 + i)
        result.certificates = {"last": Certificates((1e-2,), np.full(5, 1e-2 if i % 2 else np.nan), nfe[None])}
    finding = claim.find_certified(results)
    assert finding.verdict == "inconclusive"
    assert "unknown in 5" in finding.test
