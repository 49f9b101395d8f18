import csv
import decimal
import gzip
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from besnn.data.cells import to_numbers
from besnn.data.encoding import rows_from_cells
from besnn.data.formats import FORMATS, load_file, stream_file
from besnn.data.tables import BLOCK_BYTES, Csv, Parquet, choose_columns, numbered, valid_utf8
from besnn.errors import DataError


def write(folder, text, name="table.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def parquet(folder, columns):
    path = folder / "table.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def rows_of(path, columns):
    blocks = list(FORMATS[path.suffix].read(path, columns))
    return np.concatenate([block.inputs for block in blocks]), [error for block in blocks for error in block.errors]


def test_csv_and_parquet_of_one_table_load_the_same(tmp_path):
    columns = {"width": [1.5, -2.0, 3e5], "label": ["b", "a", "b"], "count": [1, 2, 3]}
    text = "width,label,count\n1.5,b,1\n-2,a,2\n3e5,b,3\n"
    for path in (write(tmp_path, text), parquet(tmp_path, columns)):
        loaded = load_file(path)
        assert loaded.inputs.dtype == np.float32
        assert loaded.inputs.tolist() == [[1.5, 1], [-2, 2], [3e5, 3]]
        assert loaded.feature_names == ("width", "count")
        assert loaded.class_names == ("a", "b")
        assert loaded.labels.tolist() == [1, 0, 1]


def test_the_class_column_and_the_features_can_be_named(tmp_path):
    path = write(tmp_path, "name,x,y,species\nfirst,1,2,10\nsecond,3,4,9\n")
    loaded = load_file(path, label="species", columns=["y", "x"])
    assert loaded.inputs.tolist() == [[2, 1], [4, 3]]
    assert loaded.class_names == ("9", "10")


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffx,label\n1,a\n",
        "x,label\r\n1,a\r\n",
        "x,label\n\n1,a\n\n",
        '"x","label"\n"1","a"\n',
        "x,label\n 1 ,a",
        "x,label\n1,\u00e4\n",
        'x,label\n1,"a\nb"\n',
    ],
)
def test_common_kinds_of_csv(tmp_path, text):
    loaded = load_file(write(tmp_path, text))
    assert loaded.inputs.tolist() == [[1]]
    assert loaded.feature_names == ("x",)


def test_parquet_types_that_are_numbers(tmp_path):
    columns = {
        "flag": [True, False],
        "price": [decimal.Decimal("1.25"), decimal.Decimal("2.50")],
        "kind": pa.array(["1", "2"]).dictionary_encode(),
        "tiny": pa.array([1, 2], pa.int8()),
        "huge": pa.array([2**60, 1], pa.int64()),
        "dotted.name": [0.5, 0.25],
    }
    for labels in (pa.array(["u", "v"]).dictionary_encode(), pa.array([b"u", b"v"])):
        loaded = load_file(parquet(tmp_path, columns | {"label": labels}))
        assert loaded.inputs.tolist() == [[1, 1.25, 1, 1, 2.0**60, 0.5], [0, 2.5, 2, 2, 1, 0.25]]
        assert loaded.class_names == ("u", "v")


def test_a_column_that_float32_does_not_hold_is_centred_in_float64(tmp_path):
    times = [1_700_000_000 + second for second in range(400)]
    text = "".join(f"{row % 7},{time},a\n" for row, time in enumerate(times))
    columns = {"x": np.arange(400) % 7, "time": times, "label": ["a"] * 400}
    for path in (write(tmp_path, f"x,time,label\n{text}"), parquet(tmp_path, columns)):
        loaded = load_file(path)
        assert loaded.lost == ""
        assert loaded.feature_names == ("x", "time", "unexpected cells")
        np.testing.assert_allclose(loaded.inputs[:, 1], (np.arange(400) - 199.5) / 399, atol=1e-6)
        assert load_file(path, columns=["x"]).feature_names == ("x",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot be read"),
        ("x,label\n", "no rows"),
        ("label\na\n", "0 feature columns"),
        ("x,label\n1,a\nParis,b\n", "row 1 (the first is 0): column 'x' is not a finite number ('Paris')"),
        ("x,label\n1,a\n-inf,b\n", "column 'x' is not a finite number ('-inf')"),
        ("x,label\n1,a\n1_0,a\n", "'1_0'"),
        ("x,label\n,a\n,b\n", "nothing to learn from: column 'x' is empty"),
        ("x,label\n1,a\n2\n", "row 1 (the first is 0): 1 cells instead of 2"),
        ("x,label\n1,a\n2,b,c\n", "3 cells instead of 2"),
        ("x,label\n1,a\n2,\n", "row 1: the label is missing"),
        (b"x,l\xff\n1,a\n", "and column 'l"),
        ('x,"two\nlines",label\n1,2,a\n1,z,a\n', "column 'two"),
    ],
)
def test_bad_tables(tmp_path, text, words, one_line):
    path = write(tmp_path, text)
    with pytest.raises(DataError) as caught:
        load_file(path)
    one_line(caught, words, str(path))


