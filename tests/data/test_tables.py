import io
import sys
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anode.data import csv_files
from anode.data.csv_files import read_csv
from anode.data.table_files import read_table
from anode.data.tables import MISSING, NUMBER, table_of
from anode.extras import MissingPackageError


def read(text, **options):
    content = text if isinstance(text, bytes) else text.encode()
    return read_csv(io.BytesIO(content), "table.csv", **options)


def refuses(text, *words, **options):
    with pytest.raises(ValueError) as error:
        read(text, **options)
    said = str(error.value)
    assert "\n" not in said
    for word in words:
        assert word in said, said


def shown(table):
    return {name: [column.shown(row) for row in range(len(table))] for name, column in table.columns.items()}


def test_numbers_texts_and_missing_values_are_told_apart():
    table = read("a,b\n1,x\n,NA\n-2.5e3,y\n")
    assert table.columns["a"].codes.tolist() == [NUMBER, MISSING, NUMBER]
    assert shown(table) == {"a": ["1", "", "-2500"], "b": ["x", "", "y"]}
    assert len(table) == 3


@pytest.mark.parametrize(
    "text",
    [
        "a,b\n1,x\n2,y\n",
        "a;b\n1;x\n2;y\n",
        "a\tb\n1\tx\n2\ty\n",
        "a|b\r\n1|x\r\n2|y\r\n",
        "\n\na,b\n1,x\n\n2,y",
        '"a","b"\n"1","x"\n"2","y"\n',
    ],
    ids=["commas", "semicolons", "tabs", "bars", "empty lines", "quotes"],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_separators_quotes_empty_lines_and_marks_of_encodings_change_nothing(text, encoding):
    assert shown(read(text.encode(encoding))) == {"a": ["1", "2"], "b": ["x", "y"]}


def test_a_comma_is_a_decimal_point_where_semicolons_separate():
    assert shown(read("a;b\n1,5;2\n")) == {"a": ["1.5"], "b": ["2"]}
    assert shown(read('a,b\n"1,5",2\n')) == {"a": ["1,5"], "b": ["2"]}


def test_lines_are_those_of_the_file_also_behind_a_quoted_line_break():
    table = read('a,b\n1,"two\nlines"\n\n2,y\n')
    assert table.lines.tolist() == [2, 5]
    assert table.where(1) == "table.csv, line 5"
    assert shown(table)["b"] == ["two\nlines", "y"]


def test_the_checksum_is_that_of_the_file():
    assert read("a,b\n1,2\n").sha256 == sha256(b"a,b\n1,2\n").hexdigest()


@given(st.lists(st.tuples(st.text("ab,;\"' \n", min_size=1), st.floats(-1e9, 1e9)), min_size=1, max_size=9))
def test_what_was_written_is_read(rows):
    import csv

    file = io.StringIO()
    csv.writer(file).writerows([["text", "number"], *(["_" + text, repr(value)] for text, value in rows)])
    table = read(file.getvalue())
    assert shown(table)["text"] == [("_" + text).strip() for text, _ in rows]
    np.testing.assert_array_equal(table.columns["number"].numbers, [value for _, value in rows])


def test_rows_that_are_read_in_parts_are_the_same(monkeypatch):
    text = "a,b\n" + "".join(f"{i},{'xyz'[i % 3]}\n" for i in range(25)) + ",\nw,1\n"
    whole = read(text)
    monkeypatch.setattr(csv_files, "ROWS_AT_ONCE", 4)
    parts = read(text)
    assert shown(parts) == shown(whole)
    assert parts.lines.tolist() == whole.lines.tolist()


# What is refused


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["table.csv: is empty"]),
        ("\n \n", ["table.csv: is empty"]),
        ("a,b\n", ["table.csv: has no rows below the names of its columns"]),
        ("a,b\n1,2\n1,2,3\n", ["table.csv, line 3: has 3 fields and not 2", "double quotes"]),
        ("a,b\n1,2\n\n1\n", ["table.csv, line 4: has 1 fields and not 2"]),
        ("a,a\n1,2\n", ["table.csv, line 1: has two columns 'a'; rename one"]),
        ("5.1,3.5\n4.9,3.0\n", ["table.csv, line 1: takes the names of the columns, got numbers (5.1, 3.5)"]),
        ('a,b\n1,"x\n2,y\n', ["table.csv, line 2: cannot be read", "a quote that is opened has to be closed"]),
        ('a,b\n1,"x"y\n', ["table.csv, line 2: cannot be read"]),
        (
            "a,b\n1,é\n".encode("latin-1"),
            ["table.csv, line 2, column 'b': is not UTF-8", "--encoding, such as latin-1"],
        ),
        ("é,b\n1,2\n".encode("latin-1"), ["table.csv, line 1: is not UTF-8"]),
        (b"\x89PNG\r\n\x1a\n\x00\x00,\xff\xd8\n", ["table.csv, line 1: is not UTF-8"]),
        (b"\xff\xfea\x00\n\x00\x00\xd8", ["table.csv: is not text in utf-16"]),
    ],
    ids=str,
)
def test_a_file_that_is_no_table_is_named_with_the_line_and_what_to_do(text, words):
    refuses(text, *words)


