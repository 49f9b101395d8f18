"""Scores of the features that go into a linear classifier: as their papers state them, in float64, and pytorch-ood's."""

import numpy as np
import pytest
import torch
from scipy.special import expit, logsumexp, softmax
from sklearn.covariance import oas

from besnn.detection.densities import (
    HEAD_DENSITIES,
    ClassGaussianDensity,
    Density,
    DensitySettings,
    Head,
    NearestNeighbourDensity,
    RelativeMahalanobis,
    density_from_state,
)
from besnn.errors import InputError, NotReadyError

D, CLASSES = 24, 5


def draw(n: int, seed: int, spread: float = 1.0) -> torch.Tensor:
    """Features as a ReLU leaves them, `[1, n, D]`, around one centre per class."""
    generator, fixed = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(7)
    centres, mixing = torch.randn(CLASSES, D, generator=fixed), torch.randn(D, D, generator=fixed) / D**0.5
    rows = torch.randn(n, D, generator=generator) * spread @ mixing + centres[torch.arange(n) % CLASSES]
    return rows.relu()[None]


TRAINING, BATCH, LABELS = draw(2000, 0), draw(50, 1, spread=2.0), torch.arange(2000) % CLASSES
HEAD = Head(torch.randn(CLASSES, D, generator=torch.Generator().manual_seed(3)), torch.linspace(-1, 1, CLASSES))


def fitted(name: str) -> Density:
    return HEAD_DENSITIES[name].from_settings(DensitySettings(head=HEAD)).fit(TRAINING, LABELS)


