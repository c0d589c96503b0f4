import io
import sys
from datetime import date, timedelta
from decimal import Decimal
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
    assert shown(read("a;b\n1.234,5;2\n")) == {"a": ["1234.5"], "b": ["2"]}
    assert shown(read('a,b\n"1,5",2\n')) == {"a": ["1,5"], "b": ["2"]}


def test_a_number_with_an_underscore_is_a_text():
    assert read("a,b\n1_000,2\n").columns["a"].codes.tolist() == [0]


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
        ("a,b\n1,2\n1,2,3\n", ["table.csv, line 3: has 3 fields, but the first line has 2", "double quotes"]),
        ("a,b\n1,2\n\n1\n", ["table.csv, line 4: has 1 field, but the first line has 2"]),
        ("# by me\na,b\n1,2\n", ["table.csv, line 2: has 2 fields", "1 ('# by me')", "remove what is above them"]),
        ("a,a\n1,2\n", ["table.csv, line 1: has two columns 'a'; rename one"]),
        ("5.1,3.5\n4.9,3.0\n", ["table.csv, line 1: takes the names of the columns, got numbers (5.1, 3.5)"]),
        ('a,b\n1,"x\n2,y\n', ["table.csv, line 2: cannot be read", "close every quote"]),
        ('a,b\n1,"x"y\n', ["table.csv, line 2: cannot be read"]),
        (
            "a,b\n1,é\n".encode("latin-1"),
            ["table.csv, line 2, column 'b': is not UTF-8", "--encoding, such as latin-1"],
        ),
        ("é,b\n1,2\n".encode("latin-1"), ["table.csv, line 1: is not UTF-8"]),
        (
            b"\x89PNG\r\n\x1a\n\x00\x00,\xff\xd8\n",
            ["table.csv: takes a CSV file, but it is binary: it holds a zero byte"],
        ),
        (
            b"PK\x03\x04",
            ["table.csv: takes a CSV file, but it is a ZIP archive or an Excel file", "save the table as CSV"],
        ),
        (b"\x1f\x8b\x08", ["but it is a gzip file"]),
        ("a,b\n1,2\n".encode("utf-16-le"), ["it holds a zero byte", "pass --encoding utf-16-le"]),
        (
            "a,b\n1," + "x" * 2**18,
            ["table.csv, line 2: takes fields of at most 131,072 characters; shorten the field, or"],
        ),
        (b"\xff\xfea\x00\n\x00\x00\xd8", ["table.csv: is not text in utf-16"]),
    ],
    ids=str,
)
def test_a_file_that_is_no_table_is_named_with_the_line_and_what_to_do(text, words):
    refuses(text, *words)


def test_another_encoding_is_read_if_it_is_named():
    assert shown(read("a,b\n1,é\n".encode("latin-1"), encoding="latin-1"))["b"] == ["é"]
    assert list(read("a,b\n1,x\n".encode("utf-8-sig"), encoding="utf-8").columns) == ["a", "b"]
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
    monkeypatch.setattr(sys, "stdin", None)  # as in a process that was started without it
    with pytest.raises(ValueError, match="standard input: is closed; pass a file"):
        read_table("-")


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


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ({"a": [1, 2], "b": [1]}, r"rows, column 'b': takes 2 values, as many as column 'a', got 1"),
        ({1: [1], "1": [2]}, r"rows: has two columns '1'; rename one of them"),
    ],
    ids=str,
)
def test_columns_in_memory_that_make_no_table_are_refused(column, words):
    with pytest.raises(ValueError, match=words):
        table_of("rows", column)


def test_missing_values_of_every_type_of_pandas_are_missing():
    pandas = pytest.importorskip("pandas")
    columns = {
        "Int64": pandas.array([1, None], dtype="Int64"),
        "boolean": pandas.array([True, None], dtype="boolean"),
        "string": pandas.array(["x", None], dtype="string"),
        "category": pandas.Categorical(["x", None]),
        "object": np.array(["x", float("nan")], object),
    }
    table = table_of("rows", pandas.DataFrame(columns))
    for column in table.columns.values():
        assert column.missing.tolist() == [False, True]


