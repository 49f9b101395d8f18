import pytest
import torch

from besnn.deployment.model_file import MODEL_FILE, read_header, read_model_file, write_model_file
from besnn.errors import DataError
from besnn.tensor_file import FileKind, write_tensor_file

TENSORS = {"model/weight": torch.ones(2, 3), "count": torch.tensor(3), "precise": torch.tensor([1e300], dtype=torch.float64)}


def test_tensors_and_header_come_back(tmp_path):
    path = tmp_path / "model.safetensors"
    write_model_file(path, TENSORS, {"class_names": ["Ä", "b"]})
    tensors, header = read_model_file(path)
    assert all(torch.equal(tensors[name], value) for name, value in TENSORS.items())
    assert header["class_names"] == ["Ä", "b"]
    assert read_header(path).items() >= header.items()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_numbers_that_are_not_finite_are_named(value, dtype, tmp_path):
    path = tmp_path / "model.safetensors"
    bad = torch.ones(2, 3, dtype=dtype)
    bad[1, 2] = value
    write_model_file(path, TENSORS | {"model/bias": bad}, {})
    with pytest.raises(DataError, match="NaN or infinite numbers in 'model/bias'") as caught:
        read_model_file(path)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_is_no_model(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    write_tensor_file(path, FileKind("besnn-checkpoint", 1, "checkpoint", ""), TENSORS, {})
    with pytest.raises(DataError, match=r"'besnn-checkpoint', which is no besnn model file: .*besnn train"):
        read_model_file(path)


def test_writing_replaces_the_file_whole(tmp_path):
    path = tmp_path / "model.safetensors"
    write_model_file(path, TENSORS, {"run": 1})
    write_model_file(path, TENSORS, {"run": 2})
    assert read_header(path)["run"] == 2
    assert [each.name for each in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_newer_version_asks_for_an_upgrade(tmp_path):
    path = tmp_path / "model.safetensors"
    newer = FileKind(MODEL_FILE.format, MODEL_FILE.version + 1, MODEL_FILE.noun, MODEL_FILE.remedy)
    write_tensor_file(path, newer, TENSORS, {})
    with pytest.raises(DataError, match=r"format version 2, newer than this besnn reads.*upgrade besnn"):
        read_model_file(path)
