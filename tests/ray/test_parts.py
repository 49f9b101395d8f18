import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from besnn.batch import SCHEMA
from besnn.ray.parts import decode_part, encode_part, part_name


def some_rows(count: int, start: int = 0) -> pa.RecordBatch:
    """Rows of which every third is flagged and every fifth failed."""
    numbers = np.arange(start, start + count)
    failed = numbers % 5 == 4
    columns = [
        [str(number) for number in numbers],
        pa.array(["a"] * count, mask=failed),
        pa.array(np.ones(count, np.float32), mask=failed),
        pa.array(numbers.astype(np.float32), mask=failed),
        pa.array(np.ones(count), mask=failed),
        pa.array(numbers % 3 == 0, mask=failed),
        [f"bad {number}" if bad else "" for number, bad in zip(numbers, failed, strict=True)],
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


@pytest.fixture(scope="module")
def content():
    return encode_part([some_rows(15)], "me", 2)[0]


def test_a_part_holds_the_rows_and_tells_of_them():
    content, part = encode_part([some_rows(10), some_rows(5, start=10)], "me", 3)
    table = pa.parquet.read_table(io.BytesIO(content)).replace_schema_metadata(None)
    assert table.equals(pa.Table.from_batches([some_rows(15)]))
    assert (part.chunk, part.rows, part.failed, part.first_error) == (3, 15, 3, "bad 4")
    assert part.flagged == sum(number % 3 == 0 and number % 5 != 4 for number in range(15))
    assert decode_part(content, "me", 3) == part


def test_the_same_rows_are_the_same_bytes_however_they_came():
    assert encode_part([some_rows(10), some_rows(5, start=10)], "me", 0) == encode_part([some_rows(15)], "me", 0)


def test_a_part_is_of_one_run_and_one_chunk(content):
    assert decode_part(content, "me", 2) is not None
    assert decode_part(content, "you", 2) is None
    assert decode_part(content, "me", 1) is None
    plain = io.BytesIO()
    pa.parquet.write_table(pa.Table.from_batches([some_rows(15)]), plain)
    assert decode_part(plain.getvalue(), "me", 2) is None


def test_no_rows_are_a_part():
    content, part = encode_part([], "me", 0)
    assert (part.rows, part.first_error) == (0, "")
    assert pa.parquet.read_table(io.BytesIO(content)).schema.names == SCHEMA.names


@given(length=st.floats(0, 1, exclude_max=True))
def test_a_part_that_was_cut_short_is_none(content, length):
    assert decode_part(content[: int(length * len(content))], "me", 2) is None


@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_part_with_a_changed_byte_is_none(content, place, flip):
    changed = bytearray(content)
    changed[int(place * len(changed))] ^= flip
    assert decode_part(bytes(changed), "me", 2) is None


def test_names_are_in_the_order_of_chunks():
    names = [part_name(chunk) for chunk in (0, 9, 10, 99, 100, 10**7)]
    assert names == sorted(names)
