import re

import numpy as np
import pytest
from scipy.stats import spearmanr

from anode.experiments.beyond.claims import CLAIMS
from anode.experiments.beyond.correlations import EXAMINED, spearman
from anode.experiments.beyond.measures import MEASURES
from anode.experiments.beyond.protocols import all_runs, protocol
from anode.experiments.beyond.studies import STUDIES
from anode.experiments.certificates import Certificates
from anode.experiments.runs import Result
from anode.experiments.toy.flows import FITTED
from anode.train.history import History

REPEATS = 5
BY_NUMBER = {claim.number: claim for claim in CLAIMS}
GOOD, BAD = FITTED / 10, 10 * FITTED


def made(loss=GOOD, held=GOOD, nfe=20, certified=None, grows=1.0, likelihood=-2.0, **measured) -> dict:
    """What every repeat of a run came to; ``certified`` is the evaluations at 1e-4, which is its own tolerance."""
    return {
        "loss": loss,
        "nfe": nfe,
        "certified": 2 * nfe if certified is None else certified,
        "grows": grows,
        "measured": {**dict.fromkeys(MEASURES, 1.0), "held-out": held, "log-likelihood": likelihood, **measured},
    }


def result_of(name: str, facts: list[dict]) -> Result:
    run = protocol(name, len(facts), 0)
    run = run.__class__(**{**run.__dict__, "epochs": 2})
    loss = np.array([[1.0, each["loss"]] for each in facts], np.float32).T
    nfe = np.array([[100, 100 * each["grows"]] for each in facts], np.int64).T
    history = History(loss, nfe, nfe, 0 * nfe, nfe[:, 0], np.ones(2, np.float32), 1, loss[:0])
    measured = {key: np.array([each["measured"][key] for each in facts]) for key in facts[0]["measured"]}
    costs = np.array([[each["nfe"], each["certified"]] for each in facts], float).T
    certificates = Certificates((1e-3, 1e-4), np.full(len(facts), 1e-4), costs)
    return Result(run, None, history, 1.0, {}, {"last": certificates}, measured)


def results_of(number: int, repeats: list) -> dict[str, Result]:
    """The results that a claim needs, from a function for each repeat that says what came of a run."""
    return {name: result_of(name, [facts(name) for facts in repeats]) for name in BY_NUMBER[number].runs}


def is_node(name: str) -> bool:
    return name.endswith(("-node", "-p0"))


def odd(name: str) -> bool:
    return int(re.search(r"-d(\d+)", name)[1]) % 2 == 1


def chosen(pick, yes: dict, no: dict):
    """Facts that depend on the name of a run."""
    return lambda name: yes if pick(name) else no


def by_energy(sign: float):
    """Evaluations that grow with kinetic energy and slope, or fall."""
    order = {name: i for i, name in enumerate(EXAMINED)}
    return lambda name: made(nfe=20 + order[name], energy=sign * order[name], lipschitz=sign * order[name])


