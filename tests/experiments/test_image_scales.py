from dataclasses import replace

import pytest

from anode.checks import lookup
from anode.data.images import IMAGES
from anode.experiments.halves import HALVES, image_protocols
from anode.experiments.images.claims import CLAIMS, UNSTABLE
from anode.experiments.images.scales import (
    AUGMENTS,
    CHOSEN,
    CLAIMS_ORDER,
    EPOCHS,
    SCALES,
    TABLE_ORDER,
    TOO_MANY,
    WEIGHT_DECAY,
    parameters,
    runs,
)
from anode.experiments.images.studies import STUDIES
from anode.experiments.reproduce import planned
from anode.experiments.settings import Settings

RUNS = {name: runs(scale) for name, scale in SCALES.items()}
NAMED = {name for part in (*STUDIES.values(), *CLAIMS) for name in part.runs}
THREE = ("mnist", "cifar10", "svhn")
each_scale = pytest.mark.parametrize("scale", SCALES)


def meant(name: str) -> str:
    """The dataset that a run is about, by its name."""
    first = name.split("-")[0]
    return "mnist" if first == "overfit" else first


@each_scale
def test_every_run_that_a_figure_or_claim_needs_is_there_and_every_run_is_needed(scale):
    assert set(RUNS[scale]) == NAMED
    assert all(run.name == name for name, run in RUNS[scale].items())


@each_scale
def test_runs_are_what_they_are_called(scale):
    for name, run in RUNS[scale].items():
        kind = name.split("-", 1)[1]
        assert run.head_channels == (IMAGES[run.data].shape[0] if kind == "head" else None), name
        assert run.weight_decay == (WEIGHT_DECAY if name.endswith("decay") else 0.0), name
        matched = kind.startswith("node")
        assert (run.filters != SCALES[scale].filters) == matched, name
        expected = {"head": CHOSEN.get(meant(name)), "anode": 5}.get(kind, 0 if matched else None)
        assert run.augment == (int(kind.split("-")[0][1:]) if expected is None else expected), name


@each_scale
def test_all_repeats_of_all_runs_are_as_many_as_the_scale_says(scale):
    assert {run.repeats for run in RUNS[scale].values()} == {SCALES[scale].repeats}
    lr = SCALES[scale].lr
    assert {(run.seed, run.time, run.lr) for run in RUNS[scale].values()} == {(0, True, lr)}
    assert {run.max_steps for name, run in RUNS[scale].items() if not name.startswith("overfit")} == {1000}


@each_scale
def test_models_that_are_compared_differ_in_the_model_alone(scale):
    def rest(name):
        blank = {"name": "", "augment": 0, "filters": 0, "head_channels": None, "weight_decay": 0.0}
        return replace(RUNS[scale][name], **blank)

    for study in STUDIES.values():
        for data in CHOSEN:
            assert len({rest(name) for name in study.runs if meant(name) == data}) <= 1, (study.id, data)


@each_scale
def test_nodes_are_as_large_as_the_anodes_they_are_compared_with(scale):
    named = {f"{data}-node": f"{data}-p{augment}" for data, augment in CHOSEN.items()}
    for name, other in {**named, "overfit-node": "overfit-anode"}.items():
        node, anode = RUNS[scale][name], RUNS[scale][other]
        channels = IMAGES[node.data].shape[0]
        ours = parameters(channels, node.side, node.filters, 0)
        theirs = parameters(channels, anode.side, anode.filters, anode.augment)
        for fewer_or_more in (node.filters - 1, node.filters + 1):
            assert abs(ours - theirs) < abs(parameters(channels, node.side, fewer_or_more, 0) - theirs)
    assert RUNS[scale]["mnist-node"].filters == RUNS[scale]["mnist-node-decay"].filters


@each_scale
def test_the_data_suffice(scale):
    for run in RUNS[scale].values():
        source = IMAGES[run.data]
        assert run.train_size <= source.counts["train"]
        assert run.test_size <= source.counts["test"]
        assert run.side <= source.shape[1]
        assert run.batch_size <= run.train_size


@pytest.mark.parametrize("scale", ["smoke", "small", "medium"])
def test_the_test_images_are_looked_at_as_often_as_the_scale_says(scale):
    assert {run.evaluations for run in RUNS[scale].values()} == {SCALES[scale].evaluations}


