"""Evaluations at tolerances whose solves can be trusted."""

import json

import numpy as np
import pytest
import torch

import anode
from anode.experiments.certificates import Certificates, certificates, shared
from anode.experiments.runs import load, paths, save
from anode.experiments.study import median_mean, tolerance_range
from anode.experiments.toy.flows import certified_moment, loss_rows
from anode.files import DamagedFileError
from anode.storage import read_json
from helpers.tiny import NOWHERE, tiny


@pytest.fixture(scope="module")
def result():
    return tiny("g-d1-node").train(None, NOWHERE)


def stiff(scale: float) -> anode.Flow:
    torch.manual_seed(0)
    flow = anode.Flow(anode.MLPField(2)).double()
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.mul_(scale)
    return flow


def test_every_flow_has_its_own_loosest_tolerance_and_its_evaluations_at_all():
    flows, x = [stiff(1.0), stiff(3.0)], torch.randn(20, 2, dtype=torch.float64)
    found = certificates(flows, [x, x], tightest=1e-6)
    assert found.tolerances[0] == 0.1
    assert found.tolerances[-1] == 1e-6
    assert found.loosest[0] > found.loosest[1]
    for repeat, flow in enumerate(flows):
        assert found.loosest[repeat] == float(flow.certify(x).tolerance)
        nfe = [flow.solve(x, rtol=t, atol=t).stats.nfe for t in found.tolerances]
        assert found.nfe[:, repeat].tolist() == nfe


def test_a_flow_that_cannot_be_solved_is_not_certified_and_does_not_stop_the_others():
    broken, x = stiff(torch.inf), torch.randn(20, 2, dtype=torch.float64)
    found = certificates([broken, stiff(1.0)], [x, x], tightest=1e-3)
    assert np.isnan(found.loosest).tolist() == [True, False]
    assert np.isnan(found.own).tolist() == [True, False]
    assert np.isnan(found.nfe[:, 0]).all()


def test_evaluations_are_those_at_the_tolerance_of_each_repeat():
    found = Certificates((1e-2, 1e-3), np.array([1e-2, 1e-3, np.nan]), np.array([[14.0, np.nan, 8], [20, 26, 8]]))
    np.testing.assert_array_equal(found.own, [14, 26, np.nan])
    np.testing.assert_array_equal(found.at(np.array([1e-3, 1e-2, 1e-5])), [20, np.nan, np.nan])


def test_models_that_are_compared_share_the_tightest_of_their_tolerances():
    a, b = (
        Certificates((), np.array(loosest), np.empty((0, 3))) for loosest in ([1e-2, 1e-4, 1e-3], [1e-3, 1e-3, np.nan])
    )
    np.testing.assert_array_equal(shared([a, b]), [1e-3, 1e-4, np.nan])


def test_certificates_are_stored_and_read_with_the_result(result, tmp_path):
    assert set(result.certificates) == {"first", "last"}
    result.certificates["last"].loosest[0] = np.nan
    save(result, tmp_path)
    found = load(result.run, tmp_path)
    for name, mine in result.certificates.items():
        other = found.certificates[name]
        assert mine.tolerances == other.tolerances
        np.testing.assert_array_equal(mine.loosest, other.loosest)
        np.testing.assert_array_equal(mine.nfe, other.nfe)


def test_results_without_certificates_are_read_and_say_so(result, tmp_path):
    save(result, tmp_path)
    file, _ = paths(result.run, tmp_path)
    content = read_json(file)
    del content["certificates"]
    file.write_text(json.dumps(content))
    found = load(result.run, tmp_path)
    assert found.certificates == {}
    assert "not certified" in loss_rows({"NODE": found})[0]
    assert certified_moment(found) == ("last epoch, not certified", "")


def test_certificates_of_another_number_of_repeats_are_damaged(result, tmp_path):
    save(result, tmp_path)
    file, _ = paths(result.run, tmp_path)
    content = read_json(file)
    content["certificates"]["last"]["loosest"].append(1e-3)
    file.write_text(json.dumps(content))
    with pytest.raises(DamagedFileError, match="certificates take shape"):
        load(result.run, tmp_path)


def test_the_model_after_the_first_epoch_is_the_one_that_training_went_through(result):
    _, history = tiny("g-d1-node", epochs=1).fitted(None)
    np.testing.assert_allclose(history.loss, result.history.loss[: len(history.loss)], rtol=1e-3)
    assert result.certificates["first"].loosest.shape == (result.run.repeats,)


def test_a_resnet_has_no_certificates():
    assert tiny("g-d1-resnet").train(None, NOWHERE).certificates == {}


def test_a_tolerance_in_words_is_one_that_was_tried():
    assert tolerance_range(np.array([1e-2, 1e-3, 1e-4, 1e-4])) == "1e-04 (1e-02 to 1e-04)"
    assert tolerance_range(np.array([1e-2, np.nan])) == "1e-02 (1e-02 to 1e-02) in 1 of 2 repeats"
    assert tolerance_range(np.array([np.nan])) == "in none of 1 repeats"
    assert median_mean(np.array([1.0, 2.0, 9.0])) == "median 2; 4 ± 3.56"
    assert median_mean(np.array([np.nan])) == "in none of 1 repeats"
    assert (tolerance_range(np.array([1e-4])), median_mean(np.array([38.0]))) == ("1e-04", "38")