def test_another_encoding_is_read_if_it_is_named():
    assert shown(read("a,b\n1,é\n".encode("latin-1"), encoding="latin-1"))["b"] == ["é"]
    refuses("a,b\n1,x\n", "encoding: takes a name such as utf-8", "'latn'", encoding="latn")


def test_an_enormous_file_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_files, "MOST_BYTES", 2**17)
    path = tmp_path / "big.csv"
    path.write_text("a,b\n" + "1,2\n" * 100_000)
    words = r"takes at most 0 MB, because a table is read into memory; train on a part"
    with pytest.raises(ValueError, match=words):
        read_table(str(path))
    with path.open("rb") as file, pytest.raises(ValueError, match=words):  # a stream does not tell its size
        read_csv(file, "standard input")


# Other tables


def test_the_standard_input_is_a_table(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a,b\n1,x\n")))
    table = read_table("-")
    assert (table.name, shown(table)) == ("standard input", {"a": ["1"], "b": ["x"]})


def test_a_data_frame_is_a_table():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"n": [1, 2], "f": [1.5, None], "t": ["x", None], "b": [True, False]})
    frame["d"] = pandas.to_datetime(["2020-01-01", "2021-01-01"])
    table = table_of("rows", frame)
    assert {name: shown(table)[name] for name in "nftb"} == {
        "n": ["1", "2"],
        "f": ["1.5", ""],
        "t": ["x", ""],
        "b": ["True", "False"],
    }
    assert table.columns["d"].why_unused == "dates"
    assert table.where(1) == "rows, row 2"


@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [("iris", 150, 5), ("wine", 178, 14), ("breast_cancer", 569, 31), ("diabetes", 442, 11)],
)
def test_the_tables_of_scikit_learn_are_there_by_name(name, rows, columns):
    table = read_table(name)
    assert (len(table), len(table.columns), list(table.columns)[-1]) == (rows, columns, "target")


def test_without_pyarrow_a_parquet_file_is_one_line_that_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("anode.data.table_files.installed", lambda name: False)
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(MissingPackageError, match=r"t\.parquet: Parquet files need pyarrow.*pip install pyarrow"):
        read_table(str(tmp_path / "t.parquet"))


def test_a_parquet_file_is_a_table(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    values = {"n": [1, None], "t": ["x", None], "b": [True, False], "l": [[1], [2]]}
    parquet.write_table(pyarrow.table(values), tmp_path / "t.parquet")
    table = read_table(str(tmp_path / "t.parquet"))
    assert {name: shown(table)[name] for name in "ntb"} == {"n": ["1", ""], "t": ["x", ""], "b": ["True", "False"]}
    assert table.columns["l"].why_unused == "lists or records"
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"t\.parquet: is not a Parquet file"):
        read_table(str(tmp_path / "t.parquet"))