# For each claim what came of its runs if it is true, and ways in which it is not.
CASES = {
    19: (
        chosen(is_node, made(loss=BAD), made()),
        [chosen(is_node, made(), made()), chosen(lambda n: n.endswith("linear") or is_node(n), made(loss=BAD), made())],
    ),
    20: (
        chosen(is_node, made(loss=1.0), made(loss=1e-4)),
        [
            chosen(is_node, made(loss=1e-4), made(loss=1e-4)),
            chosen(lambda n: n.endswith("ball") or is_node(n), made(loss=1.0), made(loss=1e-4)),
        ],
    ),
    21: (
        chosen(lambda n: n.endswith("hidden"), made(held=GOOD / 2), made()),
        [
            chosen(lambda n: n.endswith("hidden"), made(held=2 * GOOD), made()),
            chosen(lambda n: n.endswith("hidden"), made(held=GOOD / 2, nfe=26), made()),
            chosen(lambda n: n == "nested-d2-hidden", made(held=2 * GOOD), made()),
        ],
    ),
    22: (
        chosen(lambda n: n.endswith("heavy-ball"), made(nfe=14), made()),
        [
            chosen(lambda n: n.endswith("heavy-ball"), made(nfe=20), made()),
            chosen(lambda n: n.endswith("zeros"), made(nfe=10), made(nfe=14)),
        ],
    ),
    23: (
        chosen(is_node, made(loss=0.3), made(loss=1e-5)),
        [
            chosen(is_node, made(loss=1e-5), made(loss=1e-5)),
            chosen(lambda n: not n.endswith("zeros"), made(loss=0.3), made(loss=1e-5)),
        ],
    ),
    24: (
        chosen(odd, made(loss=0.3), made(loss=1e-5)),
        [chosen(odd, made(loss=0.3), made(loss=0.2)), chosen(lambda n: "d5" in n, made(loss=1e-5), made(loss=1e-5))],
    ),
    25: (lambda n: made(), [chosen(lambda n: "d5" in n, made(loss=BAD), made())]),
    26: (
        chosen(lambda n: n.endswith("p20"), made(held=2 * GOOD), made()),
        [lambda n: made(), chosen(lambda n: n == "count-d2-p20", made(held=GOOD / 2), made())],
    ),
    27: (
        chosen(is_node, made(nfe=30), made()),
        [lambda n: made(), chosen(lambda n: n == "count-d3-p3", made(nfe=40), made())],
    ),
    28: (
        chosen(is_node, made(straightness=0.5, energy=9.0, lipschitz=9.0, condition=9.0), made()),
        [
            chosen(is_node, made(straightness=2.0, energy=9.0, lipschitz=9.0, condition=9.0), made()),
            chosen(is_node, made(straightness=0.5, energy=0.1, lipschitz=9.0, condition=9.0), made()),
            chosen(is_node, made(straightness=0.5, energy=9.0, lipschitz=0.1, condition=9.0), made()),
            chosen(is_node, made(straightness=0.5, energy=9.0, lipschitz=9.0, condition=0.1), made()),
        ],
    ),
    29: (by_energy(1.0), [by_energy(-1.0)]),
    30: (
        chosen(lambda n: n == "noise-d1-0.3", made(), made(held=BAD)),
        [lambda n: made(held=BAD), chosen(lambda n: n == "noise-d1-0", made(), made(held=BAD))],
    ),
    31: (
        chosen(lambda n: n.endswith("-0.1"), made(nfe=14), made()),
        [
            lambda n: made(),
            chosen(lambda n: n.endswith("-0.1"), made(nfe=14, held=2 * GOOD), made()),
            chosen(lambda n: n.endswith("kinetic-0.1"), made(nfe=14), made()),
        ],
    ),
    32: (
        chosen(lambda n: n.endswith("zeros"), made(), made(held=2 * GOOD)),
        [
            chosen(lambda n: n.endswith("zeros"), made(), made(held=GOOD / 2)),
            chosen(lambda n: n.endswith("zeros"), made(), made(held=GOOD / 2, nfe=19)),
            chosen(lambda n: n.endswith("steer-0.5"), made(held=GOOD / 2), made()),
        ],
    ),
    33: (
        chosen(lambda n: n.endswith("cnf"), made(grows=3.0, nfe=60), made(grows=1.5)),
        [
            chosen(lambda n: n.endswith("cnf"), made(grows=1.5, nfe=20), made(grows=3.0, nfe=60)),
            lambda n: made(),
        ],
    ),
    34: (
        chosen(lambda n: n.endswith("cnf"), made(likelihood=-3.0), made()),
        [chosen(lambda n: n.endswith("cnf"), made(likelihood=-1.0), made())],
    ),
}
CASES[35] = CASES[34]
WAYS = [(number, way) for number, (_, ways) in CASES.items() for way in range(len(ways))]
CERTIFIED = [number for number, claim in BY_NUMBER.items() if claim.certified]


