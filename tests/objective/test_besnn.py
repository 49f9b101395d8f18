import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from besnn.errors import InputError
from besnn.layers import BatchEnsembleLinear
from besnn.model import BESNN
from besnn.objective import BESNNObjective, knn_entropy

MEMBERS, CLASSES, BATCH = 3, 2, 12


def build(length_scale=1.0):
    torch.manual_seed(0)
    extractor = nn.Sequential(BatchEnsembleLinear(2, 8, members=MEMBERS), nn.Tanh(), BatchEnsembleLinear(8, 4, members=MEMBERS))
    sizes = {"noise_dim": 5, "hidden_dim": 6, "samples": 16}
    return BESNN(extractor, CLASSES, feature_dim=4, members=MEMBERS, length_scale=length_scale, **sizes).double()


@pytest.fixture
def model():
    return build()


@pytest.fixture
def batch():
    x = torch.randn(BATCH, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x, torch.arange(BATCH) % CLASSES


def member_terms_by_hand(model, x, labels, member, seed, length_scale):
    """The paper's three terms of one member, from the definitions: every sample, every class, one loop each.

    The length scale divides what the kernel sees, not what entropies are estimated of.
    """
    x = x.clone().requires_grad_()
    features = model.features(x)[member]
    torch.manual_seed(seed)
    class_features = model.class_features()[member]
    differences = (features[:, None, None] - class_features[None]) / length_scale
    kernel = torch.exp(-differences.square().sum(-1).mean(-1))
    classification = F.binary_cross_entropy(kernel, F.one_hot(labels, CLASSES).double(), reduction="none").sum(1).mean()
    entropy = sum(
        max(0.0, (knn_entropy(features[labels == c]) - knn_entropy(class_features[c])).item()) for c in range(CLASSES)
    )
    (gradient,) = torch.autograd.grad(kernel.sum(), x)
    return [classification.item(), entropy / features.shape[1], 0.5 * (gradient.square().sum(1) - 1).square().mean().item()]


@pytest.mark.parametrize("length_scale", [1.0, 0.5, 3.0])
def test_terms_equal_the_definitions_member_by_member(length_scale, batch):
    model = build(length_scale)
    expected = [member_terms_by_hand(model, *batch, member, seed=3, length_scale=length_scale) for member in range(MEMBERS)]
    torch.manual_seed(3)
    terms = BESNNObjective().per_member(model, *batch)
    assert list(terms) == ["classification", "entropy", "gradient"]
    torch.testing.assert_close(torch.stack(list(terms.values()), 1), torch.tensor(expected, dtype=torch.float64))


def own_terms_by_hand(model, x, labels, norm, seed):
    """The terms of members that see every third input: explicit weights, and BatchNorm over all rows or the member's own."""
    x = x.clone().requires_grad_()
    first, _, _, second = model.feature_extractor
    hidden = [x[n::MEMBERS] @ first.member_weights()[n].T + first.bias[n] for n in range(MEMBERS)]
    everyone = torch.cat(hidden)
    torch.manual_seed(seed)
    class_features = model.class_features()
    terms, kernels = [], []
    for n in range(MEMBERS):
        seen = everyone if norm == "shared" else hidden[n]
        normal = (hidden[n] - seen.mean(0)) / (seen.var(0, correction=0) + 1e-5).sqrt()
        features = normal.tanh() @ second.member_weights()[n].T + second.bias[n]
        differences = features[:, None, None] - class_features[n]
        kernels.append(torch.exp(-differences.square().sum(-1).mean(-1)))
        own = labels[n::MEMBERS]
        loss = F.binary_cross_entropy(kernels[n], F.one_hot(own, CLASSES).double(), reduction="none").sum(1).mean()
        entropies = [
            knn_entropy(features[own == c]) - knn_entropy(class_features[n, c])
            for c in range(CLASSES)
            if int((own == c).sum()) > 3
        ]
        terms.append([loss.item(), sum(max(0.0, difference.item()) for difference in entropies) / features.shape[1]])
    (gradient,) = torch.autograd.grad(torch.cat(kernels).sum(), x)
    penalties = (gradient.square().sum(1) - 1).square()
    return [[*pair, 0.5 * penalties[n::MEMBERS].mean().item()] for n, pair in enumerate(terms)]


@pytest.fixture
def long_batch():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(10 * MEMBERS, 2, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, CLASSES, (len(x),), generator=generator)


@pytest.mark.parametrize("norm", ["shared", "member"])
def test_terms_of_own_inputs_equal_the_definitions_member_by_member(norm, long_batch):
    torch.manual_seed(0)
    extractor = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4))
    sizes = {"noise_dim": 5, "hidden_dim": 6, "samples": 16}
    model = BESNN(extractor, CLASSES, feature_dim=4, members=MEMBERS, norm=norm, **sizes).double()
    expected = torch.tensor(own_terms_by_hand(model, *long_batch, norm, seed=3), dtype=torch.float64)
    assert (expected > 0).all()  # no hinge is closed
    torch.manual_seed(3)
    terms = BESNNObjective(own_inputs=True).per_member(model, *long_batch)
    torch.testing.assert_close(torch.stack(list(terms.values()), 1), expected)
    assert not long_batch[0].requires_grad