def test_bytes_that_are_not_utf8_still_distinguish_classes(tmp_path):
    loaded = load_file(write(tmp_path, b"x,label\n1,\xff\n2,\xfe\n"))
    assert loaded.labels.tolist() == [1, 0]
    assert loaded.class_names == ("\\xfe", "\\xff")


def test_a_missing_class_or_feature_column_is_named(tmp_path):
    path = write(tmp_path, "x,y\n1,2\n")
    with pytest.raises(DataError, match="no column 'species': its columns are x, y"):
        load_file(path, label="species")
    with pytest.raises(DataError, match="lacks column 'z': it has x, y"):
        load_file(path, columns=["x", "z"])
    with pytest.raises(DataError, match="lacks column 'z': it has two lines"):
        load_file(write(tmp_path, '"two\nlines"\n1\n'), columns=["z"])


def test_a_damaged_parquet_file(tmp_path, one_line):
    path = parquet(tmp_path, {"x": np.random.default_rng(0).normal(size=1000), "label": ["a"] * 1000})
    whole = path.read_bytes()
    renamed = whole.replace(b"label", b"\xffabel")
    for damaged in (whole[:500], whole[::-1], whole[:4] + b"\xff" * 300 + whole[304:], renamed, b""):
        path.write_bytes(damaged)
        with pytest.raises(DataError) as caught:
            load_file(path)
        one_line(caught, str(path))


def test_bad_rows_do_not_stop_the_rest(tmp_path):
    text = b"x,y\n1,2\nbad,4\n5\n6,7,\xff\n9,10\n\xff,1\n,3\n11,12\n13\n"
    inputs, errors = rows_of(write(tmp_path, text), ["x", "y"])
    assert [bool(error) for error in errors] == [False, True, True, True, False, True, True, False, True]
    assert inputs[[0, 4, 7]].tolist() == [[1, 2], [9, 10], [11, 12]]
    assert not inputs[[1, 2, 3, 5, 6, 8]].any()
    assert errors[1] == "column 'x' is not a finite number ('bad')"
    assert errors[2] == "1 cells instead of 2"


@given(st.lists(st.sampled_from(["good", "ragged", "word", "blank"]), min_size=1, max_size=60), st.integers(0, 3))
def test_every_row_is_accounted_for_in_order(tmp_path_factory, kinds, padding):
    cells = {"good": "{0},{0}", "ragged": "{0}", "word": "{0},word", "blank": ",{0}"}
    lines = [cells[kind].format(row) for row, kind in enumerate(kinds)]
    path = write(tmp_path_factory.mktemp("rows"), "x,y\n" + "\n".join(lines) + "\n" * padding)
    inputs, errors = rows_of(path, ["x", "y"])
    assert len(inputs) == len(errors) == len(kinds)
    for row, kind in enumerate(kinds):
        assert (errors[row] == "") == (kind == "good")
        assert inputs[row].tolist() == ([row, row] if kind == "good" else [0, 0])


def test_ragged_rows_keep_their_places_across_blocks(tmp_path):
    """A file of several megabytes is read in blocks of one; every 1,000th row is ragged, and so are the last ones."""
    rows = 200_000
    ragged = set(range(0, rows, 1000)) | set(range(rows - 5, rows))
    lines = [str(row) if row in ragged else f"{row},{row}.25,padding" for row in range(rows)]
    path = write(tmp_path, "x,y,z\n" + "\n".join(lines))
    blocks = list(Csv().read(path, ["x", "y"]))
    assert len(blocks) > 2
    inputs = np.concatenate([block.inputs for block in blocks])
    errors = [error for block in blocks for error in block.errors]
    assert [row for row, error in enumerate(errors) if error] == sorted(ragged)
    assert all(row in ragged or value == row for row, value in enumerate(inputs[:, 0]))


