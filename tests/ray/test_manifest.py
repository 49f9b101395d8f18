import json

import pytest

from besnn.errors import DataError, InputError
from besnn.ray.locations import Location
from besnn.ray.manifest import MANIFEST, Manifest
from besnn.ray.parts import Part, encode_part, part_name

RUN = {"input": "x.csv", "model_sha256": "abc", "chunk_rows": 8}


def put(manifest: Manifest, *chunks: int) -> None:
    """Puts empty parts in place, as workers do."""
    for chunk in chunks:
        content, _ = encode_part([], manifest.identity, chunk)
        (manifest.folder / part_name(chunk)).write(content)


@pytest.fixture
def folder(tmp_path):
    return Location.parse(str(tmp_path / "scores"))


def test_opening_writes_nothing(folder):
    Manifest.open(folder, RUN)
    assert not folder.is_folder()


def test_a_run_finds_its_parts_again_whether_the_manifest_lists_them_or_not(folder):
    manifest = Manifest.open(folder, RUN)
    put(manifest, 0, 1, 3)
    manifest.parts[0] = encode_part([], manifest.identity, 0)[1]
    manifest.save()
    assert sorted(Manifest.open(folder, RUN).parts) == [0, 1, 3]


def test_a_part_that_is_not_as_it_was_written_is_no_part(folder):
    manifest = Manifest.open(folder, RUN)
    put(manifest, 0, 1, 2)
    manifest.parts = {0: Part(0, "another checksum", 0, 0, 0, "")}
    manifest.save()
    (folder / part_name(1)).write(b"half a fi")
    assert sorted(Manifest.open(folder, RUN).parts) == [2]


def test_complete_means_that_all_parts_are_still_there(folder, tmp_path):
    manifest = Manifest.open(folder, RUN)
    put(manifest, 0, 1)
    manifest.parts = {chunk: encode_part([], manifest.identity, chunk)[1] for chunk in (0, 1)}
    manifest.complete = True
    manifest.save()
    assert Manifest.open(folder, RUN).complete
    (tmp_path / "scores" / part_name(1)).unlink()
    assert not Manifest.open(folder, RUN).complete


def test_the_output_of_another_run_is_left_alone(folder):
    Manifest.open(folder, RUN).save()
    with pytest.raises(InputError, match=r"belongs to another run \(its model_sha256, chunk_rows differs\)"):
        Manifest.open(folder, RUN | {"model_sha256": "abd", "chunk_rows": 16})


def test_other_files_are_left_alone(folder, tmp_path):
    (folder / "thesis.doc").write(b"")
    with pytest.raises(InputError, match=r"holds other files \(thesis.doc\)"):
        Manifest.open(folder, RUN)
    with pytest.raises(InputError, match="is a file"):
        Manifest.open(folder / "thesis.doc", RUN)
    with pytest.raises(InputError, match="is a file"):
        Manifest.open(Location.parse(str(tmp_path / "scores.csv")), RUN)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"format": "other"}'])
def test_a_manifest_that_is_none(folder, content):
    (folder / MANIFEST).write(content.encode())
    with pytest.raises(DataError, match="is no manifest of scores"):
        Manifest.open(folder, RUN)


def test_what_a_manifest_says(folder):
    manifest = Manifest.open(folder, RUN)
    manifest.parts = {1: Part(1, "b", 3, 0, 2, "second"), 0: Part(0, "a", 8, 2, 1, "first")}
    manifest.save()
    document = json.loads((folder / MANIFEST).read())
    assert document["rows"] == 11
    assert [part["name"] for part in document["parts"]] == [part_name(0), part_name(1)]
    assert document["run"] == RUN
    assert document["complete"] is False
    tally = manifest.tally()
    assert (tally.inputs, tally.flagged, tally.failed, tally.first_error) == (11, 2, 3, "first")
