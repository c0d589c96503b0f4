import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from anode.data.encoding import Encoding, choose, learn, scale_of
from anode.data.tables import table_of
from anode.data.targets import Target, choose_target, find_column, held_out, with_target


def encoding_of(table, without=(), categories=()):
    return learn(table, choose(table, without, categories))


NUMBERS = st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=12)


@given(NUMBERS, st.data())
def test_columns_become_what_scikit_learn_makes_of_them(numbers, data):
    pandas = pytest.importorskip("pandas")
    texts = data.draw(st.lists(st.sampled_from(["red", "green", "blue"]), min_size=len(numbers), max_size=len(numbers)))
    numbers = [*numbers, 1.0, 3.0, 1.0]  # neither always the same nor a count of the rows
    texts = [*texts, "red", "green", "red"]
    frame = pandas.DataFrame({"n": numbers, "t": texts})
    theirs = ColumnTransformer(
        [
            ("n", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), ["n"]),
            ("t", OneHotEncoder(), ["t"]),
        ],
        sparse_threshold=0,
    ).fit_transform(frame)
    ours, said = encoding_of(table := table_of("table", frame)).encode(table)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert (ours.dtype, said) == (np.float32, [])


def test_missing_numbers_are_the_median_and_marked():
    table = table_of("table", {"n": [1.0, np.nan, 5.0, 2.0]})
    encoding = encoding_of(table)
    values, _ = encoding.encode(table)
    assert values[:, 1].tolist() == [0, 1, 0, 0]
    assert values[1, 0] == pytest.approx((2.0 - encoding.columns[0].mean) / encoding.columns[0].scale)


def test_missing_categories_are_one_of_their_own():
    table = table_of("table", {"t": ["x", None, "y", "x"]})
    values, _ = encoding_of(table).encode(table)
    assert values.tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]]


def test_a_new_category_is_none_of_the_known_and_said_once_with_its_count():
    encoding = encoding_of(table_of("table", {"t": ["x", "y", "x", "y"]}))
    values, said = encoding.encode(table_of("new.csv", {"t": ["z", "x", "z", "w"]}))
    assert values.tolist() == [[0, 0], [1, 0], [0, 0], [0, 0]]
    (line,) = said
    assert "column 't': 3 values were not seen in training" in line
    assert "'w', 'z'" in line


def test_a_number_that_is_missing_only_now_is_filled_and_said():
    encoding = encoding_of(table_of("table", {"n": [1.0, 2.0, 9.0, 4.0]}))
    values, said = encoding.encode(table_of("new.csv", {"n": [np.nan, 3.0]}))
    assert values[0] == values[1]  # 3 is the median
    assert said == ["column 'n': 1 missing value replaced by the median, 3"]


def test_columns_may_have_another_order_and_others_beside_them():
    table = table_of("table", {"a": [1.0, 3.0, 2.0], "b": ["x", "y", "x"]})
    encoding = encoding_of(table)
    other = table_of("new", {"z": [0, 0, 0], "b": ["x", "y", "x"], "a": [1.0, 3.0, 2.0]})
    np.testing.assert_array_equal(encoding.encode(other)[0], encoding.encode(table)[0])


def test_a_missing_column_is_named_with_the_one_that_is_like_it():
    encoding = encoding_of(table_of("table", {"petal width": [1.0, 3.0, 2.5], "b": ["x", "y", "x"]}))
    with pytest.raises(ValueError, match=r"new: has no column 'petal width', .*did you mean 'petal_width'\?"):
        encoding.encode(table_of("new", {"petal_width": [1.0], "b": ["x"]}))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (["2020-01-01", "2021-5-03 10:00", "1999-12-31T00:00:00"], "holds dates"),
        (["1.2.2020", "03/04/99", ""], "holds dates"),
        (["anna", "bert", "carl"], "holds a different text in every row"),
        ([7, 7, 7], "is always '7'"),
        ([None, None, None], "is empty"),
        ([0, 1, 2], "numbers the rows; pass --numeric to use it"),
        ([12, 10, 11], "numbers the rows"),
        (np.array(["2020-01-01"] * 3, "datetime64[D]"), "holds dates"),
    ],
    ids=str,
)
def test_columns_that_say_nothing_are_left_out_and_named(values, why):
    found = choose(table_of("table", {"bad": values, "good": [1.5, 5, 2]}))
    assert found.used == {"good": "number"}
    assert found.left_out["bad"].startswith(why)


