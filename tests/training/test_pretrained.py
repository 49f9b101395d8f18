"""Training that starts from weights trained before: those of a model file, or of the user's own network."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from besnn.detector import Detector
from besnn.errors import DataError, InputError
from besnn.layers import batch_ensemble, fast_parameters
from besnn.model import Preprocessing, convnet
from besnn.recipe.build import freeze_weights, pretrained_backbone
from besnn.recipe.config import OptimiserConfig, backbone_class
from besnn.storage.tensor_file import MODEL_FILE, read_tensor_file, write_tensor_file
from besnn.training import build_method, parse_recipe
from besnn.training.checkpoint import CHECKPOINT
from besnn.training.fit import fit_detector
from besnn.training.schedule import parameter_groups

SHAPE = (1, 8, 8)
SETTINGS = ("backbone={hidden: [4, 6], feature_dim: 5}", "training.epochs=2", "data.validation=0", "data.calibration=0")


@pytest.fixture(scope="module")
def plain(tiny_recipe, stripes, tmp_path_factory):
    """A trained softmax network and its file."""
    path = tmp_path_factory.mktemp("plain") / "plain.safetensors"
    detector = fit_detector(tiny_recipe(*SETTINGS, "method=softmax"), stripes).detector
    detector.save(path)
    return detector, path


def config(path, **others):
    return backbone_class()(**{"name": "convnet", "hidden": (4, 6), "feature_dim": 5, "weights": str(path), **others})


def same(one, other):
    return all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())


def test_the_trunk_comes_from_the_file_and_the_head_is_new(plain):
    detector, path = plain
    backbone = pretrained_backbone(config(path), SHAPE)
    assert same(backbone.trunk, detector.model.feature_extractor.trunk)
    assert not same(backbone.head, detector.model.feature_extractor.head)
    assert all(parameter.requires_grad for parameter in backbone.parameters())


def test_frozen_weights_are_those_of_the_trunks_layers(plain):
    backbone = pretrained_backbone(config(plain[1], frozen=True), SHAPE)
    kept = [name for name, parameter in backbone.named_parameters() if not parameter.requires_grad]
    assert kept == ["trunk.0.weight", "trunk.4.weight"]  # the convolutions: no norms, no biases, no head


def test_what_is_frozen_is_in_no_group_and_does_not_move():
    network = convnet(SHAPE, (4,), 3)
    freeze_weights(network.trunk)
    ensemble = batch_ensemble(network, 2, norm="member")
    grouped = {id(p) for group in parameter_groups(ensemble, OptimiserConfig()) for p in group["params"]}
    frozen = ensemble.trunk[0].weight
    assert grouped == {id(parameter) for parameter in ensemble.parameters()} - {id(frozen)}
    assert grouped >= {id(parameter) for parameter in fast_parameters(ensemble)}


@pytest.mark.parametrize("frozen", [True, False])
def test_a_recipe_that_starts_from_a_file(frozen, plain, tiny_recipe, stripes, tmp_path):
    detector, path = plain
    copy = tmp_path / "start.safetensors"
    copy.write_bytes(path.read_bytes())
    start = (f"backbone.weights={copy}", f"backbone.frozen={str(frozen).lower()}", "method.norm=member")
    converted = fit_detector(tiny_recipe(*SETTINGS, *start), stripes).detector
    convolutions = [(converted.model.feature_extractor.trunk[i], detector.model.feature_extractor.trunk[i]) for i in (0, 4)]
    assert all(torch.equal(new.weight, old.weight) == frozen for new, old in convolutions)
    assert all(bool((new.r.std(0) > 0).any()) for new, _ in convolutions)  # the members differ
    converted.save(tmp_path / "converted.safetensors")
    copy.unlink()  # a model file stands alone
    again = Detector.load(tmp_path / "converted.safetensors")
    np.testing.assert_allclose(again.score(stripes.inputs), converted.score(stripes.inputs), atol=1e-6)


def test_the_users_own_network_with_its_own_preprocessing(tiny_recipe, stripes, tmp_path):
    body = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten())
    before = {name: value.clone() for name, value in body.state_dict().items()}
    freeze_weights(body)
    extractor = nn.Sequential(body, nn.Linear(108, 5))
    recipe = tiny_recipe(*SETTINGS)
    from_pixels = Preprocessing(SHAPE, torch.zeros(1), torch.full((1,), 255.0))
    detector = fit_detector(recipe, stripes, feature_extractor=extractor, preprocessing=from_pixels).detector
    assert torch.equal(detector.model.feature_extractor[0][0].weight, before["0.weight"])
    assert all(torch.equal(value, before[name]) for name, value in body.state_dict().items())  # yours is left alone
    assert float(detector.preprocessing.std) == 255
    path = tmp_path / "mine.safetensors"
    detector.save(path)
    with pytest.raises(InputError, match="holds a network of your own"):
        Detector.load(path)
    again = Detector.load(path, build_method(recipe, SHAPE, 2, extractor)[0])
    np.testing.assert_allclose(again.score(stripes.inputs), detector.score(stripes.inputs), atol=1e-6)


def test_a_run_does_not_continue_from_other_weights(tiny_recipe, stripes, tmp_path):
    recipe = tiny_recipe(*SETTINGS)
    networks = [convnet(SHAPE, (4,), 5) for _ in range(2)]
    fit_detector(recipe, stripes, feature_extractor=networks[0], run_folder=tmp_path)
    fit_detector(recipe, stripes, feature_extractor=networks[0], run_folder=tmp_path, resume=True)
    with pytest.raises(InputError, match="belongs to another recipe or other data"):
        fit_detector(recipe, stripes, feature_extractor=networks[1], run_folder=tmp_path, resume=True)


def foreign_copy(plain, path, change=lambda value: value):
    """The tensors of the plain network's file in one that besnn did not write."""
    save_file({name: change(value) for name, value in load_file(plain[1]).items()}, path)
    return path


