"""Members for a trained network: it is converted to a BE-SNN, and a few epochs fit what the members do not share."""

import copy
from collections import OrderedDict

import torch
from torch import nn

from besnn.detector import Detector
from besnn.errors import InputError
from besnn.layers.folding.fold import INPUT
from besnn.model import Preprocessing
from besnn.recipe.build import freeze_weights
from besnn.recipe.reading import load_recipe, parse_recipe
from besnn.training.batches import Data, open_source
from besnn.training.fit import fit_detector
from besnn.wrapping.checks import check_network
from besnn.wrapping.layers import find_layers

FEATURES = 64
IMAGES = {
    "name": "members",
    "data": {"source": "images", "validation": 0.1, "calibration": 0.15},
    "method": {"noise_dim": 64, "hidden_dim": 128},
    "training": {"batch_size": 64, "gradient_every": 4, "patience": 8},
    "score": {"neighbour": 10},
}
"""How the members of an image network are fitted: the recipe `images` is for networks that have learned nothing yet."""


def convert(
    network: nn.Module, data: Data, preprocessing: Preprocessing, alpha: float, members: int, epochs: int, seed: int
) -> Detector:
    """Return the detector of a batch ensemble of the network, whose own weights stay frozen; see docs/convert.md."""
    inputs, _ = next(open_source(data, torch.device("cpu")).batches(torch.arange(min(16, len(data))), 16))
    x = preprocessing(inputs)
    network, _ = check_network(network, x, preprocessing.form == "tokens")
    found = find_layers(network, x)
    if found.head is None or found.features is None:
        raise InputError("members need a network that ends in a linear layer: drop members, or convert it with besnn.layers")
    body = copy.deepcopy(network)
    parent, _, name = found.features.removesuffix(INPUT).rpartition(".")
    setattr(body.get_submodule(parent), name, nn.Identity())
    freeze_weights(body)
    extractor = nn.Sequential(OrderedDict(trunk=body, head=nn.Linear(found.head.weight.shape[1], FEATURES)))
    settings = {
        "backbone.feature_dim": FEATURES,
        "method.members": members,
        "method.norm": "member",
        "method.fast_weights": "normal:0.1",
        "method.entropy_weight": 0,
        "method.gradient_weight": 0.1,
        "training.epochs": epochs,
        "training.seed": seed,
        "training.optimiser.learning_rate": 0.1,
        "calibration.alpha": alpha,
    }
    overrides = [f"{field}={value}" for field, value in settings.items()]
    recipe = parse_recipe(IMAGES, overrides) if x.ndim == 4 else load_recipe("table", overrides)
    return fit_detector(recipe, data, feature_extractor=extractor, preprocessing=preprocessing).detector
