from dataclasses import replace

import numpy as np
import pytest
import torch

import anode
from anode.data import images
from anode.experiments import environment as environments
from anode.experiments.images import runs as module
from anode.experiments.images.runs import EVALUATION, ImageRun, side_by_side
from anode.experiments.images.scales import CHOSEN, SCALES, matching_filters, parameters, runs
from anode.experiments.runs import HERE, certify, load, paths, save
from anode.experiments.workers import do_runs
from anode.files import DamagedFileError
from anode.models.ensemble import from_seed
from anode.models.nets import ImageNeuralODE
from anode.storage import read_tensors
from anode.train.checkpoint.folder import last_history
from anode.train.history import History
from anode.train.record import EVALUATED, MOMENTS, OPTIONAL, SERIES, Failure
from helpers.tiny import interrupt_at, quiet

TINY = ImageRun("tiny", "digits", 4, 48, 20, augment=1, filters=3, epochs=2, batch_size=20, repeats=2, seed=5)
"""Of 3 iterations an epoch, the last of which has fewer images."""
PAPER = runs(SCALES["paper"])


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def done(tmp_path_factory, one_thread):
    """The result of the tiny run, and the folder it was done in."""
    folder = tmp_path_factory.mktemp("runs")
    return TINY.train(None, folder), folder


def same(ours: History, theirs: History, repeat: int | slice = slice(None), other: int | slice = slice(None)) -> None:
    """Fails unless some repeats of two histories are the same to the bit, but for the time they took."""
    for name in (*SERIES, *OPTIONAL, *EVALUATED):
        mine, others = getattr(ours, name)[:, repeat], getattr(theirs, name)[:, other]
        assert mine.dtype == others.dtype, name
        np.testing.assert_array_equal(mine, others, err_msg=name)
    for name in MOMENTS:
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)
    assert ours.batches == theirs.batches


def weights(folder, seed: int) -> dict[str, torch.Tensor]:
    """The last state of training of a repeat, as it was kept."""
    return read_tensors(folder / "tiny.part" / f"seed-{seed}" / "state-6.safetensors")


def same_weights(ours, theirs, seed: int) -> None:
    mine, others = weights(ours, seed), weights(theirs, seed)
    names = [name for name in mine if name.startswith(("model.", "optimizer."))]
    assert set(mine) == set(others)
    assert len(names) > 20
    assert all(mine[name].numpy().tobytes() == others[name].numpy().tobytes() for name in names)


def interrupt_after(count: int, told: list | None = None):
    reports = [] if told is None else told

    def tell(report):
        reports.append(report)
        if len(reports) == count:
            raise KeyboardInterrupt

    return tell


# What is trained


def test_a_run_on_images_records_every_repeat(done):
    result, _ = done
    history = result.history
    assert result.run == TINY
    assert len(result.model) == 2
    assert history.loss.shape == history.nfe.shape == history.accuracy.shape == (6, 2)
    assert history.validation.shape == history.validation_accuracy.shape == (TINY.evaluations, 2) == (2, 2)
    assert history.validation_at.tolist() == [3, 6]
    assert (history.batches, history.epochs, history.stopped, history.failures) == (3, 2, "", [])
    assert np.isfinite(history.loss).all()
    assert ((history.nfe - 2) % 6 == 0).all()
    assert result.trained.tolist() == [True, True]
    assert result.seconds >= 0.999 * history.seconds.sum()
    assert not np.array_equal(history.loss[:, 0], history.loss[:, 1])


def test_the_same_run_on_images_gives_the_same_bits(done, tmp_path):
    torch.manual_seed(321)
    result, folder = done
    same(TINY.train(None, tmp_path).history, result.history)
    for seed in TINY.seeds:
        same_weights(tmp_path, folder, seed)


