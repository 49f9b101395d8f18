import dataclasses
import itertools
import json
import os
import struct
import threading

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from besnn import Detector
from besnn.errors import DataError
from besnn.storage.tensor_file import MODEL_FILE, FileKind, read_tensor_file, write_tensor_file
from besnn.training.fit import fit_detector

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
        found = [read_tensor_file(path, KIND) for _ in range(300)]
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


def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    fails(tmp_path / "pipe", "is a pipe or device, not a thing: name a file")


@pytest.mark.parametrize("start", [b"", b"\x02\x00\x00\x00\x00\x00\x00\x00{}", b"\xff" * 8, struct.pack("<Q", 5) + b"[1,2]"])
def test_a_huge_file_is_refused_by_its_start(start, tmp_path):
    with (tmp_path / "sparse").open("wb") as file:
        file.write(start)
        file.truncate(30 * 2**30)  # takes no room on the disk, but would in memory
    fails(tmp_path / "sparse", "truncated, damaged or not a safetensors file")


def test_a_flipped_bit_anywhere_is_noticed(path):
    """Tries every fifth byte."""
    whole = path.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    harmless = len(whole[8 : 8 + length].rstrip(b" ")) + 8  # padding behind the header
    for place in range(0, len(whole), 5):
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
    for size in range(0, len(whole), 5):
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


@pytest.mark.parametrize(
    ("value", "dtype"),
    [("nan", torch.float32), ("inf", torch.float16), ("-inf", torch.bfloat16), ("nan", torch.float64)],
)
def test_numbers_that_are_not_finite_are_named(value, dtype, tmp_path):
    path = tmp_path / "model.safetensors"
    bad = torch.ones(2, 3, dtype=dtype)
    bad[1, 2] = float(value)
    write_tensor_file(path, MODEL_FILE, {"model/weight": torch.ones(2, 3), "model/bias": bad}, {})
    with pytest.raises(DataError, match="NaN or infinite numbers in 'model/bias'") as caught:
        read_tensor_file(path, MODEL_FILE)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["be-snn", "deep-ensemble"])
def test_a_detector_with_mirror_images_is_restored(method, tiny_recipe, stripes, tmp_path):
    settings = f"method={{name: {method}, members: 3, mirror: true}}", "training.augment.flip=true", "training.epochs=1"
    detector = fit_detector(tiny_recipe(*settings, "backbone.hidden=[4, 4]", "data.calibration=0.4"), stripes).detector
    path = tmp_path / "model.safetensors"
    detector.save(path)
    assert read_tensor_file(path, MODEL_FILE)[1]["recipe"]["method"]["mirror"]
    loaded = Detector.load(path)
    for count in (1, 7, 64):
        one, other = detector.predict(stripes.inputs[:count]), loaded.predict(stripes.inputs[:count])
        for field in dataclasses.fields(one):
            assert np.array_equal(getattr(one, field.name), getattr(other, field.name)), field.name
    assert loaded.model.mirror
    detector.model.mirror = False  # the same weights then say something else
    plain = Detector(detector.model, detector.preprocessing, detector.class_names).calibrate(stripes.inputs)
    one, other = (each.predict(stripes.inputs).member_probabilities for each in (plain, loaded))
    np.testing.assert_allclose(other[::2], one[::2], rtol=1e-5)
    assert not np.allclose(other[1], one[1], rtol=1e-5)
    mirrored = plain.predict(stripes.inputs[..., ::-1]).member_probabilities
    np.testing.assert_allclose(other[1], mirrored[1], rtol=1e-5)


def test_mirror_must_be_true_or_false(tiny_recipe, stripes, tmp_path):
    path = tmp_path / "model.safetensors"
    fit_detector(tiny_recipe("training.epochs=1", "data.calibration=0.4"), stripes).detector.save(path)
    tensors, header = read_tensor_file(path, MODEL_FILE)
    write_tensor_file(path, MODEL_FILE, tensors, header | {"mirror": "false"})
    with pytest.raises(DataError, match="mirror is 'false', not true or false"):
        Detector.load(path)