def test_the_paper_is_the_papers():
    run = RUNS["paper"]["mnist-p10"]
    assert AUGMENTS == (0, 1, 2, 5, 10)
    assert CHOSEN == {"mnist": 5, "cifar10": 10, "svhn": 10, "tiny_imagenet": 5}
    assert TOO_MANY == 100
    assert (run.lr, run.batch_size, run.filters, run.repeats, run.weight_decay) == (1e-3, 256, 64, 5, 0.0)
    sizes = {"mnist": (28, 60_000, 10_000), "cifar10": (32, 50_000, 10_000), "svhn": (32, 73_257, 26_032)}
    sizes["tiny_imagenet"] = (64, 100_000, 10_000)
    for name, run in RUNS["paper"].items():
        assert run.data == meant(name)
        assert run.batch_size == 256
        assert run.repeats == 5
        assert run.evaluate_every is None
        assert run.epochs == run.evaluations == (500 if name.startswith("overfit") else EPOCHS[run.data])
        if not name.startswith("overfit"):
            assert (run.side, run.train_size, run.test_size) == sizes[run.data]
    assert RUNS["paper"]["overfit-node"].train_size < 60_000 / 10
    for data in THREE:
        found = sorted(run.augment for name, run in RUNS["paper"].items() if name.startswith(f"{data}-p"))
        assert set(AUGMENTS) <= set(found)


def test_the_papers_epochs_are_ours_and_said_to_be():
    assert EPOCHS == {"mnist": 8, "cifar10": 10, "svhn": 10, "tiny_imagenet": 2}
    said = SCALES["paper"].reduced
    assert "does not give the number of epochs. Ours are 8 for MNIST, 10 for CIFAR-10, 10 for SVHN and 2 for" in said


@each_scale
def test_other_epochs_are_those_of_every_dataset_but_not_of_overfitting(scale):
    longer = SCALES[scale].lasting(7)
    for name, run in runs(longer).items():
        overfits = name.startswith("overfit")
        assert run.epochs == (RUNS[scale][name].epochs if overfits else 7)
        assert run.evaluations == (SCALES[scale].evaluations or run.epochs)
        assert (run == RUNS[scale][name]) == overfits
    assert longer.reduced.startswith(SCALES[scale].reduced)
    assert longer.reduced.endswith("With --epochs 7, models train for 7 epochs, except those that overfit.")


def test_the_papers_table_is_trained_from_the_quickest_run_to_the_longest():
    assert set(TABLE_ORDER) == set(STUDIES["table1"].runs)
    work = planned(Settings(("table1", "fig13"), scale="paper"))
    names = [name for name in RUNS["paper"] if name in NAMED]
    ordered = [run.name for run in work.in_order([RUNS["paper"][name] for name in names])]
    assert ordered[: len(TABLE_ORDER)] == list(TABLE_ORDER)
    costs = [RUNS["paper"][name].cost for name in ordered[len(TABLE_ORDER) :]]
    assert costs == sorted(costs, reverse=True)
    work = planned(Settings(("table1",), scale="smoke"))
    costs = [run.cost for run in work.in_order(work.runs)]
    assert costs == sorted(costs, reverse=True)


def test_all_that_is_small_is_said():
    paper, small = RUNS["paper"], RUNS["small"]
    said = SCALES["small"].reduced
    changed = {
        field
        for name in paper
        for field in paper[name].protocol()
        if paper[name].protocol()[field] != small[name].protocol()[field]
    }
    # the name of a field, and the words that say what became of it
    words = {
        "side": ["areas of 4x4 pixels", "8x8 for Tiny ImageNet"],
        "train_size": ["Each dataset has 16,000 training images", "(Tiny ImageNet: 8,000", "256 images"],
        "test_size": ["1,000 test images"],
        "filters": ["16 filters instead of 64"],
        "batch_size": ["batch size is 64 instead of 256"],
        "lr": ["the learning rate is 2e-3 instead of 1e-3"],
        "epochs": ["for 10 epochs", "for 20)", "Models that overfit train on 256 images for 600 epochs"],
    }
    assert changed - {"evaluate_every"} == set(words)  # looking more often changes no model
    for parts in words.values():
        assert all(part in said for part in parts)
    for data, factor in (("mnist", 4), ("cifar10", 4), ("svhn", 4), ("tiny_imagenet", 8)):
        run = small[f"{data}-node"]
        assert run.side * factor == IMAGES[data].shape[1]
        assert (run.train_size, run.test_size) == (8_000 if data == "tiny_imagenet" else 16_000, 1_000)
        assert (run.epochs, run.batch_size) == (20 if data == "tiny_imagenet" else 10, 64)
    assert {run.filters for name, run in small.items() if "node" not in name.split("-")} == {16}
    overfit = small["overfit-anode"]
    assert (overfit.train_size, overfit.test_size, overfit.epochs) == (256, 1_000, 600)