def test_training_on_images_leaves_torchs_random_numbers_alone(tmp_path):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    replace(TINY, epochs=1, repeats=1).train(None, tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("repeat", [0, 1])
def test_a_repeat_is_the_same_among_others_and_by_itself(done, tmp_path, repeat):
    result, folder = done
    alone = replace(TINY, repeats=1, seed=TINY.seed + repeat).train(None, tmp_path)
    same(result.history, alone.history, slice(repeat, repeat + 1))
    same_weights(tmp_path, folder, TINY.seed + repeat)


def test_every_repeat_has_images_of_its_own_and_all_are_tested_on_the_same(monkeypatch, tmp_path):
    seen = []

    def noted(model, data, **options):
        seen.append((data.images, options["validation"].images, options["seed"]))
        return anode_fit(model, data, **options)

    anode_fit = module.fit
    monkeypatch.setattr(module, "fit", noted)
    replace(TINY, epochs=1).train(None, tmp_path)
    (first, tested, five), (second, also, six) = seen
    assert (five, six) == (5, 6)
    assert first.shape == second.shape == (48, 1, 4, 4)
    assert not torch.equal(first, second)
    assert tested.shape == (20, 1, 4, 4)
    assert torch.equal(tested, also)
    expected = images.load("digits", "train").subset(48, 6).resize(4)
    assert torch.equal(second, expected.images)


@pytest.mark.parametrize(
    "change",
    [
        {"augment": 2},
        {"filters": 2},
        {"head_channels": 1},
        {"time": False},
        {"side": 8},
        {"train_size": 47},
        {"batch_size": 19},
        {"lr": 2e-3},
        {"weight_decay": 1e-2},
    ],
    ids=str,
)
def test_every_setting_changes_what_is_trained(done, tmp_path, change):
    expected = done[0].history.loss[:3, 0]
    found = replace(TINY, repeats=1, epochs=1, **change).train(None, tmp_path).history.loss[:, 0]
    assert found.shape == expected.shape
    assert np.isfinite(found).all()
    assert not np.array_equal(found, expected)


def test_as_many_test_images_are_looked_at_as_is_said(done, tmp_path):
    history = replace(TINY, repeats=1, test_size=7).train(None, tmp_path).history
    np.testing.assert_array_equal(history.loss[:, 0], done[0].history.loss[:, 0])  # looking changes nothing
    shares = 7 * history.validation_accuracy
    np.testing.assert_allclose(shares, shares.round(), atol=1e-5)
    assert not np.array_equal(history.validation[:, 0], done[0].history.validation[:, 0])


def test_a_listener_is_told_of_the_iterations_of_all_repeats(tmp_path):
    told = []
    TINY.train(told.append, tmp_path)
    assert [(report.done, report.total) for report in told] == [(i, 12) for i in range(1, 13)]


@pytest.mark.parametrize("every", [None, 1, 4, 7])
def test_the_test_images_are_looked_at_as_often_as_is_said(tmp_path, every):
    run = replace(TINY, repeats=1, filters=1, evaluate_every=every)
    history = run.train(None, tmp_path).history
    assert len(history.validation) == run.evaluations
    assert history.validation_at.tolist() == [*range(every or 3, 6, every or 3), 6]


def test_solves_that_fail_are_skipped_and_counted_for_their_repeat(tmp_path):
    run = replace(TINY, max_steps=1)  # which is enough for some
    result = run.train(None, tmp_path)
    history = result.history
    lost = np.isnan(history.loss)
    assert lost.any()
    assert sorted((failure.member, failure.iteration) for failure in history.failures) == sorted(
        (int(member), int(iteration)) for iteration, member in np.argwhere(lost)
    )
    assert {failure.status for failure in history.failures} == {"MAX_STEPS"}
    assert np.isnan(history.accuracy[lost]).all()
    assert history.loss.shape == (6, 2)
    save(result, tmp_path)
    found = load(run, tmp_path)
    same(found.history, history)
    assert found.history.failures == history.failures


# Interrupted and taken up again


@pytest.mark.parametrize("reports", [1, 6, 11])
def test_an_interrupted_run_is_taken_up_where_it_was_to_the_same_bits(done, tmp_path, reports):
    result, folder = done
    with pytest.raises(KeyboardInterrupt):
        TINY.train(interrupt_after(reports), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.part"]
    told = []
    again = TINY.train(told.append, tmp_path)
    assert [report.done for report in told] == list(range(reports + 1, 13))  # nothing is done twice
    same(again.history, result.history)
    for seed in TINY.seeds:
        same_weights(tmp_path, folder, seed)
    assert again.seconds >= 0.999 * again.history.seconds.sum()  # also of what was done before


def test_a_run_may_be_interrupted_again_and_again(done, tmp_path):
    times = 0
    while True:
        try:
            again = TINY.train(interrupt_after(2), tmp_path)
            break
        except KeyboardInterrupt:
            times += 1
    assert times == 6
    same(again.history, done[0].history)


def test_what_was_unfinished_is_removed_and_nothing_else(done, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        TINY.train(interrupt_after(7), tmp_path)
    save(done[0], tmp_path)
    (tmp_path / "tiny-other.part").mkdir()
    assert (tmp_path / "tiny.part" / "seed-5" / "state-6.json").exists()
    assert (tmp_path / "tiny.part" / "seed-6" / "state-1.json").exists()
    TINY.clean(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny-other.part", "tiny.json", "tiny.safetensors"]
    TINY.clean(tmp_path)  # there need not be anything


@pytest.mark.parametrize(
    ("change", "word"),
    [({"lr": 2e-3}, "lr"), ({"weight_decay": 0.1}, "weight_decay"), ({"batch_size": 32}, "batch_size")],
)
def test_what_another_protocol_left_unfinished_is_refused_and_kept(tmp_path, change, word):
    with pytest.raises(KeyboardInterrupt):
        TINY.train(interrupt_after(5), tmp_path)
    before = sorted(path.name for path in (tmp_path / "tiny.part" / "seed-5").iterdir())
    with pytest.raises(ValueError, match=rf"checkpoint: .*seed-5 belongs to another training run: .*{word}"):
        replace(TINY, **change).train(None, tmp_path)
    assert sorted(path.name for path in (tmp_path / "tiny.part" / "seed-5").iterdir()) == before


def test_a_run_that_another_process_is_at_is_refused(tmp_path):
    def second(report):
        if report.done == 2:
            with pytest.raises(BlockingIOError, match="is in use by another"):
                TINY.train(None, tmp_path)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TINY.train(second, tmp_path)


# On disk


def test_the_trained_models_are_kept_with_the_result(done, tmp_path):
    result, folder = done
    save(result, tmp_path)
    found = load(TINY, tmp_path)
    x = images.load("digits", "test").subset(20).resize(4)
    for i, seed in enumerate(TINY.seeds):
        model, last = found.member(i), weights(folder, seed)
        assert isinstance(model, ImageNeuralODE)
        for name, value in model.state_dict().items():
            assert torch.equal(value, last[f"model.{name}"])
        with torch.no_grad():
            right = (model(x.scaled()).argmax(1) == x.labels).double().mean()
        assert float(right) == pytest.approx(float(result.history.validation_accuracy[-1, i]), abs=1e-6)


def test_a_run_that_was_interrupted_keeps_the_same_models(done, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        TINY.train(interrupt_after(8), tmp_path)
    again = TINY.train(None, tmp_path).model.state_dict()
    assert again.keys() == done[0].model.state_dict().keys()
    assert all(torch.equal(value, again[name]) for name, value in done[0].model.state_dict().items())


def test_a_result_without_models_is_read_as_it_was_written(done, tmp_path):
    result = replace(done[0], model=None)  # as earlier versions wrote them
    save(result, tmp_path)
    found = load(TINY, tmp_path)
    same(found.history, result.history)
    np.testing.assert_array_equal(found.history.seconds, result.history.seconds)
    np.testing.assert_array_equal(found.history.nfe_backward, result.history.nfe_backward)
    assert (found.run, found.model, found.environment) == (TINY, None, result.environment)
    assert found.seconds == pytest.approx(result.seconds, abs=0.01)
    assert (found.history.stopped, found.history.failures, found.history.snapshots) == ("", [], [])
    np.testing.assert_array_equal(found.final_loss, result.final_loss)
    assert not any(name.startswith("model.") for name in read_tensors(paths(TINY, tmp_path)[1]))


@pytest.mark.parametrize(
    "change", [{"lr": 2e-3}, {"side": 8}, {"head_channels": 1}, {"time": False}, {"train_pool": 100}], ids=str
)
def test_a_result_of_another_protocol_is_not_taken_for_this_one(done, tmp_path, change):
    save(done[0], tmp_path)
    assert load(replace(TINY, **change), tmp_path) is None


def test_a_result_whose_evaluations_are_missing_is_named(done, tmp_path):
    history = replace(done[0].history, **{n: getattr(done[0].history, n)[:1] for n in (*EVALUATED, *MOMENTS)})
    save(replace(done[0], history=history), tmp_path)
    with pytest.raises(DamagedFileError, match=r"tiny\.json: is damaged \(validation takes shape \(2, 2\), got \(1, 2"):
        load(TINY, tmp_path)


def test_the_validation_of_a_result_has_every_evaluation(tmp_path):
    result = replace(TINY, repeats=1, filters=1, evaluate_every=1).train(None, tmp_path)
    assert result.validation.shape == (6, 1)
    np.testing.assert_array_equal(result.validation, result.history.validation)


# Histories side by side


def history_of(iterations: int, looks: int, value: float, failures=()) -> History:
    """The history of one model."""
    whole = np.full(iterations, round(value), np.int64)
    return History(
        loss=np.full(iterations, value, np.float32),
        nfe=whole,
        accepted=whole,
        rejected=whole,
        nfe_backward=whole,
        seconds=np.full(iterations, value, np.float32),
        batches=2,
        validation=np.full(looks, value, np.float32),
        failures=list(failures),
        accuracy=np.full(iterations, value / 10, np.float32),
        validation_accuracy=np.full(looks, value / 10, np.float32),
        validation_nfe=np.full(looks, value, np.float32),
        validation_at=2 * np.arange(1, looks + 1),
    )


def test_histories_side_by_side_are_those_of_a_stack():
    failures = [Failure(0, 1, "MAX_STEPS: too many", "MAX_STEPS")]
    together = side_by_side([history_of(4, 2, 3.0), history_of(4, 2, 5.0, failures)])
    np.testing.assert_array_equal(together.loss, [[3, 5]] * 4)
    np.testing.assert_array_equal(together.nfe, [[3, 5]] * 4)
    np.testing.assert_array_equal(together.accuracy, np.float32([[0.3, 0.5]] * 4))
    np.testing.assert_array_equal(together.validation, [[3, 5]] * 2)
    np.testing.assert_array_equal(together.nfe_backward, [8] * 4)  # of all of them
    np.testing.assert_array_equal(together.seconds, [8] * 4)
    assert together.validation_at.tolist() == [2, 4]
    assert together.failures == [Failure(1, 1, "MAX_STEPS: too many", "MAX_STEPS")]
    assert (together.members, together.batches) == (2, 2)
    assert {together.nfe.dtype, together.validation_at.dtype} == {np.dtype(np.int64)}
    assert {together.loss.dtype, together.accuracy.dtype, together.validation.dtype} == {np.dtype(np.float32)}


# What is said of a run


def test_a_run_on_images_is_described_in_words_that_are_true():
    assert TINY.described() == {
        "run": "tiny",
        "data": "digits, 4x4, 48 of 1442 images, 20 of 355 to test",
        "model": "ANODE, p = 1",
        "network": "3 filters, time appended",
        "parameters": f"{TINY.parameters}",
        "solver": "dopri5, rtol = atol = 1e-3",
        "loss": "cross entropy",
        "optimiser": "Adam, 0.001",
        "batch size": 20,
        "epochs": 2,
        "repeats": 2,
        "seeds": "5 to 6",
    }
    said = replace(PAPER["mnist-node-decay"], time=False).described()
    assert (said["model"], said["parameters"], said["optimiser"]) == (
        "NODE",
        "84,395",
        "Adam, 0.001, weight decay 0.001",
    )
    assert said["network"] == "92 filters, time not used"
    assert said["data"] == "mnist, 28x28, 60000 images, 10000 to test"
    said = PAPER["mnist-head"].described()
    assert said["network"] == "64 filters, time appended, the linear layer sees 1 channel"
    assert said["parameters"] == "46,262"  # of the field 38,412, and 7,850


def test_the_solver_is_the_one_that_is_said():
    solver = TINY.build().flow.solver
    assert solver == anode.Solver("dopri5", rtol=1e-3, atol=1e-3, max_steps=1000)


@pytest.mark.parametrize(
    ("name", "without_time", "with_time"),
    [
        ("mnist-node", 84_395, 85_316),
        ("mnist-p5", 84_816, 85_462),
        ("cifar10-node", 172_358, 173_611),
        ("cifar10-p10", 171_799, 172_452),
        ("svhn-node", 172_358, 173_611),
        ("svhn-p10", 171_799, 172_452),
        ("tiny_imagenet-node", 2_701_179, None),
        ("tiny_imagenet-p5", 6_591_824, None),
    ],
)
def test_the_models_have_as_many_parameters_as_the_papers(name, without_time, with_time):
    assert replace(PAPER[name], time=False).parameters == without_time
    assert with_time in (PAPER[name].parameters, None)
    assert PAPER[name].time


def test_the_parameters_that_are_counted_are_those_of_the_model_that_is_trained():
    for run in (TINY, replace(TINY, time=False), replace(TINY, head_channels=1), replace(TINY, augment=0)):
        assert run.parameters == sum(p.numel() for p in from_seed(run.build, 0).parameters())


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ((1, 28, 92, 0), 84_395),
        ((1, 28, 64, 5), 84_816),
        ((3, 32, 125, 0), 172_358),
        ((3, 32, 64, 10), 171_799),
        ((3, 64, 164, 0), 366_269),  # of ImageNet with ten classes, as the paper counts
        ((3, 64, 64, 5), 365_714),
    ],
    ids=str,
)
def test_the_formula_of_the_parameters_gives_the_papers_numbers(arguments, count):
    assert parameters(*arguments) == count


def test_nodes_have_the_papers_numbers_of_filters():
    scale = SCALES["paper"]
    found = {data: matching_filters(scale, size, CHOSEN[data]) for data, size in scale.sizes.items()}
    assert found == {"mnist": 92, "cifar10": 125, "svhn": 125, "tiny_imagenet": 164}


def test_a_run_costs_more_the_more_there_is_to_do():
    assert PAPER["cifar10-node"].cost > PAPER["cifar10-p0"].cost > PAPER["cifar10-p10"].cost > PAPER["cifar10-p1"].cost
    assert replace(TINY, epochs=4).cost == replace(TINY, repeats=4).cost == 2 * TINY.cost


# How long it takes


def test_a_run_that_takes_no_time_has_no_forecast(tmp_path):
    assert TINY.forecast(tmp_path) is None


def test_a_forecast_is_in_proportion_to_what_is_to_be_done(tmp_path, monkeypatch):
    monkeypatch.setattr(ImageRun, "measured", lambda self, place: 2.0)
    run = PAPER["mnist-p5"]
    assert run.forecast(tmp_path) == pytest.approx(2.0 * 5 * 8 * (235 + EVALUATION * 40))
    assert replace(run, repeats=1, epochs=16).forecast(tmp_path) == pytest.approx(2.0 * 16 * (235 + EVALUATION * 40))


def test_a_first_iteration_is_measured(monkeypatch):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert 0 < TINY.measured(HERE) < 60
    assert torch.equal(torch.get_rng_state(), before)


def test_an_interrupted_run_is_forecast_from_its_own_speed(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "WORTH_MEASURING", 0)
    monkeypatch.setattr(ImageRun, "measured", lambda self, place: 1 / 0)
    with pytest.raises(KeyboardInterrupt):
        TINY.train(interrupt_after(8), tmp_path)
    history = last_history(tmp_path / "tiny.part" / "seed-6")
    assert history is not None
    assert len(history) == 2
    expected = history.seconds.mean() * (4 / 12) * 2 * (6 + EVALUATION * 2)
    assert TINY.forecast(tmp_path) == pytest.approx(float(expected), rel=1e-5)
    (tmp_path / "tiny.part" / "seed-6" / "state-2.safetensors").write_bytes(b"nonsense")
    assert last_history(tmp_path / "tiny.part" / "seed-6") is None


# Data


@pytest.mark.parametrize(("split", "name"), [("train", "train_32x32.mat"), ("test", "test_32x32.mat")])
def test_images_are_counted_only_where_a_file_is_not_the_official_one(tmp_path, monkeypatch, split, name):
    source = images.IMAGES["svhn"]
    folder = tmp_path / "svhn"
    folder.mkdir()
    (folder / name).write_bytes(b"a part")
    read = []

    def part(folder, split):
        read.append(split)
        return torch.zeros(7, 3, 32, 32, dtype=torch.uint8), torch.zeros(7, dtype=torch.int64)

    monkeypatch.setitem(images.IMAGES, "svhn", replace(source, read=part))
    assert (images.count("svhn", split, tmp_path), read) == (7, [split])
    (size,) = [download.size for download in source.downloads if download.name == name]
    with (folder / name).open("wb") as file:
        file.truncate(size)
    assert (images.count("svhn", split, tmp_path), read) == (source.counts[split], [split])


def test_a_run_on_a_part_of_the_data_says_of_how_many(tmp_path, monkeypatch):
    run = PAPER["svhn-p10"]
    monkeypatch.setattr(images, "count", lambda name, split, root: 40_000 if split == "train" else 26_032)
    found, lacks = run.with_data(tmp_path)
    assert found == replace(run, train_size=40_000)
    assert lacks == "The train split of svhn used here has 40,000 images, not the official 73,257."
    assert found.described()["data"] == "svhn, 32x32, 40000 of 73257 images, 26032 to test"
    assert found.batches == 157


def test_a_run_that_asks_for_more_images_than_there_are_uses_those_and_says_so(tmp_path, monkeypatch):
    run = runs(SCALES["medium"])["tiny_imagenet-p5"]
    there = {"train": run.train_size, "test": run.test_size}
    monkeypatch.setattr(images, "count", lambda name, split, root: there[split])
    assert run.with_data(tmp_path)[0] == replace(run, train_pool=10_000, test_pool=2_000)
    drawn = "has 10,000 of the official 100,000 images, from which 10,000 are drawn."
    assert run.with_data(tmp_path)[1].startswith(f"The train split of tiny_imagenet used here {drawn}")
    there["train"] = 5_000
    found, lacks = run.with_data(tmp_path)
    assert found == replace(run, train_size=5_000, test_pool=2_000)
    assert lacks.startswith(
        "The train split of tiny_imagenet used here has 5,000 images, not the 10,000 of this scale."
    )


def test_the_trained_models_are_certified_on_test_images_and_that_is_stored(done, tmp_path):
    result = done[0]
    save(result, tmp_path)
    certify(result, tmp_path)
    last = result.certificates["last"]
    x = images.load("digits", "test").subset(TINY.test_size).resize(4).scaled()
    for repeat, model in enumerate(result.model):
        assert last.loosest[repeat] == model.flow.certify(x).tolerance
        assert last.own[repeat] == model.flow.certify(x).nfe
    assert last.tolerances[-1] == 1e-6
    np.testing.assert_array_equal(load(TINY, tmp_path).certificates["last"].nfe, last.nfe)


def test_a_model_is_saved_before_it_is_certified(tmp_path, monkeypatch, one_thread):
    def interrupted(run, result, place):
        raise KeyboardInterrupt

    run = replace(TINY, repeats=1, epochs=1)
    monkeypatch.setattr(ImageRun, "certify", interrupted)
    with pytest.raises(KeyboardInterrupt):
        do_runs([run], tmp_path, 1, quiet())
    assert load(run, tmp_path).certificates == {}
    assert not run.unfinished(tmp_path, 0).parent.exists()


def test_all_environments_in_which_a_run_was_trained_are_recorded(tmp_path, monkeypatch, one_thread):
    for engine in ("native, avx2", "native, avx512"):
        monkeypatch.setattr(environments, "engine", lambda engine=engine: engine)
        if engine == "native, avx2":
            with pytest.raises(KeyboardInterrupt):
                TINY.train(interrupt_at(3), tmp_path)
    assert TINY.train(None, tmp_path).environment["engine"] == "native, avx2; native, avx512"
    monkeypatch.setattr(environments, "engine", lambda: "torch")  # combines what others have trained
    assert TINY.train(None, tmp_path).environment["engine"] == "native, avx2; native, avx512"


def test_a_pause_does_not_spoil_the_forecast(tmp_path, monkeypatch, one_thread):
    monkeypatch.setattr(module, "WORTH_MEASURING", 0)
    with pytest.raises(KeyboardInterrupt):
        TINY.train(interrupt_at(4), tmp_path)
    history = last_history(TINY.unfinished(tmp_path, 5))
    before = TINY.forecast(tmp_path)
    history.seconds[-1] += 7200
    monkeypatch.setattr(module, "last_history", lambda path: history if path.name == "seed-5" else None)
    assert TINY.forecast(tmp_path) < 2 * before + 1


@pytest.mark.parametrize("content", ["", "{}", "[1]"])
def test_a_damaged_record_of_environments_is_named_before_anything_is_trained(tmp_path, content, one_thread):
    path = TINY.unfinished(tmp_path, 5).with_suffix(".json")
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(DamagedFileError, match=r"seed-5\.json: is .*remove it or restore it"):
        TINY.train(None, tmp_path)
    assert list(path.parent.iterdir()) == [path]
