import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import anode
from anode.data.targets import held_out
from anode.experiments.options import TrainOptions
from anode.experiments.predicting import Predictor
from anode.experiments.single import load_saved, train_single

pandas = pytest.importorskip("pandas")
pytestmark = pytest.mark.usefixtures("one_thread")


@parametrize_with_checks([anode.TableEncoder()])
def test_the_encoder_passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def frame():
    """A table whose target depends on a number and a category, with everything else that tables have."""
    generator = np.random.default_rng(0)
    size, colour = generator.normal(30, 5, 300).round(3), generator.choice(["red", "blue"], 300)
    return pandas.DataFrame(
        {
            "id": generator.permutation(300),
            "day": pandas.date_range("2024-01-01", periods=300).strftime("%Y-%m-%d"),
            "size": np.where(np.arange(300) % 17 == 5, np.nan, size),
            "colour": colour,
            "kind": np.where((size > 30) == (colour == "red"), "big", "small"),
        }
    )


def test_a_pipeline_encodes_and_predicts_as_the_command_does(frame, tmp_path):
    frame.to_csv(tmp_path / "things.csv", index=False)
    train_single(TrainOptions(str(tmp_path / "things.csv"), target="kind"), tmp_path / "run")
    X, y = frame.drop(columns="kind"), frame["kind"]
    is_test = held_out(y.to_numpy(), 0.2, seed=0)
    rest = np.flatnonzero(~is_test)
    for_training = rest[~held_out(y.to_numpy()[rest], 0.1 / 0.8, seed=0)]
    encoder = anode.TableEncoder().fit(X.iloc[for_training])
    theirs = load_saved(tmp_path / "run").description.encoding
    assert encoder.encoding_.columns == theirs.columns
    assert list(encoder.left_out_) == list(theirs.left_out) == ["id", "day"]

    model = make_pipeline(anode.TableEncoder(), anode.ANODEClassifier(scale=False, early_stopping=True, random_state=0))
    model.fit(X[~is_test], y[~is_test])
    command = Predictor.load(tmp_path / "run")
    assert (model.predict(X[is_test]) == command.predict(X[is_test])).mean() > 0.9
    assert model.score(X[is_test], y[is_test]) > 0.9


def test_columns_may_be_dropped_and_meant_as_categories_or_numbers(frame):
    encoder = anode.TableEncoder(drop=["colour"], category=["kind"], numeric=["id"]).fit(frame)
    assert encoder.get_feature_names_out().tolist() == ["id", "size", "size_missing", "kind_big", "kind_small"]
    assert list(encoder.left_out_) == ["day"]
    with pytest.raises(ValueError, match=r"drop: takes a column of X .*got 'color'; did you mean 'colour'\?"):
        anode.TableEncoder(drop=["color"]).fit(frame)


def test_columns_may_have_another_order_and_values_may_be_new(frame):
    encoder = anode.TableEncoder().fit(frame)
    np.testing.assert_array_equal(encoder.transform(frame[frame.columns[::-1]]), encoder.transform(frame))
    new = frame[:2].assign(colour=["green", None])
    names = encoder.get_feature_names_out().tolist()
    assert encoder.transform(new)[:, [names.index("colour_blue"), names.index("colour_red")]].sum() == 0
    with pytest.raises(ValueError, match="X: has no column 'size', which the model was trained with"):
        encoder.transform(frame.drop(columns="size"))


def test_the_encoder_is_cloned_and_cross_validated_within_a_pipeline(frame):
    model = make_pipeline(anode.TableEncoder(drop=["id"]), anode.ANODEClassifier(epochs=3, random_state=0))
    assert clone(model)[0].drop == ["id"]
    assert len(cross_val_score(model, frame.drop(columns="kind"), frame["kind"], cv=2)) == 2


def test_a_text_among_numbers_is_named_with_its_row(frame):
    bad = frame.astype({"size": object})
    bad.loc[4, "size"] = "large"
    words = r"X, row 5, column 'size': takes a number, like the rest .*got 'large'.*category=\['size'\]"
    with pytest.raises(ValueError, match=words):
        anode.TableEncoder().fit(bad)


def test_columns_of_the_categorical_type_are_categories(frame):
    stars = pandas.DataFrame({"stars": pandas.Categorical([1, 2, 3] * 4), "size": np.arange(12) / 2})
    encoder = anode.TableEncoder().fit(stars)
    assert encoder.get_feature_names_out().tolist() == ["stars_1", "stars_2", "stars_3", "size"]
    np.testing.assert_array_equal(encoder.transform(stars.astype({"stars": int})), encoder.transform(stars))
    assert anode.TableEncoder(numeric=["stars"]).fit(stars).get_feature_names_out().tolist() == ["stars", "size"]


def test_one_name_in_place_of_a_list_is_refused(frame):
    with pytest.raises(ValueError, match=r"drop: takes a list of names of columns, such as \['size'\], got 'size'"):
        anode.TableEncoder(drop="size").fit(frame)


class OfPolars:
    """What a data frame of polars offers: iterating over it gives columns, not names."""

    def __init__(self, columns):
        self.held, self.columns, self.dtypes = columns, list(columns), ["Float64"] * len(columns)

    def __iter__(self):
        return iter(self.held.values())

    def __getitem__(self, name):
        return self.held[name]


def test_data_frames_of_polars_are_read(frame):
    frame = frame[["size", "colour"]]
    encoder = anode.TableEncoder().fit(OfPolars({name: frame[name].to_numpy() for name in frame}))
    np.testing.assert_array_equal(encoder.transform(frame), anode.TableEncoder().fit(frame).transform(frame))


def test_messages_name_arguments_and_not_options_of_the_command(frame):
    encoder = anode.TableEncoder().fit(frame)
    assert encoder.left_out_["id"].endswith("; pass numeric=[...] to use it")
    with pytest.raises(ValueError, match=r"train with category=\['size'\] if the column does not hold numbers"):
        encoder.transform(frame.assign(size="large"))
    with pytest.raises(ValueError, match=r"pass category=\['size'\] if these are categories, or drop=\['size'\]"):
        anode.TableEncoder().fit(frame.assign(size=["3,5", "4,5"] * 150))