def test_parquet_is_read_in_blocks(tmp_path):
    path = parquet(tmp_path, {"x": np.arange(20_000.0), "y": [None if row == 9000 else row for row in range(20_000)]})
    blocks = list(Parquet().read(path, ["y", "x"]))
    assert [len(block.errors) for block in blocks] == [8192, 8192, 3616]
    inputs, errors = rows_of(path, ["y", "x"])
    assert [row for row, error in enumerate(errors) if error] == [9000]
    assert np.array_equal(np.delete(inputs[:, 1], 9000), np.delete(np.arange(20_000), 9000))


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**9), 10**9), min_size=1))
def test_numbers_as_python_writes_them_are_read(values):
    plain = to_numbers(pa.array([repr(value) for value in values])).tolist()
    assert plain == [float(value) for value in values]
    with_a_bad_one = to_numbers(pa.array(["x", *(f" {value!r}\t" for value in values)])).tolist()
    assert math.isnan(with_a_bad_one[0])
    assert with_a_bad_one[1:] == plain


@given(st.lists(st.text("0123456789+-.eEx_ inf\u0663", max_size=6)))
def test_any_text_is_a_number_or_nan(cells):
    for cell, value in zip(cells, to_numbers(pa.array([*cells, "x"])), strict=False):
        try:
            expected = float(cell)
        except ValueError:
            assert math.isnan(value)
        else:
            assert math.isnan(value) or value == expected


def test_a_reason_names_the_column_and_the_cell():
    cells = pa.RecordBatch.from_pydict({"x": [None, " ", "inf", "long" * 1000]})
    empty, blank, infinite, long = rows_from_cells(cells, ["x"]).errors
    assert empty == blank == "column 'x' is empty"
    assert infinite == "column 'x' is not a finite number ('inf')"
    assert len(long) < 100


@given(st.binary(max_size=60))
@example("größer\r\n\n".encode())
@example(b"\r\n\xff\r\n\n\r")
@example("größer".encode()[:-5])
@example(b"\xfe\xff")
@example(b"a" * (BLOCK_BYTES - 1) + "ö".encode() + b"a" * BLOCK_BYTES)  # a character in two blocks
@example(b"a" * (BLOCK_BYTES - 1) + "ö".encode() + b"a" * BLOCK_BYTES + b"\xff")
def test_any_bytes_come_out_as_utf8(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "bytes"
    path.write_bytes(content)
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"  # by its byte-order mark
    with valid_utf8(path) as valid:
        assert valid.read_bytes() == content.decode(encoding, errors="backslashreplace").encode()


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "__index_level_0__"])
def test_the_index_that_pandas_writes_is_no_feature(tmp_path, name):
    if name.startswith("__"):
        path = tmp_path / "sorted.parquet"
        pq.write_table(pa.table({"x": [5.0, 6.0], "label": ["a", "b"], name: [0, 1]}), path)
    else:
        path = tmp_path / "sorted.csv"
        path.write_text(f"{name},x,label\n0,5,a\n1,6,b\n")
    table = load_file(path)
    assert table.feature_names == ("x",)
    assert table.inputs.tolist() == [[5.0], [6.0]]
    assert table.note == f"column {name!r} is the row index that pandas wrote, and is left out"
    assert next(stream_file(path, columns=1)).inputs.tolist() == [[5.0], [6.0]]
    assert load_file(path, columns=[name]).feature_names == (name,)  # a model that was trained on it still finds it


def test_a_forgotten_class_column_is_pointed_out(tmp_path, one_line):
    path = tmp_path / "iris.csv"
    path.write_text("width,my kind\n1,setosa\n2,virginica\n")
    with pytest.raises(DataError) as caught:
        load_file(path)
    one_line(caught, "has no column 'label'", "column 'my kind' holds no numbers", "--label 'my kind'")
    assert load_file(path, label="my kind").class_names == ("setosa", "virginica")
    path.write_text("width,height\n")
    with pytest.raises(DataError, match="has no rows"):
        load_file(path)
    path.write_text("width,height\n1,2\n,4\n")  # a bad cell is not a class column
    with pytest.raises(DataError, match="column 'width' is empty"):
        load_file(path)


def test_bad_rows_are_counted_or_left_out(tmp_path):
    path = tmp_path / "gaps.csv"
    path.write_text("x,label\n1,a\nlittle,b\n3,a\nmuch,b\n5,b\n")
    with pytest.raises(DataError, match=r"row 1 \(the first is 0\): .* \('little'\), and 1 more bad rows.*--skip-bad"):
        load_file(path)
    table = load_file(path, skip_bad=True)
    assert table.inputs[:, 0].tolist() == [-2, 0, 2]  # 3 is the mean
    assert table.labels.tolist() == [0, 0, 1]
    assert table.note.startswith("2 of 5 rows cannot be read and are left out; the first: row 1")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_a_csv_with_a_byte_order_mark(tmp_path, encoding):
    path = tmp_path / "excel.csv"
    path.write_text("größe,label\n1,à\n2,b\n", encoding=encoding)
    table = load_file(path)
    assert (table.feature_names, table.class_names) == (("größe",), ("b", "à"))
    assert table.inputs.tolist() == [[1.0], [2.0]]