def test_a_different_whole_number_in_every_row_is_left_out_if_its_name_says_so_and_said_otherwise():
    numbers = [70, 10, 40, 33]
    found = choose(
        table_of("table", {"customer_id": numbers, "PassengerId": numbers, "income": numbers, "paid": [1.5] * 4})
    )
    assert found.used == {"income": "number"}
    assert found.left_out["customer_id"].startswith("holds a different whole number in every row, as its name suggests")
    assert "PassengerId" in found.left_out
    (line,) = found.notes
    assert line.startswith("column 'income' holds a different whole number in every row and is used as a number")
    assert "--drop 'income'" in line
    for kept in ({"numeric": {"customer_id"}}, {"categories": {"customer_id"}}):
        found = choose(table_of("table", {"customer_id": [*numbers, 10] if "categories" in kept else numbers}), **kept)
        assert (list(found.used), found.notes) == (["customer_id"], ())


@pytest.mark.parametrize(
    "texts", [["3,5", "4,25", "3,5"], ["1,234.5", "999", "12,000"], ["5 %", "7%", "5%"], ["\u22125", "\u22127", "5"]]
)
def test_numbers_in_another_notation_are_refused_and_not_taken_for_categories(texts):
    table = table_of("table.csv", {"x": texts})
    words = rf"table\.csv, row 1, column 'x': takes a number such as 1234\.5, got '{texts[0]}'; .*--category 'x'"
    with pytest.raises(ValueError, match=words):
        choose(table)
    with pytest.raises(ValueError, match=r"column 'x': takes a number such as 1234\.5.*pass --task classification"):
        choose_target(table, "x", None)
    for texts in (["1.2.3", "1.2.4", "1.2.3"], ["10-20", "20-30", "10-20"], ["3,5", "many", "3,5"]):
        assert choose(table_of("table", {"x": texts})).used == {"x": "category"}


def test_numbers_that_cannot_be_scaled_are_named():
    with pytest.raises(
        ValueError, match=r"table, column 'x': holds numbers up to 1e\+308, too large to be scaled; divide"
    ):
        encoding_of(table_of("table", {"x": [1e308, -1e308, 0.0]}))
    with pytest.raises(ValueError, match=r"column 'x': holds numbers up to 3e-200, too small to be scaled; multiply"):
        encoding_of(table_of("table", {"x": [1e-200, -3e-200, 0.0]}))
    with pytest.raises(ValueError, match=r"table, column 'y': holds numbers up to"):
        scale_of("table", "y", np.array([1e308, 1e308]))
    encoding = encoding_of(table_of("table", {"x": [0.5, -1.0, 0.0]}))
    with pytest.raises(
        ValueError, match=r"new\.csv, row 2, column 'x': takes a number near those of training .*got 1e\+50"
    ):
        encoding.encode(table_of("new.csv", {"x": [0.0, 1e50]}))


def test_a_text_of_many_kinds_is_no_category(monkeypatch):
    monkeypatch.setattr("anode.data.encoding.MOST_CATEGORIES", 3)
    table = table_of("table", {"t": list("abcda"), "n": [1, 5, 2, 2, 4]})
    assert choose(table).left_out == {"t": "holds 4 different texts, more than the 3 of a category"}


def test_a_table_without_anything_to_predict_from_is_refused_with_the_reasons():
    with pytest.raises(ValueError, match=r"has no column to predict from \('a' is always '1'\)"):
        choose(table_of("table", {"a": [1, 1], "y": [1, 2]}), {"y"})


def test_text_in_a_column_of_numbers_is_named_with_its_line():
    table = table_of("table.csv", {"age": ["31", "n.a.", "45"]})
    words = r"table\.csv, row 2, column 'age': takes a number, .*got 'n\.a\.'.*leave it empty.*--category 'age'"
    with pytest.raises(ValueError, match=words):
        choose(table)
    assert choose(table_of("t", {"age": ["31", "n.a.", "45", "31"]}), (), {"age"}).used == {"age": "category"}
    encoding = encoding_of(table_of("table", {"age": [31, 40, 40]}))
    with pytest.raises(ValueError, match=r"table\.csv, row 2, column 'age': takes a number"):
        encoding.encode(table)


def test_an_encoding_survives_json():
    table = table_of("table", {"n": [1.0, np.nan, 5.0], "t": ["x", None, "x"], "d": ["2020-01-01"] * 3})
    encoding = encoding_of(table)
    again = Encoding.from_json(json.loads(json.dumps(encoding.to_json())))
    assert again == encoding
    np.testing.assert_array_equal(again.encode(table)[0], encoding.encode(table)[0])