def test_all_that_is_medium_is_said():
    paper, medium = RUNS["paper"], RUNS["medium"]
    said = SCALES["medium"].reduced
    changed = {
        field
        for name in paper
        for field in paper[name].protocol()
        if paper[name].protocol()[field] != medium[name].protocol()[field]
    }
    sizes = {"side", "train_size", "test_size", "filters", "batch_size", "epochs", "evaluate_every"}
    assert changed == {*sizes, "max_steps"}  # these only of the models that overfit
    for words in ("areas of 2x2 pixels", "4x4 for Tiny ImageNet", "32 filters instead of 64", "is 64 instead of 256"):
        assert words in said
    assert {run.filters for name, run in medium.items() if "node" not in name.split("-")} == {32}
    assert {run.batch_size for name, run in medium.items() if not name.startswith("overfit")} == {64}
    used = {"mnist": "all training images of MNIST", "cifar10": "of CIFAR-10"}
    used |= {"svhn": "on 32,000 images of SVHN", "tiny_imagenet": "on 10,000 of Tiny ImageNet"}
    for data, words in used.items():
        run = medium[f"{data}-node"]
        assert run.side * (4 if data == "tiny_imagenet" else 2) == IMAGES[data].shape[1]
        if data in ("mnist", "cifar10"):
            assert run.train_size == IMAGES[data].counts["train"]
        else:
            assert f"{run.train_size:,}" in words
        assert f"{words} for {run.epochs}" in said
        assert run.test_size == (2_000 if data == "tiny_imagenet" else 5_000)
    assert "5,000 test images (Tiny ImageNet: 2,000; overfitting: 1,000)" in said


def test_models_of_medium_overfit_few_images_of_the_full_size_in_small_batches():
    for name in ("overfit-node", "overfit-anode"):
        run = RUNS["medium"][name]
        assert (run.data, run.side, run.test_size) == ("mnist", 28, 1_000)
        words = (
            f"overfit train on {run.train_size:,} images of the full size for {run.epochs} epochs, with a batch size"
        )
        said = f"{words} of {run.batch_size}; their solves fail after {run.max_steps} steps"
        assert said in SCALES["medium"].reduced
        assert run.max_steps * 6 > UNSTABLE
        assert run.batch_size < SCALES["medium"].batch_size


def test_medium_trains_what_the_claims_need_first_one_claim_after_another():
    order = sorted(CLAIMS, key=lambda claim: (claim.number == 15, claim.number == 14, claim.number))
    assert list(dict.fromkeys(name for claim in order for name in claim.runs)) == list(CLAIMS_ORDER)
    work = planned(Settings(("images",), scale="medium"))
    ordered = [run.name for run in work.in_order(list(RUNS["medium"].values()))]
    assert ordered[: len(CLAIMS_ORDER)] == list(CLAIMS_ORDER)


def test_smoke_needs_no_download_and_says_so():
    assert {run.data for run in RUNS["smoke"].values()} == {"digits"}
    assert {run.epochs * run.batches for run in RUNS["smoke"].values()} == {6}
    assert {run.batch_size for run in RUNS["smoke"].values()} == {64}
    for words in ("digits", "8x8", "4 filters", "6 iterations with batch size 64", "nothing about the paper's claims"):
        assert words in SCALES["smoke"].reduced


def test_the_halves_offer_the_scales_and_small_is_the_usual_one():
    offered = HALVES["images"].scales
    assert list(offered) == ["small", "smoke", "medium", "paper"]
    for name, protocols in offered.items():
        assert (protocols.repeats, protocols.note) == (SCALES[name].repeats, SCALES[name].reduced)
        for run in NAMED:
            assert protocols.run(run, 3, 7) == replace(RUNS[name][run], repeats=3, seed=7)
    assert HALVES["toy"].scales["paper"].note == ""


def test_no_figure_is_of_both_halves():
    paper = [HALVES["toy"], HALVES["images"]]
    toy, pictures = (set(half.studies) | {half.name} for half in paper)
    assert not toy & pictures
    assert not {claim.number for claim in HALVES["toy"].claims} & {claim.number for claim in HALVES["images"].claims}
    assert sorted(claim.number for half in paper for claim in half.claims) == [*range(1, 19)]


def test_a_run_at_another_scale_is_another_protocol():
    ours, theirs = (image_protocols(SCALES[scale]).run("mnist-p5", 2, 0).protocol() for scale in ("smoke", "small"))
    assert ours != theirs
    with pytest.raises(ValueError, match="did you mean 'small'"):
        lookup("scale", "smal", dict(HALVES["images"].scales))
