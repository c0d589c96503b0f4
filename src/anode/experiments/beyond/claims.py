"""Claims beyond the paper, by its authors and by those who followed, as code: stated before anything was trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from anode.data.densities import DENSITIES
from anode.experiments.beyond.correlations import EXAMINED, correlation
from anode.experiments.beyond.densities import TABLES
from anode.experiments.beyond.measures import MEASURES
from anode.experiments.beyond.protocols import (
    COUNT_DIMS,
    NOISES,
    STRENGTHS,
    name_of,
    regularised,
)
from anode.experiments.beyond.runs import LABELS, at_shared, cost_of
from anode.experiments.certificates import shared
from anode.experiments.findings import Certified, Claim, Finding, Votes
from anode.experiments.runs import Result
from anode.experiments.study import Results, mean_std, median_mean, tolerance_range
from anode.experiments.toy.flows import FITTED
from anode.train.record import Array

AUGMENTED = tuple(kind for kind in LABELS if kind != "node")
REPORTED = {"node": 3.4e-1, "zeros": 4.5e-6, "second-order-learned": 3.8e-5}
"""Training errors on parity in d = 1 that Norcliffe et al. (2020) report."""


def named(data: str, dim: int, kinds: Iterable[str]) -> tuple[str, ...]:
    """The runs of some models on the same data."""
    return tuple(name_of(data, dim, kind) for kind in kinds)


def held_out(result: Result) -> Array:
    """The loss of each repeat on points that it was not trained on."""
    return result.measured["held-out"]


def below(results: Results, runs: Mapping[str, str], level: float, value: Callable[[Result], Array]) -> Finding:
    """That a value of all runs but the first, by what they are called, is below a level, and that of the first not."""
    values = {label: value(results[name]) for label, name in runs.items()}
    first = next(iter(values))
    parts = {f"{label}: below": each < level for label, each in values.items() if label != first}
    parts[f"{first}: not below"] = ~(values[first] < level)
    return Finding.of_parts(parts, [(label, mean_std(each)) for label, each in values.items()])


# ------------------------------------------------------------------------------------------------------------- family


def all_fit_g(results: Results) -> Finding:
    """Claim 19."""
    return below(results, {LABELS[k]: name_of("g", 1, k) for k in LABELS}, FITTED, lambda r: r.final_loss)


def all_learn_the_swap(results: Results) -> Finding:
    """Claim 20."""
    return below(results, {LABELS[k]: name_of("swap", 1, k) for k in LABELS}, 0.01, lambda r: r.final_loss)


def learned_is_better(results: Results) -> Finding:
    """Claim 21."""
    return learned_against_zeros(results, lambda data, dim: [cost_of(results[n]) for n in lifted(data, dim)])


def learned_is_better_certified(results: Results) -> Finding:
    """Claim 21, at a tolerance certified for both models."""
    return learned_against_zeros(results, lambda data, dim: at_shared([results[n] for n in lifted(data, dim)]))


def lifted(data: str, dim: int) -> tuple[str, ...]:
    """The runs with zeros and with a learned augmentation."""
    return named(data, dim, ("zeros", "hidden"))


def learned_against_zeros(results: Results, costs: Callable[[str, int], list[Array]]) -> Finding:
    """That a learned augmentation has a lower loss than zeros, and takes no more evaluations."""
    parts: dict[str, Votes] = {}
    numbers = []
    for title, data, dim in (("g, d = 2", "g", 2), ("nested spheres", "nested", 2)):
        zeros, learned = (held_out(results[name]) for name in lifted(data, dim))
        before, after = costs(data, dim)
        parts[f"{title}: lower loss"] = learned < zeros
        parts[f"{title}: no more evaluations"] = after <= before
        numbers += [
            (f"{title}: held-out loss, zeros and learned", f"{mean_std(zeros)} and {mean_std(learned)}"),
            (f"{title}: NFE, zeros and learned", f"{median_mean(before)} and {median_mean(after)}"),
        ]
    return Finding.of_parts(parts, numbers)


CHEAP = ("heavy-ball", "node", "zeros", "second-order-learned")


def heavy_balls_are_cheap(results: Results) -> Finding:
    """Claim 22."""
    return cheapest(results, lambda compared: [cost_of(each) for each in compared])


def heavy_balls_are_cheap_certified(results: Results) -> Finding:
    """Claim 22, at a tolerance certified for all models compared."""
    return cheapest(results, at_shared)


def cheapest(results: Results, costs: Callable[[Sequence[Result]], list[Array]]) -> Finding:
    """That the heavy ball takes the fewest evaluations, on each of the data."""
    parts: dict[str, Votes] = {}
    numbers = []
    for title, data in (("g, d = 2", "g"), ("nested spheres", "nested")):
        found = dict(zip(CHEAP, costs([results[name] for name in named(data, 2, CHEAP)]), strict=True))
        parts |= {f"{title}: fewer than {LABELS[k]}": found["heavy-ball"] < found[k] for k in CHEAP[1:]}
        numbers += [(f"{title}: NFE, {LABELS[kind]}", median_mean(each)) for kind, each in found.items()]
    return Finding.of_parts(parts, numbers)


# ------------------------------------------------------------------------------------------------------------- parity


def parity_in_one_dimension(results: Results) -> Finding:
    """Claim 23."""
    losses = {kind: results[name_of("parity", 1, kind)].final_loss for kind in REPORTED}
    parts = {f"{LABELS[kind]}: below 1e-3": losses[kind] < 1e-3 for kind in ("zeros", "second-order-learned")}
    parts["NODE: above 0.1"] = losses["node"] > 0.1
    numbers = [(f"{LABELS[kind]} (reported: {REPORTED[kind]:.1e})", median_mean(each)) for kind, each in losses.items()]
    return Finding.of_parts(parts, numbers)


def odd_dimensions_are_harder(results: Results) -> Finding:
    """Claim 24."""
    losses = {dim: results[name_of("parity", dim, "node")].final_loss for dim in range(1, 11)}
    parts = {f"d = {d} above 3 times d = {d + 1}": losses[d] > 3 * losses[d + 1] for d in (1, 3, 5, 7, 9)}
    return Finding.of_parts(parts, [(f"d = {dim}", median_mean(each)) for dim, each in losses.items()])


# ----------------------------------------------------------------------------------------------------------- how many


def counted(dim: int, *counts: int) -> tuple[str, ...]:
    """The runs with so many added dimensions."""
    return tuple(f"count-d{dim}-p{p}" for p in counts)


def as_many_are_enough(results: Results) -> Finding:
    """Claim 25."""
    losses = {d: results[f"count-d{d}-p{d}"].final_loss for d in COUNT_DIMS}
    parts = {f"d = {d}: fits": each < FITTED for d, each in losses.items()}
    return Finding.of_parts(parts, [(f"d = p = {d}, final loss", mean_std(each)) for d, each in losses.items()])


def many_hurt(results: Results) -> Finding:
    """Claim 26."""
    parts: dict[str, Votes] = {}
    numbers = []
    for d in COUNT_DIMS:
        few, many = (held_out(results[name]) for name in counted(d, d, 20))
        parts[f"d = {d}"] = many > few
        numbers.append((f"d = {d}: held-out loss, p = {d} and p = 20", f"{mean_std(few)} and {mean_std(many)}"))
    return Finding.of_parts(parts, numbers)


def more_are_cheaper(results: Results) -> Finding:
    """Claim 27."""
    return cheaper_by_count(results, lambda compared: [cost_of(each) for each in compared])


def more_are_cheaper_certified(results: Results) -> Finding:
    """Claim 27, at a tolerance certified for both models."""
    return cheaper_by_count(results, at_shared)


def cheaper_by_count(results: Results, costs: Callable[[Sequence[Result]], list[Array]]) -> Finding:
    """That a solve takes fewer evaluations with as many added dimensions as there are than without any."""
    parts: dict[str, Votes] = {}
    numbers = []
    for d in COUNT_DIMS:
        none, some = costs([results[name] for name in counted(d, 0, d)])
        parts[f"d = {d}"] = some < none
        numbers.append((f"d = {d}: NFE, p = 0 and p = {d}", f"{median_mean(none)} and {median_mean(some)}"))
    return Finding.of_parts(parts, numbers)


# ---------------------------------------------------------------------------------------------------------------- why


def augmented_flows_are_simpler(results: Results) -> Finding:
    """Claim 28."""
    parts: dict[str, Votes] = {}
    numbers = []
    for d in (1, 2):
        node, anode = (results[name].measured for name in named("g", d, ("node", "zeros")))
        parts |= {
            f"d = {d}: straighter": anode["straightness"] > node["straightness"],
            f"d = {d}: less kinetic energy": anode["energy"] < node["energy"],
            f"d = {d}: smaller Lipschitz constant": anode["lipschitz"] < node["lipschitz"],
        }
        if d > 1:  # every flow on a line has a condition number of 1
            parts[f"d = {d}: better conditioned"] = anode["condition"] < node["condition"]
        numbers += [
            (f"d = {d}: {words}, NODE and ANODE", f"{median_mean(node[key])} and {median_mean(anode[key])}")
            for key, words in MEASURES.items()
            if d > 1 or key not in ("curvature", "condition")
        ]
    return Finding.of_parts(parts, numbers)


def energy_and_slope_tell_the_cost(results: Results) -> Finding:
    """Claim 29."""
    found = {key: correlation(results, key) for key in MEASURES}
    parts = {f"{MEASURES[key]}: above 0.5": found[key] > 0.5 for key in ("energy", "lipschitz")}
    return Finding.of_parts(parts, [(MEASURES[key], mean_std(each)) for key, each in found.items()])


# -------------------------------------------------------------------------------------------------- noise, regularisers


def noise_lets_a_node_learn(results: Results) -> Finding:
    """Claim 30."""
    losses = {scale: held_out(results[f"noise-d1-{scale:g}"]) for scale in NOISES}
    best = np.nanmin([each for scale, each in losses.items() if scale], axis=0)
    numbers = [(f"noise {scale:g}, held-out loss", mean_std(each)) for scale, each in losses.items()]
    return Finding(best < FITTED, [("best of all noise", mean_std(best)), *numbers])


def regularisers_save(results: Results) -> Finding:
    """Claim 31."""
    node = results[name_of("g", 2, "node")]
    parts: dict[str, Votes] = {}
    numbers = [("none: NFE and held-out loss", pair(node))]
    for name in ("kinetic", "jacobian"):
        runs = [results[regularised("node", name, strength)] for strength in STRENGTHS[name]]
        parts[f"{name}: some strength saves"] = np.any([saves(run, node) for run in runs], axis=0)
        numbers += [(f"{name} {run.run.strength:g}: NFE and held-out loss", pair(run)) for run in runs]
    return Finding.of_parts(parts, numbers)


def saves(result: Result, plain: Result) -> Votes:
    """Whether evaluations fall by a tenth and the held-out loss rises by no more than a tenth."""
    found: Votes = (cost_of(result) < 0.9 * cost_of(plain)) & (held_out(result) < 1.1 * held_out(plain))
    return found


def pair(result: Result) -> str:
    """Evaluations and held-out loss, in words."""
    return f"{median_mean(cost_of(result))} and {mean_std(held_out(result))}"


def augmentation_beats_regularisers(results: Results) -> Finding:
    """Claim 32."""
    anode = results[name_of("g", 2, "zeros")]
    parts: dict[str, Votes] = {}
    numbers = [("ANODE: NFE and held-out loss", pair(anode))]
    for name, strengths in STRENGTHS.items():
        runs = [results[regularised("node", name, strength)] for strength in strengths]
        worse = [(held_out(run) > held_out(anode)) | (cost_of(run) > cost_of(anode)) for run in runs]
        parts[f"{name}: none is as good in both"] = np.all(worse, axis=0)
        numbers += [(f"NODE, {name} {run.run.strength:g}: NFE and held-out loss", pair(run)) for run in runs]
    return Finding.of_parts(parts, numbers)


# ---------------------------------------------------------------------------------------------------------- densities


def flows(kind: str, names: Iterable[str]) -> tuple[str, ...]:
    """The runs of a kind of density flow."""
    return tuple(f"density-{data}-{kind}" for data in names)


def growth(result: Result) -> Array:
    """How many times the first epoch's mean NFE the last epoch's is."""
    nfe = result.per_epoch("nfe")
    return nfe[-1] / nfe[0]


def augmentation_keeps_densities_cheap(results: Results) -> Finding:
    """Claim 33."""
    grown = {kind: [growth(results[name]) for name in flows(kind, DENSITIES)] for kind in ("cnf", "augmented")}
    means = {kind: np.mean(each, axis=0) for kind, each in grown.items()}
    numbers = [("growth, mean over all, CNF and augmented", both(means))]
    for i, data in enumerate(DENSITIES):
        numbers.append((data.replace("_", " "), both({kind: each[i] for kind, each in grown.items()})))
    return Finding(means["augmented"] < means["cnf"], numbers)


def both(values: Mapping[str, Array]) -> str:
    """Values of a plain and an augmented flow, in words."""
    return f"{mean_std(values['cnf'])} and {mean_std(values['augmented'])}"


def densities_are_cheap_certified(results: Results) -> Finding:
    """Claim 33, at a tolerance certified for both."""
    pairs = {data: [results[f"density-{data}-{kind}"] for kind in ("cnf", "augmented")] for data in DENSITIES}
    costs = {data: at_shared(each) for data, each in pairs.items()}
    plain, augmented = (np.mean([each[i] for each in costs.values()], axis=0) for i in (0, 1))
    numbers = [("NFE, mean over all, CNF and augmented", both({"cnf": plain, "augmented": augmented}))]
    for data, each in pairs.items():
        tolerance = shared([result.certificates["last"] for result in each])
        said = f"{median_mean(costs[data][0])} and {median_mean(costs[data][1])} at {tolerance_range(tolerance)}"
        numbers.append((data.replace("_", " "), said))
    return Finding(augmented < plain, numbers)


def augmentation_raises_likelihoods(results: Results) -> Finding:
    """Claim 34."""
    return likelier(results, tuple(DENSITIES))


def augmentation_raises_likelihoods_of_tables(results: Results) -> Finding:
    """Claim 35."""
    return likelier(results, tuple(TABLES))


def likelier(results: Results, names: Sequence[str]) -> Finding:
    """That the log-likelihood of other points, the mean over some data, is higher with augmentation."""
    found = {
        kind: [results[name].measured["log-likelihood"] for name in flows(kind, names)] for kind in ("cnf", "augmented")
    }
    means = {kind: np.mean(each, axis=0) for kind, each in found.items()}
    numbers = [("mean over all, CNF and augmented", both(means))]
    numbers += [
        (data.replace("_", " "), both({kind: each[i] for kind, each in found.items()})) for i, data in enumerate(names)
    ]
    return Finding(means["augmented"] > means["cnf"], numbers)


TWO = (("g", 2), ("nested", 2))

CLAIMS: Sequence[Claim] = (
    Claim(
        19,
        "family",
        "Every augmentation lets a neural ODE fit g in d = 1, which a plain one cannot (as the paper says of zeros).",
        f"final loss below {FITTED:.3f} (a tenth of the best constant's) for all of the family, not for the NODE",
        named("g", 1, LABELS),
        all_fit_g,
    ),
    Claim(
        20,
        "parity",
        "Whatever is added to a flow, it learns to swap -1 and 1 without a linear map behind it; a plain flow cannot.",
        "mean squared error below 0.01 for all of the family, not for the NODE",
        named("swap", 1, LABELS),
        all_learn_the_swap,
    ),
    Claim(
        21,
        "family",
        "A learned augmentation is better than zeros, and its flow no harder to solve (Massaroli et al., 2020, and the "
        "paper's future work).",
        "with a hidden layer, lower held-out loss and no more evaluations than zeros, on g in d = 2 and nested spheres",
        tuple(name for data, dim in TWO for name in lifted(data, dim)),
        learned_is_better,
        certified=Certified(
            "the same, with the evaluations at the loosest tolerance certified for both", learned_is_better_certified
        ),
    ),
    Claim(
        22,
        "family",
        "Heavy ball flows need fewer evaluations than NODEs, ANODEs and second-order flows (Xia et al., 2021).",
        "fewer evaluations at 1e-3 after training than each of the three, on g in d = 2 and nested spheres",
        tuple(name for data, dim in TWO for name in named(data, dim, CHEAP)),
        heavy_balls_are_cheap,
        certified=Certified(
            "the same at the loosest tolerance certified for all four", heavy_balls_are_cheap_certified
        ),
    ),
    Claim(
        23,
        "parity",
        "On x -> -x in d = 1 an ANODE and a second-order flow reach errors near 0 and a NODE does not (Norcliffe et "
        "al., 2020: 4.5e-6, 3.8e-5 and 3.4e-1).",
        "final training error below 1e-3 for zeros and for the second-order flow with a learned start, above 0.1 for "
        "the NODE",
        named("parity", 1, REPORTED),
        parity_in_one_dimension,
    ),
    Claim(
        24,
        "parity",
        "On x -> -x a NODE is far worse in odd dimensions, where the map changes the orientation of space (Norcliffe "
        "et al., 2020).",
        "its final training error at each odd d is more than 3 times that at d + 1",
        tuple(name_of("parity", dim, "node") for dim in range(1, 11)),
        odd_dimensions_are_harder,
    ),
    Claim(
        25,
        "how-many",
        "As many added dimensions as the input has are enough (Zhang et al., 2019: p = d represents every "
        "homeomorphism).",
        f"final loss on g below {FITTED:.3f} with p = d, for d = 1, 2, 3 and 5",
        tuple(f"count-d{d}-p{d}" for d in COUNT_DIMS),
        as_many_are_enough,
    ),
    Claim(
        26,
        "how-many",
        "Too many added dimensions hurt (the paper's claim 18, of images).",
        "held-out loss on g with p = 20 above that with p = d, for d = 1, 2, 3 and 5",
        tuple(name for d in COUNT_DIMS for name in counted(d, d, 20)),
        many_hurt,
    ),
    Claim(
        27,
        "how-many",
        "Added dimensions save evaluations.",
        "fewer evaluations at 1e-3 after training with p = d than with p = 0, for d = 1, 2, 3 and 5",
        tuple(name for d in COUNT_DIMS for name in counted(d, 0, d)),
        more_are_cheaper,
        certified=Certified("the same at the loosest tolerance certified for both", more_are_cheaper_certified),
    ),
    Claim(
        28,
        "why",
        "The flows of ANODEs are simpler than those of NODEs.",
        "straighter, of less kinetic energy and with a smaller Lipschitz constant on g in d = 1 and 2, and with a "
        "better conditioned inverse in d = 2",
        tuple(name for d in (1, 2) for name in named("g", d, ("node", "zeros"))),
        augmented_flows_are_simpler,
    ),
    Claim(
        29,
        "why",
        "Kinetic energy and the slope of f decide how many evaluations a solve takes (Finlay et al., 2020).",
        "rank correlation with the evaluations at 1e-3 above 0.5 for both, over all models that were measured",
        EXAMINED,
        energy_and_slope_tell_the_cost,
    ),
    Claim(
        30,
        "noise",
        "Noise in the state, which lets trajectories cross, lets a NODE learn g (the paper's future work).",
        f"held-out loss of a NODE on g in d = 1 below {FITTED:.3f} for some noise",
        tuple(f"noise-d1-{scale:g}" for scale in NOISES),
        noise_lets_a_node_learn,
    ),
    Claim(
        31,
        "regularisers",
        "Regularising kinetic energy or the Jacobian saves evaluations at no loss (Finlay et al., 2020).",
        "for a NODE on g in d = 2 and some strength of each: a tenth fewer evaluations at 1e-3, and a held-out loss at "
        "most a tenth higher",
        (
            name_of("g", 2, "node"),
            *(regularised("node", name, s) for name in ("kinetic", "jacobian") for s in STRENGTHS[name]),
        ),
        regularisers_save,
    ),
    Claim(
        32,
        "regularisers",
        "No regulariser does for a NODE what augmentation does.",
        "on g in d = 2, a NODE with any regulariser at any strength has a higher held-out loss or takes more "
        "evaluations at 1e-3 than an ANODE without",
        (
            name_of("g", 2, "zeros"),
            *(regularised("node", name, s) for name, strengths in STRENGTHS.items() for s in strengths),
        ),
        augmentation_beats_regularisers,
    ),
    Claim(
        33,
        "densities",
        "Augmentation mitigates the growth of evaluations in training a density flow (the paper's guess).",
        "mean NFE of the last epoch over that of the first, averaged over six densities, is lower with augmentation",
        (*flows("cnf", DENSITIES), *flows("augmented", DENSITIES)),
        augmentation_keeps_densities_cheap,
        certified=Certified(
            "evaluations after training, averaged over six densities, are fewer with augmentation, at the loosest "
            "tolerance certified for both",
            densities_are_cheap_certified,
        ),
    ),
    Claim(
        34,
        "densities",
        "Augmentation raises the likelihood that a density flow of the same size reaches (Huang et al., 2020; Chen et "
        "al., 2020).",
        "log-likelihood of other points, averaged over six densities, is higher with augmentation, of which the bound "
        "from 20 draws is taken",
        (*flows("cnf", DENSITIES), *flows("augmented", DENSITIES)),
        augmentation_raises_likelihoods,
    ),
    Claim(
        35,
        "densities",
        "The same on tables.",
        "log-likelihood of other rows, averaged over iris and wine, is higher with augmentation, of which the bound "
        "from 20 draws is taken",
        (*flows("cnf", TABLES), *flows("augmented", TABLES)),
        augmentation_raises_likelihoods_of_tables,
    ),
)
