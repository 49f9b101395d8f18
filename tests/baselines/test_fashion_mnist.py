"""Every baseline learns real images: 3,000 of FashionMNIST on the paper's network, narrowed, within seconds on a CPU."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from besnn.data import Status, load, verify
from besnn.model import fashion_convnet

FEATURES = 64


@pytest.fixture(scope="module")
def images(real_data_dir: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """The first 3,000 training and 1,000 test images, standardised, with their labels."""
    if missing := [each.path for each in verify("fashion-mnist", real_data_dir) if each.status is Status.MISSING]:
        pytest.skip(f"needs {missing[0]}")
    parts = {}
    for split, count in (("train", 3000), ("test", 1000)):
        dataset = load(f"fashion-mnist:{split}", data_dir=real_data_dir)
        pixels = torch.from_numpy(dataset.inputs[:count]).float() / 255
        assert dataset.labels is not None
        parts[split] = (pixels - 0.286) / 0.353, torch.from_numpy(dataset.labels[:count])
    return parts


@pytest.mark.real_data
@pytest.mark.slow
def test_learns_fashion_mnist(baseline: Any, images: dict[str, tuple[Tensor, Tensor]]) -> None:
    torch.manual_seed(0)
    model = baseline.build(lambda: fashion_convnet(feature_dim=FEATURES, widths=(8, 16, 16)), 10, FEATURES)
    baseline.fit(model, *images["train"], epochs=2, batch=32)
    x, labels = images["test"]
    with torch.no_grad():
        predicted = model.log_probabilities(model(x)).argmax(dim=1)
    assert (predicted == labels).float().mean() > 0.7
