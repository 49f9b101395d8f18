import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from besnn import BESNN, Detector
from besnn.errors import DataError
from besnn.storage.tensor_file import MODEL_FILE, FileKind, read_tensor_file, write_tensor_file
from besnn.training.fit import fit_detector

TENSORS = {"model/weight": torch.ones(2, 3), "count": torch.tensor(3), "precise": torch.tensor([1e300], dtype=torch.float64)}


def test_tensors_and_header_come_back(tmp_path):
    path = tmp_path / "model.safetensors"
    write_tensor_file(path, MODEL_FILE, TENSORS, {"class_names": ["Ä", "b"]})
    tensors, header = read_tensor_file(path, MODEL_FILE)
    assert all(torch.equal(tensors[name], value) for name, value in TENSORS.items())
    assert header["class_names"] == ["Ä", "b"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_numbers_that_are_not_finite_are_named(value, dtype, tmp_path):
    path = tmp_path / "model.safetensors"
    bad = torch.ones(2, 3, dtype=dtype)
    bad[1, 2] = value
    write_tensor_file(path, MODEL_FILE, TENSORS | {"model/bias": bad}, {})
    with pytest.raises(DataError, match="NaN or infinite numbers in 'model/bias'") as caught:
        read_tensor_file(path, MODEL_FILE)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["be-snn", "deep-ensemble", "batch-ensemble"])
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


def test_a_wrapped_network_with_mirror_images_is_restored(tiny_recipe, stripes, tmp_path):
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 4))
    settings = "method.mirror=true", "training.augment.flip=true", "training.epochs=1", "data.calibration=0.4"
    detector = fit_detector(tiny_recipe(*settings), stripes, feature_extractor=network).detector
    detector.save(tmp_path / "model.safetensors")
    alike = BESNN(network, num_classes=2, feature_dim=4, members=2, noise_dim=4, hidden_dim=8)
    loaded = Detector.load(tmp_path / "model.safetensors", alike)
    assert loaded.model.mirror
    assert np.array_equal(loaded.score(stripes.inputs), detector.score(stripes.inputs))


def test_mirror_must_be_true_or_false(tiny_recipe, stripes, tmp_path):
    path = tmp_path / "model.safetensors"
    fit_detector(tiny_recipe("training.epochs=1", "data.calibration=0.4"), stripes).detector.save(path)
    tensors, header = read_tensor_file(path, MODEL_FILE)
    write_tensor_file(path, MODEL_FILE, tensors, header | {"mirror": "false"})
    with pytest.raises(DataError, match="mirror is 'false', not true or false"):
        Detector.load(path)


def test_a_checkpoint_is_not_a_model_file(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    write_tensor_file(path, FileKind("besnn-checkpoint", 1, "checkpoint", ""), TENSORS, {})
    with pytest.raises(DataError, match=r"'besnn-checkpoint', which is not a besnn model file: .*besnn train"):
        read_tensor_file(path, MODEL_FILE)


def test_writing_replaces_the_file_whole(tmp_path):
    path = tmp_path / "model.safetensors"
    write_tensor_file(path, MODEL_FILE, TENSORS, {"run": 1})
    write_tensor_file(path, MODEL_FILE, TENSORS, {"run": 2})
    assert read_tensor_file(path, MODEL_FILE)[1]["run"] == 2
    assert [each.name for each in tmp_path.iterdir()] == ["model.safetensors"]
