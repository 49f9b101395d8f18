"""What the tests of the model share."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from besnn.layers import normal
from besnn.model import BESNN, mlp

torch.set_num_threads(1)  # the tensors are tiny


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def build() -> Callable[..., BESNN]:
    """A small BE-SNN on three numbers, in double precision."""

    def model(**others: Any) -> BESNN:
        arguments = {"num_classes": 4, "feature_dim": 6, "members": 3, "noise_dim": 5, "hidden_dim": 7, "samples": 8, **others}
        extractor = arguments.pop("feature_extractor", None) or mlp((3,), (5,), arguments["feature_dim"])
        return BESNN(extractor, init=normal(0.5), **arguments).double()

    return model