# Targets


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (["b", "a", "a", "b"], ("a", "b")),
        ([1, 0, 0, 1], ("0", "1")),
        ([True, False, False, True], ("False", "True")),
        ([10, 9, 10, 9], ("9", "10")),
        ([0.5, 1.5, 0.5, 1.5], ()),
        ([*range(30), *range(30)], ()),
    ],
    ids=str,
)
def test_texts_and_few_whole_numbers_are_classes_and_other_numbers_are_not(values, classes):
    table = table_of("table", {"y": values})
    target = choose_target(table, "y", None)
    assert target.classes == classes
    if classes:
        assert [classes[number] for number in target.values(table)] == [str(value) for value in values]


def test_the_task_can_be_chosen():
    table = table_of("table", {"y": [1, 0, 0, 1]})
    assert choose_target(table, "y", "regression").task == "regression"
    assert choose_target(table_of("t", {"y": [0.5, 1.5, 0.5, 1.5]}), "y", "classification").classes == ("0.5", "1.5")
    with pytest.raises(
        ValueError, match="task: takes one of classification, regression, got 'regresion'; did you mean"
    ):
        choose_target(table, "y", "regresion")


@pytest.mark.parametrize(
    ("values", "task", "words"),
    [
        (["a", "b", "a"], None, r"table, row 2, column 'y': class 'b' has this row only, and a class takes at least 2"),
        (["a", "a"], None, r"target: column 'y' is always 'a', so there is nothing to learn"),
        ([2.5, 2.5], None, r"target: column 'y' is always 2\.5, so there is nothing to learn"),
        (
            ["a", "b", "c", "d"],
            None,
            r"has 4 different values in 4 rows, such as 'a', too many .*; choose another column$",
        ),
        (
            ["1.5", "x", "2.5"],
            None,
            r"table, row 2, column 'y': takes a number, like the rest .*got 'x'.*--task classification",
        ),
        (
            ["a", "b", "a", "b"],
            "regression",
            r"table, row 1, column 'y': takes a number, got 'a'; .*--task classification",
        ),
        (
            [2**60, 2**60, 1],
            "classification",
            r"table, row 1, column 'y': takes classes that are texts or whole numbers",
        ),
        (["2020-01-01", "2020-01-02"], None, r"target: takes a column of classes or numbers, but 'y' holds dates"),
    ],
    ids=str,
)
def test_a_column_that_cannot_be_predicted_is_refused(values, task, words):
    with pytest.raises(ValueError, match=words):
        choose_target(table_of("table", {"y": values}), "y", task)


def test_a_target_that_is_not_there_is_named_with_those_that_are():
    table = table_of("table.csv", {"width": [1], "species": ["x"]})
    with pytest.raises(
        ValueError, match=r"target: takes a column of table\.csv \(width, species\); pass --target COLUMN"
    ):
        find_column(table, "target", None)
    with pytest.raises(ValueError, match=r"got 'specis'; did you mean 'species'\?"):
        find_column(table, "target", "specis")


def test_a_table_without_names_of_columns_is_recognised():
    with pytest.raises(ValueError, match=r"got 'species'; its first line holds a number: add a line with the names"):
        find_column(table_of("table.csv", {"5.57": [1], "big": ["x"]}), "target", "species")
    with pytest.raises(ValueError, match=r"got 'species'$"):
        find_column(table_of("table.csv", {"2024": [1], "x1.5": ["x"]}), "target", "species")


def test_rows_without_a_target_are_left_out_and_counted():
    table, lost = with_target(table_of("table", {"y": ["a", None, "b"]}), "y")
    assert (len(table), lost, table.lines.tolist()) == (2, 1, [1, 3])


def test_a_target_survives_json():
    for target in (Target("y", ("a", "b")), Target("y").scaled(table_of("table", {"y": [1.0, 4.0]}))):
        assert Target.from_json(json.loads(json.dumps(target.to_json()))) == target


@given(st.lists(st.integers(2, 40), min_size=1, max_size=6), st.floats(0.05, 0.5), st.integers(0, 99))
def test_of_every_class_the_same_share_is_held_out_and_some_of_it_is_left(sizes, fraction, seed):
    groups = np.repeat(np.arange(len(sizes)), sizes)
    mask = held_out(groups, fraction, seed)
    assert mask.sum() == max(1, round(fraction * len(groups)))
    for group, size in enumerate(sizes):
        assert abs(mask[groups == group].sum() - fraction * size) <= 1.5
        assert not mask[groups == group].all()
    np.testing.assert_array_equal(mask, held_out(groups, fraction, seed))
