"""Tables as they are: words, dates, gaps and wide columns, from files and frames."""

import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from besnn.data import load, stream
from besnn.data.encoding import MOST_WORDS, WEIGHT, Survey, TableEncoding, frame_rows, surveyed
from besnn.errors import InputError

TEXT = """age,colour,member,since,weight,label
31,red,True,2020-01-01,1000.001,a
,blue,False,2020-01-03,1000.002,b
45,red,True,2020-01-02,1000.003,a
52,NA,false,2020-01-04,1000.004,b
"""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(TEXT)
    return path


def named(dataset_or_names, inputs):
    return dict(zip(dataset_or_names, np.asarray(inputs).T, strict=True))


def test_every_kind_of_column(table):
    loaded = load(table)
    columns = named(loaded.feature_names, loaded.inputs)
    assert list(columns) == [
        "age", "age is missing", "colour=blue", "colour=red", "colour is missing", "member", "since", "weight",
        "unexpected cells",
    ]  # fmt: skip
    mean = np.mean([31, 45, 52])
    np.testing.assert_allclose(columns["age"], [31 - mean, 0, 45 - mean, 52 - mean], rtol=1e-6)
    assert columns["age is missing"].tolist() == [0, 1, 0, 0]
    assert columns["colour=red"].tolist() == [1, 0, 1, 0]
    assert columns["colour is missing"].tolist() == [0, 0, 0, 1]
    np.testing.assert_allclose(columns["member"], [0.5, -0.5, 0.5, -0.5])
    np.testing.assert_allclose(columns["since"], [-1.5, 0.5, -0.5, 1.5])
    np.testing.assert_allclose(columns["weight"], np.array([-1.5, -0.5, 0.5, 1.5]) / 3, rtol=1e-4)
    assert not columns["unexpected cells"].any()


def test_parquet_and_frames_are_encoded_as_csv(table, tmp_path):
    expected = load(table)
    frame = pd.read_csv(table, parse_dates=["since"], keep_default_na=True)
    pq.write_table(pa.Table.from_pandas(frame), tmp_path / "table.parquet")
    found = load(tmp_path / "table.parquet")
    assert found.feature_names == expected.feature_names
    np.testing.assert_allclose(found.inputs, expected.inputs, atol=1e-5)
    for each in (frame, pa.Table.from_pandas(frame), frame[frame.columns[::-1]]):
        np.testing.assert_allclose(frame_rows(each, expected.encoding).inputs, expected.inputs, atol=1e-5)


def test_polars_frames(table):
    polars = pytest.importorskip("polars")
    expected = load(table)
    frame = polars.read_csv(table, null_values=["NA", ""], try_parse_dates=True)
    np.testing.assert_allclose(frame_rows(frame, expected.encoding).inputs, expected.inputs, atol=1e-5)


def test_what_training_rows_do_not_have_is_counted(table, tmp_path):
    encoding = load(table).encoding
    path = tmp_path / "new.csv"
    path.write_text("weight,since,member,colour,age\n,2020-01-01,True,green,\n1000,soon,True,red,3\n")
    (batch,) = stream(path, columns=encoding)
    assert batch.inputs[0, -1] == 2 * WEIGHT  # a gap in weight and a new colour; gaps in age are known
    assert batch.errors == ["", "column 'since' is not a date ('soon')"]
    assert not batch.inputs[1].any()


def test_integers_are_not_dates(table):
    encoding = load(table).encoding
    frame = pd.DataFrame({"age": [31], "colour": ["red"], "member": [True], "since": [20240501], "weight": [1000.5]})
    assert frame_rows(frame, encoding).errors == ["column 'since' is not a date ('20240501')"]


def test_plain_numbers_need_no_encoding():
    cells = pa.RecordBatch.from_pydict({"x": [1.0, 2.0], "y": ["3", " 4"], "z": [True, False]})
    assert surveyed(cells, ["x", "y", "z"]) is None


def test_identifiers_and_empty_columns_are_left_out(tmp_path):
    path = tmp_path / "people.csv"
    lines = [f"person {row},{row},,{'ab'[row % 2]}" for row in range(MOST_WORDS + 1)]
    path.write_text("\n".join(["name,age,nothing,label", *lines]))
    loaded = load(path)
    assert loaded.encoding.names == ("age",)
    assert loaded.note == f"left out: column 'name' has over {MOST_WORDS} different words, column 'nothing' is empty"


def test_declared_categories_stay_categories():
    cells = pa.RecordBatch.from_pydict({"code": pa.array([1, 2, 1]).dictionary_encode()})
    assert surveyed(cells, ["code"]).feature_names[:2] == ("code=1", "code=2")


@given(
    st.lists(
        st.tuples(
            st.none() | st.floats(-1e30, 1e30),
            st.none() | st.sampled_from(["a", "b", "ü"]),
            st.none() | st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1)),
        ),
        min_size=1,
        max_size=30,
    ),
    st.integers(0, 30),
)
def test_blocks_do_not_matter_and_the_description_is_complete(rows, cut):
    numbers, words, dates = zip(*rows, strict=True)
    schema = pa.schema([("x", pa.float64()), ("word", pa.string()), ("date", pa.timestamp("us"))])
    cells = pa.RecordBatch.from_arrays(
        [pa.array(numbers, pa.float64()), pa.array(words, pa.string()), pa.array(dates, pa.timestamp("us"))], schema=schema
    )
    if all(cell is None for row in rows for cell in row):
        return
    survey = Survey(cells.schema.names)
    for block in (cells.slice(0, cut), cells.slice(cut)):
        survey.rows(block)
    encoding, whole = survey.encoding()[0], surveyed(cells, cells.schema.names)
    assert (encoding is None) == (whole is None)
    if encoding is not None:
        again = TableEncoding.from_settings(encoding.settings())
        found = again.rows(cells)
        assert found.errors == [""] * len(rows)
        assert np.isfinite(found.inputs).all()
        assert not found.inputs[:, -1].any()
        np.testing.assert_allclose(found.inputs, whole.rows(cells).inputs, rtol=1e-4, atol=1e-4)


def test_numbers_before_the_first_word_of_a_category_are_words_too():
    survey = Survey(["code"])
    for block in (["1", "2"], ["a", "b", "a"]):
        survey.rows(pa.RecordBatch.from_pydict({"code": block}))
    assert survey.encoding()[0].columns[0].words == ("1", "2", "a", "b")


def test_a_frame_without_a_column_is_refused(table):
    with pytest.raises(InputError, match="lacks column 'age': it has x"):
        frame_rows(pa.table({"x": [1]}), load(table).encoding)
