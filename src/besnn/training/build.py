"""From a recipe's settings to networks."""

from torch import nn

from besnn.errors import InputError
from besnn.model import Objective, OODClassifier, cifar_resnet18, convnet, fashion_convnet, mlp
from besnn.training.config import BackboneConfig, Recipe


def resolve_backbone(config: BackboneConfig, input_shape: tuple[int, ...]) -> BackboneConfig:
    """Names the backbone that `auto` stands for: an mlp for tables, a convnet for images."""
    if config.name != "auto":
        return config
    return config.model_copy(update={"name": "mlp" if len(input_shape) == 1 else "convnet"})


def build_backbone(config: BackboneConfig, input_shape: tuple[int, ...]) -> nn.Module:
    """A plain feature extractor for inputs of one shape, `(columns,)` or `(channels, h, w)`."""
    config = resolve_backbone(config, input_shape)
    wants_image = config.name != "mlp"
    if wants_image != (len(input_shape) == 3):
        kind = "images [channels, h, w]" if wants_image else "table rows [columns]"
        raise InputError(
            f"backbone {config.name!r} takes {kind}, but an input here has shape {list(input_shape)}: use backbone.name=auto"
        )
    if wants_image and config.name in _FIXED_SIZES and tuple(input_shape[1:]) != (_FIXED_SIZES[config.name],) * 2:
        size = _FIXED_SIZES[config.name]
        raise InputError(
            f"backbone {config.name!r} takes {size}×{size} images, not {list(input_shape)}: use backbone.name=convnet"
        )
    match config.name:
        case "mlp":
            return mlp(input_shape[0], config.hidden, config.feature_dim)
        case "convnet":
            return convnet(input_shape, config.hidden, config.feature_dim)
        case "fashion-convnet":
            return fashion_convnet(input_shape[0], config.feature_dim, config.head_dim, config.widths, config.last_kernel)
        case "cifar-resnet18":
            return cifar_resnet18(input_shape[0], config.feature_dim)
    raise AssertionError(config.name)


_FIXED_SIZES = {"fashion-convnet": 28, "cifar-resnet18": 32}


def build_method(recipe: Recipe, input_shape: tuple[int, ...], num_classes: int) -> tuple[OODClassifier, Objective]:
    """The untrained model that a recipe describes, and its objective."""
    return recipe.method.build(lambda: build_backbone(recipe.backbone, input_shape), num_classes, recipe.backbone.feature_dim)