def test_every_claim_belongs_to_a_study_and_to_runs_there_are():
    assert sorted(BY_NUMBER) == sorted(CASES) == [*range(19, 36)]
    for claim in CLAIMS:
        assert claim.figure in STUDIES
        assert set(claim.runs) <= set(all_runs())


@pytest.mark.parametrize("number", CASES)
def test_a_claim_holds_if_all_repeats_agree(number):
    finding = BY_NUMBER[number].find(results_of(number, [CASES[number][0]] * REPEATS))
    assert finding.verdict == "held"
    names = [name for name, _ in finding.numbers]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("number", "way"), WAYS)
def test_a_claim_does_not_hold_if_all_repeats_disagree(number, way):
    finding = BY_NUMBER[number].find(results_of(number, [CASES[number][1][way]] * REPEATS))
    assert finding.verdict == "not held"


@pytest.mark.parametrize("number", CASES)
def test_a_claim_is_judged_repeat_by_repeat(number):
    agrees, (disagrees, *_) = CASES[number]
    finding = BY_NUMBER[number].find(results_of(number, [agrees, disagrees, agrees]))
    assert finding.votes.tolist() == [True, False, True]


@pytest.mark.parametrize("number", CASES)
def test_a_repeat_that_failed_counts_against_the_claim(number):
    results = results_of(number, [CASES[number][0]] * REPEATS)
    next(iter(results.values())).history.loss[-1, 2] = np.nan
    assert BY_NUMBER[number].find(results).votes.tolist() == [True, True, False, True, True]


@pytest.mark.parametrize("number", CERTIFIED)
def test_evaluations_are_judged_at_the_tolerance_that_is_certified_for_all(number):
    agrees, (disagrees, *_) = CASES[number]
    for facts, verdict in ((agrees, "held"), (disagrees, "not held")):
        results = results_of(number, [facts] * REPEATS)
        assert BY_NUMBER[number].find_certified(results).verdict == verdict
        for each in results.values():  # as many at 1e-3, which is not certified
            each.certificates["last"].nfe[0] = 20
        assert BY_NUMBER[number].find_certified(results).verdict == verdict


@pytest.mark.parametrize(
    ("number", "vote", "facts"),
    [
        (22, np.nan, lambda n: made(nfe=np.nan if n.endswith("heavy-ball") else 20)),
        (27, np.nan, lambda n: made(nfe=np.nan if n.endswith("p0") else 20)),
        (31, np.nan, lambda n: made(nfe=np.nan)),
        (31, 0, lambda n: made(nfe=20 if n.endswith("node") else np.nan, held=GOOD if n.endswith("node") else BAD)),
        (31, 1, lambda n: made(nfe=14 if n.endswith("-0.1") else 20 if n.endswith("node") else np.nan)),
        (32, np.nan, lambda n: made(nfe=np.nan)),
        (32, 1, lambda n: made(nfe=np.nan, held=GOOD if n.endswith("zeros") else BAD)),
        (32, 0, lambda n: made(nfe=np.nan if n.endswith("steer-0.5") else 20)),
    ],
)
def test_evaluations_that_are_unknown_do_not_vote_unless_the_rest_decides(number, vote, facts):
    np.testing.assert_array_equal(BY_NUMBER[number].find(results_of(number, [facts])).votes, [vote])


def test_the_rank_correlation_ignores_what_is_unknown():
    assert spearman(np.array([1.0, 2, np.nan, 4]), np.array([10.0, 20, -1e9, 400])) == pytest.approx(1)
    assert spearman(np.array([1.0, 2, 3]), np.array([9.0, 4, 1])) == pytest.approx(-1)
    assert np.isnan(spearman(np.array([1.0, 1, 1]), np.array([1.0, 2, 3])))


def test_the_rank_correlation_is_scipys_also_with_ties():
    random = np.random.default_rng(0)
    a, b = random.integers(0, 6, 40).astype(float), random.integers(0, 9, 40).astype(float)
    assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic, rel=1e-12)