def test_weights_and_factors_multiply(model, batch):
    def terms(objective, factors=None):
        torch.manual_seed(3)
        return objective(model, *batch, factors)

    plain = terms(BESNNObjective(entropy_weight=1.0, gradient_weight=1.0))
    weighted = terms(BESNNObjective(entropy_weight=3.0, gradient_weight=0.25), {"classification": 2.0, "gradient": 8.0})
    torch.testing.assert_close(weighted, {name: w * plain[name] for name, w in zip(plain, (2.0, 3.0, 2.0), strict=True)})


def test_without_weights_no_penalty_is_computed(model, batch):
    # Under no_grad the gradient penalty cannot be computed at all, so this fails unless it is skipped.
    with torch.no_grad():
        assert list(BESNNObjective(entropy_weight=0, gradient_weight=0)(model, *batch)) == ["classification"]


def test_settings_reach_their_terms(model, batch):
    def terms(**settings):
        torch.manual_seed(3)
        return BESNNObjective(**settings)(model, *batch)

    default = terms()
    torch.testing.assert_close(terms(over_classes="mean")["classification"], default["classification"] / CLASSES)
    assert terms(squared_norm=False)["gradient"] != default["gradient"]
    for change in ({"estimator": "kpn"}, {"k": 2}, {"match_counts": True}, {"entropy_per_dimension": False}, {"samples": 32}):
        assert terms(**change)["entropy"] != default["entropy"], change


def test_wrong_settings_are_refused_by_name():
    for settings, message in [
        ({"entropy_weight": -1.0}, "entropy_weight=-1.0"),
        ({"gradient_weight": math.nan}, "gradient_weight=nan"),
        ({"over_classes": "max"}, "over_classes 'max'"),
        ({"k": 0}, "k=0"),
        ({"estimator": "knn"}, "estimator 'knn'"),
        ({"samples": 3}, "samples=3 are too few for k=3: draw at least 4"),
    ]:
        with pytest.raises(InputError, match=message):
            BESNNObjective(**settings)


def test_wrong_input_is_refused_by_name(model, batch):
    x, labels = batch
    with pytest.raises(InputError, match="factor 'gradients' is unknown: choose from 'classification', 'entropy'"):
        BESNNObjective()(model, x, labels, {"gradients": 1.0})
    with pytest.raises(InputError, match="label 2 is out of range"):
        BESNNObjective()(model, x, labels + 1)
    with pytest.raises(InputError, match="NaN or infinite"):
        BESNNObjective()(model, x / 0, labels)
    with pytest.raises(InputError, match="cannot split 11 inputs among 3 members"):
        BESNNObjective(own_inputs=True)(model, x[:11], labels[:11])
    with pytest.raises(InputError, match=r"labels have shape \[4\]: pass one class index for each of the 12 inputs"):
        BESNNObjective(own_inputs=True)(model, x, labels[:4])
    with pytest.raises(InputError, match="outside torch"), torch.no_grad():
        BESNNObjective()(model, x, labels)