def oracle(name: str) -> np.ndarray:
    """Every score once more, as its paper states it, in NumPy."""
    train, batch, weight, bias = (x.double().numpy() for x in (TRAINING[0], BATCH[0], HEAD.weight, HEAD.bias))
    logits = batch @ weight.T + bias
    match name:
        case "vim":
            origin = -np.linalg.pinv(weight) @ bias
            _, _, directions = np.linalg.svd(train - origin)
            null = directions[D // 2 :].T
            alpha = (train @ weight.T + bias).max(1).mean() / np.linalg.norm((train - origin) @ null, axis=1).mean()
            return alpha * np.linalg.norm((batch - origin) @ null, axis=1) - logsumexp(logits, axis=1)
        case "react":
            return -logsumexp(np.minimum(batch, np.quantile(train, 0.9)) @ weight.T + bias, axis=1)
        case "fdbd":
            scores = []
            for x, row in zip(batch, logits, strict=True):
                best = row.argmax()
                others = [c for c in range(CLASSES) if c != best]
                away = [(row[best] - row[c]) / np.linalg.norm(weight[best] - weight[c]) for c in others]
                scores.append(-np.mean(away) / np.linalg.norm(x - train.mean(0)))
            return np.array(scores)
        case "nac":
            left = np.geomspace(1e-6, 0.5, 26)
            edges = np.concatenate([[-np.inf], left[1:], 1 - left[1:-1][::-1], [np.inf]])

            def states(z):
                gradient = (softmax(z @ weight.T + bias, axis=1) - 1 / CLASSES) @ weight
                return expit(100 * z * gradient)

            covered = np.zeros(len(batch))
            for before, now in zip(states(train).T, states(batch).T, strict=True):
                counts = np.bincount(np.searchsorted(edges, before) - 1, minlength=50)
                covered += np.minimum(counts[np.searchsorted(edges, now) - 1] / 50, 1)
            return -covered / D
    raise AssertionError(name)


@pytest.mark.parametrize("name", HEAD_DENSITIES)
class TestEveryScore:
    def test_equals_its_formula(self, name: str) -> None:
        found = fitted(name).score(BATCH).double().numpy()
        if name == "nac":  # a state on the edge of a bin may fall into the next one
            assert np.abs(found - oracle(name)).max() < 2 / D
            assert np.abs(found - oracle(name)).mean() < 1e-3
        else:
            np.testing.assert_allclose(found, oracle(name), rtol=1e-4, atol=1e-4)

    def test_is_saved_and_exported(self, name: str, exported) -> None:
        density = fitted(name)
        scores = density.score(BATCH)
        assert torch.equal(density_from_state(name, density.state()).score(BATCH), scores)
        torch.testing.assert_close(exported(density, BATCH), scores, rtol=1e-4, atol=1e-4)

    def test_scores_each_input_by_itself(self, name: str) -> None:
        density = fitted(name)
        one_by_one = torch.cat([density.score(BATCH[:, [row]]) for row in range(20)])
        torch.testing.assert_close(density.score(BATCH[:, :20]), one_by_one, rtol=1e-4, atol=1e-4)
        assert density.score(BATCH[:, :0]).shape == (0,)

    def test_needs_a_head_and_a_fit(self, name: str) -> None:
        with pytest.raises(InputError, match="needs the features that go into a linear classifier"):
            HEAD_DENSITIES[name].from_settings(DensitySettings())
        for step in (lambda density: density.score(BATCH), Density.state):
            with pytest.raises(NotReadyError, match="fit"):
                getattr(type(density := HEAD_DENSITIES[name](HEAD)), step.__name__, step)(density)
        with pytest.raises(InputError, match=r"fitted on \[1, n, 24\]"):
            fitted(name).score(BATCH[..., :5])


def test_the_relative_distance_is_the_papers() -> None:
    found = RelativeMahalanobis().fit(TRAINING, LABELS).score(BATCH).double().numpy()
    train, batch, labels = TRAINING[0].double().numpy(), BATCH[0].double().numpy(), LABELS.numpy()
    means = np.stack([train[labels == c].mean(0) for c in range(CLASSES)])

    def squared(x, mean, spread):
        return np.einsum("nd,de,ne->n", x - mean, np.linalg.inv(oas(spread, assume_centered=True)[0]), x - mean)

    within = train - means[labels]
    nearest = np.min([squared(batch, mean, within) for mean in means], axis=0)
    expected = nearest - squared(batch, train.mean(0), train - train.mean(0))
    np.testing.assert_allclose(found - found[0], (expected - expected[0]) / 2, rtol=1e-3, atol=1e-3)


def test_they_agree_with_pytorch_ood() -> None:
    detectors = pytest.importorskip("pytorch_ood.detector", reason="needs pytorch-ood")
    layer = torch.nn.Linear(D, CLASSES)
    layer.weight.data, layer.bias.data = HEAD.weight, HEAD.bias
    train, batch = TRAINING[0], BATCH[0]
    vim = detectors.ViM(None, D // 2, HEAD.weight, HEAD.bias).to("cpu").fit_features(train, LABELS)
    torch.testing.assert_close(fitted("vim").score(BATCH), vim.predict_features(batch), rtol=1e-3, atol=1e-3)
    fdbd = detectors.fDBD(None, layer).fit_features(train)
    torch.testing.assert_close(fitted("fdbd").score(BATCH), fdbd.predict_features(batch), rtol=1e-4, atol=1e-4)
    knn = detectors.KNN(None, k=50).to("cpu").fit_features(train, LABELS).predict_features(batch)
    found = NearestNeighbourDensity(50).fit(TRAINING).score(BATCH).double()
    torch.testing.assert_close((2 * found).sqrt(), knn, rtol=1e-2, atol=1e-3)  # 1 − cos is half the squared distance
    mahalanobis = detectors.Mahalanobis(None).to("cpu").fit_features(train, LABELS).predict_features(batch)
    assert np.corrcoef(mahalanobis, ClassGaussianDensity().fit(TRAINING, LABELS).score(BATCH))[0, 1] > 0.99  # it is not shrunk
    identity = torch.nn.Identity()
    loader = [(rows, torch.zeros(len(rows), dtype=torch.int64)) for rows in train.split(500)]
    react = detectors.ReAct(identity, layer).to("cpu").fit(loader)
    torch.testing.assert_close(fitted("react").score(BATCH), react.predict(batch).detach(), rtol=1e-3, atol=1e-3)
    rmd = detectors.RMD(None).to("cpu").fit_features(train, LABELS).predict_features(batch)
    # it does not shrink its covariances
    assert np.corrcoef(rmd, RelativeMahalanobis().fit(TRAINING, LABELS).score(BATCH))[0, 1] > 0.99

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.layer = torch.nn.Identity(), layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.body(x.requires_grad_()))

    network, train, batch = Network(), train + 0.01, batch + 0.01  # a silent neuron is on the edge between two bins
    nac = detectors.NACUE(network, [network.body]).fit([(rows.clone(), None) for rows in train.split(500)])
    found = HEAD_DENSITIES["nac"](HEAD).fit(train[None]).score(batch[None])
    assert (found - nac.predict(batch.clone())).abs().mean() < 0.01  # float32 near 1