def test_utf16_without_its_mark_is_one_clear_line(tmp_path, one_line):
    path = tmp_path / "table.csv"
    path.write_text("x,label\n1,a\n", encoding="utf-16-le")
    with pytest.raises(DataError) as caught:
        load_file(path)
    one_line(caught, "is not text in UTF-8: save it as CSV with that encoding")
    assert r"\x00" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("table.csv", "x;y;label\n1,5;2;a\n-3;4e1;b\n"),
        ("table.csv", "x\ty\tlabel\n1.5\t2\ta\n-3\t40\tb\n"),
        ("table.tsv", "x\ty\tlabel\n1.5\t2\ta\n-3\t40\tb\n"),
        ("table.csv", "x|y|label\n1.5|2|a\n-3|40|b\n"),
        ("table.csv.gz", "x,y,label\n1.5,2,a\n-3,40,b\n"),
        ("table.csv", '"x,1;z","y","label"\n1.5,2,a\n-3,40,b\n'),
    ],
)
def test_separators_and_compression(tmp_path, name, text):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    loaded = load_file(path)
    assert loaded.inputs.tolist() == [[1.5, 2], [-3, 40]]
    assert loaded.class_names == ("a", "b")
    assert FORMATS[path.suffix].count(path) == 2


def test_columns_of_the_same_name_are_numbered_as_pandas_does(tmp_path):
    path = write(tmp_path, "x,x,label,x\n1,2,a,3\n4,5\n6,7,b,8\n")
    loaded = load_file(path, skip_bad=True)
    assert loaded.encoding is None
    assert loaded.feature_names == ("x", "x.1", "x.2")
    assert loaded.inputs.tolist() == [[1, 2, 3], [6, 7, 8]]
    assert "row 1" in loaded.note


def test_a_table_with_names_beyond_a_block_is_read_in_a_few_blocks(tmp_path):
    names = [f"{column:04d}{'x' * 250}" for column in range(5000)]
    rows = [",".join([str(row), *["1"] * 4999, "ab"[row % 2]]) for row in range(300)]
    path = write(tmp_path, "\n".join([",".join([*names, "label"]), *rows]))
    assert len(path.read_text().splitlines()[0]) > BLOCK_BYTES
    assert load_file(path).inputs[:, 0].tolist() == list(range(300))
    assert len(list(stream_file(path))) < 3


def test_many_columns_are_checked_in_one_pass():
    """Comparing each of the names with all others would take hours."""
    names = [f"column {number}" for number in range(400_000)]
    assert choose_columns([*names, "label"], None, "label", "table") == names
    assert choose_columns([*names, "label"], names[::-1], "label", "table") == names[::-1]
    assert numbered([*names, "column 7"]) == [*names, "column 7.1"]
    with pytest.raises(DataError, match="two columns called 'column 9'"):
        choose_columns([*names, "column 9"], None, "label", "table")


def test_a_column_that_may_hold_the_classes_is_looked_for_in_one_pass(tmp_path, monkeypatch):
    reads = []
    read = Csv.read
    monkeypatch.setattr(Csv, "read", lambda *arguments: reads.append(1) or read(*arguments))
    path = write(tmp_path, f"{','.join(f'x{column}' for column in range(50))},kind\n{'1,' * 50}tulip\n")
    with pytest.raises(DataError, match="--label kind"):
        load_file(path)
    assert len(reads) == 2


def test_too_many_columns(tmp_path, monkeypatch):
    monkeypatch.setattr("besnn.data.tables.MOST_COLUMNS", 3)
    with pytest.raises(DataError, match=r"it has 4 columns, more than 3"):
        load_file(write(tmp_path, "a,b,c,label\n1,2,3,x\n"))


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=5), max_size=4))
def test_any_names_are_read_as_written(tmp_path_factory, names):
    path = tmp_path_factory.getbasetemp() / "names.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerows([["x", *names], *[[row] * (len(names) + 1) for row in range(3)]])
    columns = Csv().columns(path)
    assert columns == tuple(numbered(["x", *names]))
    if len(set(columns)) == len(columns):
        assert rows_of(path, columns)[0].tolist() == [[row] * len(columns) for row in range(3)]