def test_infinity_is_a_text_wherever_it_comes_from():
    for table in (read("a,b\n1,0\ninf,0\n-inf,0\n"), table_of("rows", {"a": [1.0, np.inf, -np.inf]})):
        column = table.columns["a"]
        assert (column.codes.tolist(), shown(table)["a"]) == ([NUMBER, 0, 1], ["1", "inf", "-inf"])
        assert not np.isinf(column.numbers).any()


def test_different_numbers_have_different_labels():
    numbers = [0.1, 0.1 + 2**-56, 1234567890123456.0, 1234567890123457.0, 7.0]
    assert len(set(table_of("rows", {"a": numbers}).columns["a"].labels[1])) == 5
    assert shown(table_of("rows", {"a": [7.0, 0.1]}))["a"] == ["7", "0.1"]


def test_columns_are_kept_as_they_are_written():
    table = read("id,x\n007,1\n18446744073709551617,2\n,3\n", keep=["id"])
    assert table.kept == {"id": ["007", "18446744073709551617", ""]}
    assert read_table("iris", keep=["target"]).kept["target"][:2] == ["setosa", "setosa"]


# Parquet


def write_parquet(path, **columns):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path)
    return path


def test_without_pyarrow_a_parquet_file_is_one_line_that_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("anode.extras.installed", lambda name: False)
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(MissingPackageError, match=r't\.parquet: .*needs pyarrow; .*pip install "anode\[parquet\]"'):
        read_table(str(tmp_path / "t.parquet"))


def test_a_parquet_file_is_a_table(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    path = write_parquet(
        tmp_path / "t.parquet",
        n=[1, None],
        t=["x", None],
        b=[True, False],
        d=pyarrow.array([Decimal("1.5"), None]),
        c=pyarrow.array([3, None]).dictionary_encode(),
        i=[1.0, float("inf")],
    )
    table = read_table(str(path), keep=["n", "d"])
    assert shown(table) == {
        "n": ["1", ""],
        "t": ["x", ""],
        "b": ["True", "False"],
        "d": ["1.5", ""],
        "c": ["3", ""],
        "i": ["1", "inf"],
    }
    assert table.kept == {"n": ["1", ""], "d": ["1.5", ""]}
    assert (table.where(1), table.sha256) == (f"{path}, row 2", sha256(path.read_bytes()).hexdigest())


def test_columns_of_a_parquet_file_that_no_model_takes_are_named(tmp_path):
    path = write_parquet(
        tmp_path / "t.parquet",
        l=[[1], [2]],
        r=[{"a": 1}, None],
        d=[date(2020, 1, 1), None],
        u=[timedelta(1), None],
        b=[b"\xff", None],
    )
    found = {name: column.why_unused for name, column in read_table(str(path)).columns.items()}
    assert found == {"l": "lists or records", "r": "lists or records", "d": "dates", "u": "durations", "b": "bytes"}


def test_a_parquet_file_that_is_none_or_damaged_is_one_line(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    path = write_parquet(tmp_path / "t.parquet", a=np.arange(1000.0))
    content = path.read_bytes()
    for bad in (b"PAR1", b"", b"a,b\n1,2\n", content[:-100], content[:100] + b"\x07" * 500 + content[600:]):
        path.write_bytes(bad)
        with pytest.raises(
            ValueError, match=r"^.*t\.parquet: is not a Parquet file, or is damaged \(.*\); restore it$"
        ):
            read_table(str(path))
    with pytest.raises(ValueError, match=r"t\.parquet: has no rows"):
        read_table(str(write_parquet(path, a=pyarrow.array([], pyarrow.float64()))))


def test_two_columns_of_a_parquet_file_with_one_name_are_named(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_arrays([pyarrow.array([1])] * 2, names=["a", "a"]), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"t\.parquet: has two columns 'a'; rename one"):
        read_table(str(tmp_path / "t.parquet"))
