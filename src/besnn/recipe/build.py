"""Building the networks that a recipe describes."""

import copy
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from besnn.errors import BesnnError, DataError, InputError, one_line
from besnn.model import BACKBONES, Objective, OODClassifier
from besnn.model.backbones import channels_for
from besnn.recipe.config import BackboneConfig, Recipe
from besnn.storage.signature import model_key
from besnn.storage.tensor_file import MODEL_FILE, read_tensor_file


def resolve_backbone(config: BackboneConfig, input_shape: tuple[int, ...], inputs: int = 0) -> BackboneConfig:
    """Replace `auto` by the backbone that suits the inputs, and an open width by one for this number of training inputs."""
    name = config.name
    if name == "auto":
        name = "mlp" if len(input_shape) == 1 else "convnet"
    update: dict[str, object] = {"name": name}
    if "channels" in BACKBONES[name].settings and getattr(config, "channels", 0) is None:
        update["channels"] = channels_for(inputs)
    return config.model_copy(update=update)


def build_backbone(config: BackboneConfig, input_shape: tuple[int, ...]) -> nn.Module:
    """Build a plain feature extractor for inputs of one shape, `(columns,)` or `(channels, h, w)`.

    >>> from besnn.recipe import load_recipe
    >>> network = build_backbone(load_recipe("two-moons").backbone, input_shape=(2,))
    >>> list(network(torch.rand(5, 2)).shape)
    [5, 32]
    """
    config = resolve_backbone(config, input_shape)
    return BACKBONES[config.name].build(input_shape, config.feature_dim, config.model_dump())


def pretrained_backbone(config: BackboneConfig, input_shape: tuple[int, ...]) -> nn.Module:
    """Build the backbone with the trunk of the model file `backbone.weights`; the layers after it start from scratch."""
    try:
        prefix = "model/feature_extractor."
        tensors = _read_weights(Path(config.weights or ""))
        weights = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        backbone = with_trunk(config, input_shape, weights)
    except BesnnError:
        raise
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = f"holds no trunk of {config.name!r} ({one_line(error)[:200]})"
        fix = "train one with besnn train --method softmax and the same backbone"
        raise DataError(f"backbone.weights={config.weights!r} {reason}: {fix}") from None
    trunk = trunk_of(backbone, config)
    if not all(bool(torch.isfinite(value).all()) for value in trunk.state_dict().values()):
        raise DataError(f"backbone.weights={config.weights!r} holds NaN or infinite numbers: train that network again")
    if config.frozen:
        freeze_weights(trunk)
    return backbone


def _read_weights(path: Path) -> Mapping[str, Tensor]:
    """Read the tensors of a model file, with the checks of `Detector.load`, or, without a key, of any safetensors file."""
    if (key := model_key()) is not None:
        return read_tensor_file(path, MODEL_FILE, key)[0]
    with safe_open(path, framework="pt") as file:
        of_besnn = "besnn" in (file.metadata() or {})
    return read_tensor_file(path, MODEL_FILE)[0] if of_besnn else load_file(path)


def with_trunk(config: BackboneConfig, input_shape: tuple[int, ...], weights: Mapping[str, Tensor]) -> nn.Module:
    """Build a new backbone whose trunk has the weights of another one's."""
    backbone = build_backbone(config, input_shape)
    prefix = "trunk."
    trunk = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    trunk_of(backbone, config).load_state_dict(trunk)
    return backbone


def trunk_of(backbone: nn.Module, config: BackboneConfig) -> nn.Module:
    """Return the part of a backbone that can be pretrained; refuse a backbone without one."""
    trunk = dict(backbone.named_children()).get("trunk")
    if trunk is None:
        raise InputError(f"backbone {config.name!r} has no trunk to start from: leave out backbone.weights and pretraining")
    return trunk


def freeze_weights(network: nn.Module) -> None:
    """Freeze the weights of a network's linear and convolution layers, in place.

    Converted to a batch ensemble, such a network still learns the parameters of single members: fast weights, norms, biases.
    """
    for layer in network.modules():
        if isinstance(layer, nn.Linear | _ConvNd):
            layer.weight.requires_grad_(False)


def build_method(
    recipe: Recipe, input_shape: tuple[int, ...], num_classes: int, feature_extractor: nn.Module | None = None
) -> tuple[OODClassifier, Objective]:
    """Build the untrained model that a recipe describes, and its objective; a given network replaces the backbone.

    >>> from besnn.recipe import load_recipe
    >>> model, objective = build_method(load_recipe("two-moons"), input_shape=(2,), num_classes=2)
    >>> list(objective(model, torch.rand(64, 2), torch.arange(64) % 2))
    ['classification', 'entropy', 'gradient']
    """

    def backbone() -> nn.Module:
        return build_backbone(recipe.backbone, input_shape) if feature_extractor is None else copy.deepcopy(feature_extractor)

    return recipe.method.build(backbone, num_classes, recipe.backbone.feature_dim)