def test_weights_from_a_file_that_besnn_did_not_write(plain, tmp_path):
    backbone = pretrained_backbone(config(foreign_copy(plain, tmp_path / "foreign.safetensors")), SHAPE)
    assert same(backbone.trunk, plain[0].model.feature_extractor.trunk)


def test_weights_are_read_with_the_checks_of_a_model_file(plain, tmp_path):
    _, path = plain
    altered = tmp_path / "altered.safetensors"
    content = path.read_bytes()
    altered.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match=r"altered\.safetensors was altered after it was written"):
        pretrained_backbone(config(altered), SHAPE)
    tensors, header = read_tensor_file(path, MODEL_FILE)
    broken = {name: value * float("nan") if value.is_floating_point() else value for name, value in tensors.items()}
    write_tensor_file(altered, MODEL_FILE, broken, header)
    with pytest.raises(DataError, match=r"altered\.safetensors contains NaN or infinite numbers"):
        pretrained_backbone(config(altered), SHAPE)
    write_tensor_file(altered, CHECKPOINT, tensors, {})
    with pytest.raises(DataError, match="'besnn-checkpoint', which is not a besnn model file"):
        pretrained_backbone(config(altered), SHAPE)
    foreign = foreign_copy(plain, tmp_path / "foreign.safetensors", lambda value: value / 0 if value.ndim > 1 else value)
    with pytest.raises(DataError, match=r"backbone\.weights='.*foreign\.safetensors' holds NaN or infinite numbers"):
        pretrained_backbone(config(foreign), SHAPE)


def test_wrong_use(plain, tmp_path):
    _, path = plain
    missing = tmp_path / "missing.safetensors"
    with pytest.raises(InputError, match="backbone 'mlp' has no trunk"):
        pretrained_backbone(config(path, name="mlp"), (2,))
    with pytest.raises(DataError, match=r"missing\.safetensors' holds no trunk of 'convnet' \(.*\): train one with"):
        pretrained_backbone(config(missing), SHAPE)
    missing.write_bytes(b"no tensors")
    with pytest.raises(DataError, match=r"holds no trunk of 'convnet'"):
        pretrained_backbone(config(missing), SHAPE)
    with pytest.raises(DataError, match=r"holds no trunk of 'convnet' \(Error\(s\) in loading") as caught:
        pretrained_backbone(config(path, hidden=(4, 7)), SHAPE)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=r"backbone\.frozen=true needs trained weights"):
        parse_recipe({"name": "mine", "data": {"source": "digits"}, "backbone": {"frozen": True}})
