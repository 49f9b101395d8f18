import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from besnn.batch import SCHEMA, Tally
from besnn.errors import DataError, InputError
from besnn.ray.locations import Location
from besnn.ray.manifest import MANIFEST, Manifest, Part, decode_part, encode_part, part_name

RUN = {"input": "x.csv", "model_sha256": "abc", "chunk_rows": 8}


def some_rows(count: int, start: int = 0) -> pa.RecordBatch:
    """Return rows of which every third is flagged and every fifth failed."""
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
        pa.array(["unsure"] * count, mask=failed),
        pa.array(["a|b"] * count, mask=failed),
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


@pytest.fixture(scope="module")
def content():
    return encode_part([some_rows(15)], "me", 2)[0]


def test_a_part_holds_the_rows_and_their_counts():
    content, part = encode_part([some_rows(10), some_rows(5, start=10)], "me", 3)
    table = pa.parquet.read_table(io.BytesIO(content)).replace_schema_metadata(None)
    assert table.equals(pa.Table.from_batches([some_rows(15)]))
    assert (part.chunk, part.inputs, part.failed, part.first_error) == (3, 15, 3, "bad 4")
    assert part.flagged == sum(number % 3 == 0 and number % 5 != 4 for number in range(15))
    assert decode_part(content, "me", 3) == part


def test_the_content_does_not_depend_on_batches():
    assert encode_part([some_rows(10), some_rows(5, start=10)], "me", 0) == encode_part([some_rows(15)], "me", 0)


def test_a_part_belongs_to_one_run_and_one_chunk(content):
    assert decode_part(content, "me", 2) is not None
    assert decode_part(content, "you", 2) is None
    assert decode_part(content, "me", 1) is None
    plain = io.BytesIO()
    pa.parquet.write_table(pa.Table.from_batches([some_rows(15)]), plain)
    assert decode_part(plain.getvalue(), "me", 2) is None


@given(length=st.floats(0, 1, exclude_max=True))
def test_a_truncated_part_is_rejected(content, length):
    assert decode_part(content[: int(length * len(content))], "me", 2) is None


@pytest.mark.parametrize("name", ["input", "score", "error"])
def test_a_part_with_damaged_data_is_rejected(content, name):
    column = pa.parquet.ParquetFile(io.BytesIO(content)).metadata.row_group(0).column(SCHEMA.names.index(name))
    damaged = bytearray(content)
    damaged[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    assert decode_part(bytes(damaged), "me", 2) is None


def test_names_are_in_the_order_of_chunks():
    names = [part_name(chunk) for chunk in (0, 9, 10, 99, 100, 10**7)]
    assert names == sorted(names)


def put(manifest: Manifest, *chunks: int) -> None:
    """Put empty parts in place, as workers do."""
    for chunk in chunks:
        content, _ = encode_part([], manifest.identity, chunk)
        (manifest.folder / part_name(chunk)).write(content)


@pytest.fixture
def folder(tmp_path):
    return Location.parse(str(tmp_path / "scores"))


def test_opening_writes_nothing(folder):
    Manifest.open(folder, RUN)
    assert not folder.is_folder()


def test_a_run_finds_its_parts_again(folder):
    manifest = Manifest.open(folder, RUN)
    put(manifest, 0, 1, 3)
    manifest.save()
    (folder / part_name(1)).write(b"half a fi")
    found = Manifest.open(folder, RUN)
    assert sorted(found.parts) == [0, 3]
    assert not found.complete
    assert found.covers(3, 4)
    assert not found.covers(0, 2)
    assert not found.covers(0, None)


def test_complete_means_that_all_parts_are_as_listed(folder, tmp_path):
    manifest = Manifest.open(folder, RUN)
    put(manifest, 0, 1)
    manifest.parts = {chunk: encode_part([], manifest.identity, chunk)[1] for chunk in (0, 1)}
    manifest.complete = True
    manifest.save()
    assert Manifest.open(folder, RUN).complete
    (folder / part_name(0)).write(encode_part([some_rows(3)], manifest.identity, 0)[0])  # intact, but not the one listed
    assert sorted(Manifest.open(folder, RUN).parts) == [1]
    put(manifest, 0)
    (tmp_path / "scores" / part_name(1)).unlink()
    assert not Manifest.open(folder, RUN).complete


def test_the_output_of_another_run_is_left_alone(folder):
    Manifest.open(folder, RUN).save()
    with pytest.raises(InputError, match=r"belongs to another run \(different model_sha256, chunk_rows\)"):
        Manifest.open(folder, RUN | {"model_sha256": "abd", "chunk_rows": 16})


def test_other_files_are_left_alone(folder, tmp_path):
    (folder / "thesis.doc").write(b"")
    with pytest.raises(InputError, match=r"holds other files \(thesis.doc\)"):
        Manifest.open(folder, RUN)
    for file in (folder / "thesis.doc", Location.parse(str(tmp_path / "scores.csv"))):
        with pytest.raises(InputError, match="is a file"):
            Manifest.open(file, RUN)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"format": "other"}'])
def test_a_file_that_is_not_a_manifest(folder, content):
    (folder / MANIFEST).write(content.encode())
    with pytest.raises(DataError, match="is not a manifest of scores"):
        Manifest.open(folder, RUN)


def test_what_a_manifest_says(folder):
    manifest = Manifest.open(folder, RUN)
    manifest.parts = {1: Part(3, 0, 2, "second", 1, chunk=1), 0: Part(8, 2, 1, "first", 0, chunk=0)}
    manifest.save()
    document = json.loads((folder / MANIFEST).read())
    assert document["rows"] == 11
    assert [part["name"] for part in document["parts"]] == [part_name(0), part_name(1)]
    assert document["run"] == RUN
    assert document["complete"] is False
    assert manifest.tally() == Tally(inputs=11, flagged=2, failed=3, first_error="first", unsure=1)
