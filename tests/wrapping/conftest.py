"""A small trained network of digits, and the digits."""

import pytest
import torch
from torch import nn

from besnn.data import Dataset, load


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return load("digits:train")


@pytest.fixture(scope="session")
def unseen() -> Dataset:
    return load("digits:test")


@pytest.fixture(scope="session")
def network(digits: Dataset) -> nn.Module:
    """Takes pixels from 0 to 1."""
    body = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(body, nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
        optimiser = torch.optim.Adam(network.parameters())
        x, y = torch.from_numpy(digits.inputs) / 255, torch.from_numpy(digits.labels)
        for _ in range(5):
            for rows in torch.randperm(len(x)).split(32):
                loss = nn.functional.cross_entropy(network(x[rows]), y[rows])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
    return network.eval()
