from pathlib import Path

import numpy as np
import pytest
import torch

from anode.experiments.exporting import export_saved
from anode.experiments.options import TrainOptions
from anode.experiments.single import load_saved, train_single

runtime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, one_thread) -> Path:
    made = tmp_path_factory.mktemp("run") / "g"
    train_single(TrainOptions("g", augment=1, epochs=1, repeats=2), made)
    return made


def test_the_first_of_several_repeats_is_exported(folder, tmp_path):
    written = export_saved(folder, tmp_path / "g.onnx", 1e-3, 50, None)
    assert written.inputs == 50
    x = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    (found,) = runtime.InferenceSession(written.path).run(None, {"x": x})
    wanted = load_saved(folder).model.run(torch.from_numpy(x), rtol=1e-6, atol=1e-6).prediction
    assert found == pytest.approx(wanted.detach().numpy(), abs=0.01)


def test_a_folder_that_holds_no_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is not a folder of anode train"):
        export_saved(tmp_path, tmp_path / "g.onnx", 1e-3, 50, None)


def test_a_file_of_another_kind_is_refused_by_the_name_of_the_option(folder, tmp_path):
    with pytest.raises(ValueError, match=r"out: takes a file that ends in one of \.onnx, \.pt2"):
        export_saved(folder, tmp_path / "g.txt", 1e-3, 50, None)
