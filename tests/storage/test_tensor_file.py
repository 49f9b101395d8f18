import itertools
import json
import struct
import threading

import pytest
import torch
from safetensors.torch import save_file

from besnn.errors import DataError
from besnn.storage.tensor_file import FileKind, read_tensor_file, write_tensor_file

KIND = FileKind("a-format", version=2, noun="thing", remedy="make another")
TENSORS = {
    "weight": torch.arange(6.0).reshape(2, 3),
    "half": torch.tensor([1.5, 2.5], dtype=torch.float16),
    "brain": torch.tensor([1.5], dtype=torch.bfloat16),
    "count": torch.tensor(7),
    "empty": torch.empty(0, 4),
    "mask": torch.tensor([True, False]),
}
HEADER = {"name": "Grüße 你好 \udcff", "nested": {"b": [1, 2.5, None], "a": True}, "nan": float("inf")}


@pytest.fixture
def path(tmp_path):
    target = tmp_path / "thing.safetensors"
    write_tensor_file(target, KIND, TENSORS, HEADER)
    return target


def fails(path, *words):
    with pytest.raises(DataError) as caught:
        read_tensor_file(path, KIND)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_what_is_written_is_read(path):
    tensors, header = read_tensor_file(path, KIND)
    assert tensors.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        assert tensors[name].dtype == value.dtype
        assert torch.equal(tensors[name], value)
    assert {name: header[name] for name in HEADER} == HEADER
    assert (header["format"], header["version"]) == ("a-format", 2)


def test_the_same_content_makes_the_same_file(path, tmp_path):
    for copy in range(5):
        other = tmp_path / f"{copy}.safetensors"
        write_tensor_file(other, KIND, TENSORS, HEADER)
        assert other.read_bytes() == path.read_bytes()


def test_what_was_read_does_not_change_with_the_file(path):
    tensors, _ = read_tensor_file(path, KIND)
    path.write_bytes(bytes(path.stat().st_size))
    for name, value in TENSORS.items():
        assert torch.equal(tensors[name], value)


def test_a_file_can_be_read_while_others_take_its_place(path, tmp_path):
    """Each with a digest of its own, so that the header of one and the tensors of another would be refused."""
    whole = []
    for number in range(2):
        write_tensor_file(path, KIND, {"number": torch.tensor(number)}, {"number": number})
        whole.append(path.read_bytes())
    done = threading.Event()

    def write():
        for content in itertools.cycle(whole):
            if done.is_set():
                break
            (tmp_path / "next").write_bytes(content)
            (tmp_path / "next").replace(path)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        found = [read_tensor_file(path, KIND) for _ in range(1000)]
    finally:
        done.set()
        writer.join()
    assert {(int(tensors["number"]), header["number"]) for tensors, header in found} == {(0, 0), (1, 1)}


def test_tied_strided_and_trained_tensors_are_written_as_they_are(tmp_path):
    weight = torch.nn.Parameter(torch.rand(3, 4))
    write_tensor_file(tmp_path / "a", KIND, {"one": weight, "two": weight, "turned": weight.T}, {})
    tensors, _ = read_tensor_file(tmp_path / "a", KIND)
    assert torch.equal(tensors["one"], tensors["two"])
    assert torch.equal(tensors["turned"], weight.detach().T)


def test_a_flipped_bit_anywhere_is_noticed(path):
    whole = path.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    harmless = len(whole[8 : 8 + length].rstrip(b" ")) + 8  # padding behind the header
    for place in range(len(whole)):
        if harmless <= place < 8 + length:
            continue
        flipped = bytearray(whole)
        flipped[place] ^= 1 << (5 if chr(whole[place]).isalpha() else 0)  # bit 5 makes capitals of small letters
        path.write_bytes(flipped)
        fails(path)


@pytest.mark.parametrize(
    ("written", "claimed"), [(b'"F32","shape":[2,3]', b'"I32","shape":[2,3]'), (b'"shape":[2,3]', b'"shape":[3,2]')]
)
def test_another_type_or_shape_of_the_same_size_is_noticed(written, claimed, path):
    whole = path.read_bytes()
    assert written in whole
    path.write_bytes(whole.replace(written, claimed))
    fails(path, "altered")


def test_a_file_cut_off_anywhere_is_noticed(path):
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        fails(path, "truncated", "make another")
    path.write_bytes(whole + b"more")
    fails(path, "damaged")


def test_files_of_other_kinds_are_refused(tmp_path):
    fails(tmp_path / "absent", "does not exist")
    fails(tmp_path, "is a folder")
    image = tmp_path / "image.png"
    image.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(200))
    fails(image, "not a safetensors file")
    foreign = tmp_path / "foreign.safetensors"
    for metadata in (None, {"format": "pt"}, {"besnn": "no json"}, {"besnn": "[1]"}, {"besnn": "{}"}, {"besnn": "[" * 10**5}):
        save_file({"weight": torch.ones(2)}, foreign, metadata=metadata)
        fails(foreign, "safetensors file but not a besnn thing")


@pytest.mark.parametrize("version", [3, 1000])
def test_a_newer_version_asks_for_an_upgrade(version, tmp_path):
    newer = tmp_path / "newer.safetensors"
    save_file({}, newer, metadata={"besnn": json.dumps({"format": "a-format", "version": version})})
    fails(newer, f"version {version}", "newer than this besnn reads (2)", "upgrade")


@pytest.mark.parametrize("version", [0, -1, "2", 1.5, None])
def test_invalid_versions_are_refused(version, tmp_path):
    other = tmp_path / "other.safetensors"
    save_file({}, other, metadata={"besnn": json.dumps({"format": "a-format", "version": version})})
    fails(other, "not a besnn thing")


def test_another_kind_of_file_says_what_it_is(path):
    with pytest.raises(DataError, match="has format 'a-format', which is not a besnn model"):
        read_tensor_file(path, FileKind("b-format", 1, "model", "get one"))


def test_sizes_that_lie_are_noticed_before_anything_is_allocated(tmp_path):
    path = tmp_path / "huge.safetensors"
    entry = {"dtype": "F32", "shape": [10**6, 10**9], "data_offsets": [0, 4 * 10**15]}
    header = json.dumps({"__metadata__": {"besnn": json.dumps({"format": "a-format", "version": 1})}, "w": entry}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    fails(path, "damaged")
    path.write_bytes(struct.pack("<Q", 2**62) + header)
    fails(path, "damaged")
