import pytest
import torch

from besnn.errors import InputError
from besnn.objective import entropy_regulariser, knn_entropy

ESTIMATORS = ["kl", "kpn"]
MEMBERS, CLASSES, SAMPLES, D = 2, 4, 10, 3
LABELS = torch.tensor([0] * 12 + [1] * 4 + [3] * 3)  # more than the samples; k + 1; none; k
OWN_LABELS = torch.stack([LABELS, torch.tensor([3] * 11 + [2] * 5 + [1] * 2 + [0])])  # other classes for the second member


@pytest.fixture
def drawn():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(MEMBERS, len(LABELS), D, generator=generator, dtype=torch.float64)
    class_features = torch.randn(MEMBERS, CLASSES, SAMPLES, D, generator=generator, dtype=torch.float64)
    class_features *= 0.1
    return features, class_features


def regulariser_by_hand(features, labels, class_features, estimator, match_counts):
    totals = []
    for member in range(MEMBERS):
        total = 0.0
        for c in range(CLASSES):
            data, drawn = features[member, c == labels[member]], class_features[member, c]
            if len(data) <= 3:
                continue
            if match_counts:
                count = min(len(data), len(drawn))
                data, drawn = data[:count], drawn[:count]
            difference = knn_entropy(data, estimator=estimator) - knn_entropy(drawn, estimator=estimator)
            total += max(0.0, difference.item())
        totals.append(total)
    return torch.tensor(totals, dtype=torch.float64)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("match_counts", [False, True])
@pytest.mark.parametrize("per_dimension", [False, True])
@pytest.mark.parametrize("labels", [LABELS, OWN_LABELS], ids=["shared", "own"])
def test_equals_the_formula_class_by_class(drawn, estimator, match_counts, per_dimension, labels):
    features, class_features = drawn
    value = entropy_regulariser(features, labels, class_features, 3, estimator, match_counts, per_dimension)
    expected = regulariser_by_hand(features, labels.expand(MEMBERS, -1), class_features, estimator, match_counts)
    assert (expected > 0).all()
    torch.testing.assert_close(value, expected / D if per_dimension else expected)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("match_counts", [False, True])
def test_labels_of_members_are_those_of_each_alone(drawn, estimator, match_counts):
    features, class_features = (tensor.requires_grad_() for tensor in drawn)
    value = entropy_regulariser(features, OWN_LABELS, class_features, 3, estimator, match_counts)
    (gradient,) = torch.autograd.grad(value.sum(), class_features)
    for member in range(MEMBERS):
        one = slice(member, member + 1)
        alone = entropy_regulariser(features[one], OWN_LABELS[member], class_features[one], 3, estimator, match_counts)
        torch.testing.assert_close(value[one], alone)
        (gradient_alone,) = torch.autograd.grad(alone, class_features)
        torch.testing.assert_close(gradient[one], gradient_alone[one])


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("match_counts", [False, True])
def test_gradient_reaches_only_the_class_features_that_take_part(drawn, estimator, match_counts):
    features, class_features = (tensor.requires_grad_() for tensor in drawn)
    entropy_regulariser(features, LABELS, class_features, 3, estimator, match_counts).sum().backward()
    assert features.grad is None
    gradient = class_features.grad
    assert gradient.isfinite().all()
    assert gradient[:, :2].flatten(2).ne(0).any(-1).all()
    assert gradient[:, 2:].eq(0).all()  # classes absent from the batch, or with k inputs only
    assert gradient[:, 1, 4:].eq(0).all() == match_counts  # four inputs: four class features


def test_gradcheck(drawn):
    features, class_features = drawn
    assert torch.autograd.gradcheck(lambda e: entropy_regulariser(features, LABELS, e), class_features.requires_grad_())


@pytest.mark.parametrize("match_counts", [False, True])
def test_descent_spreads_the_class_features(drawn, match_counts):
    features, class_features = drawn
    class_features.requires_grad_()
    optimiser = torch.optim.Adam([class_features], lr=0.05)
    start = entropy_regulariser(features, LABELS, class_features, match_counts=match_counts).sum().item()
    for _ in range(60):
        optimiser.zero_grad()
        loss = entropy_regulariser(features, LABELS, class_features, match_counts=match_counts).sum()
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.1 * start


@pytest.mark.parametrize("match_counts", [False, True])
def test_a_batch_without_any_full_class_costs_nothing(drawn, match_counts):
    features, class_features = drawn
    value = entropy_regulariser(features[:, :2], LABELS[:2], class_features.requires_grad_(), match_counts=match_counts)
    assert value.eq(0).all()
    value.sum().backward()
    assert class_features.grad.eq(0).all()


@pytest.mark.parametrize(
    ("estimator", "match_counts", "first"), [("kl", False, LABELS), ("kpn", True, OWN_LABELS)], ids=["shared", "own"]
)
def test_compiles_to_one_graph_whatever_the_labels(drawn, estimator, match_counts, first):
    # A whole graph in static shapes: nothing is read back from the device and no shape follows from a value.
    features, class_features = drawn
    compiled = torch.compile(entropy_regulariser, backend="eager", fullgraph=True, dynamic=False)
    for labels in (first, first.flip(-1), torch.zeros_like(first)):
        expected = entropy_regulariser(features, labels, class_features, 3, estimator, match_counts)
        with torch.compiler.set_stance("fail_on_recompile" if labels is not first else "default"):
            value = compiled(features, labels, class_features, 3, estimator, match_counts)
        torch.testing.assert_close(value, expected)


@pytest.mark.parametrize(
    ("features", "labels", "class_features", "message"),
    [
        ((2, 5, 3), [0] * 5, (2, 4, 3, 3), "samples=3 class features are too few for k=3: draw at least 4"),
        ((5, 3), [0] * 5, (2, 4, 9, 3), r"features \[5, 3\].*expected \[members, batch, d\]"),
        ((2, 5, 3), [0] * 5, (4, 9, 3), r"class features \[4, 9, 3\]"),
        ((2, 5, 3), [0] * 5, (2, 4, 9, 7), "differ in members or dimensions"),
        ((2, 5, 3), [0] * 5, (1, 4, 9, 3), "differ in members or dimensions"),
        ((2, 5, 3), [0, 0, 0, 0, 4], (2, 4, 9, 3), "label 4 is out of range"),
        ((2, 5, 3), [0] * 4, (2, 4, 9, 3), r"labels have shape \[4\]"),
        ((2, 5, 3), [[0] * 4] * 2, (2, 4, 9, 3), r"labels have shape \[2, 4\]"),
        ((2, 5, 3), [[0] * 5] * 3, (2, 4, 9, 3), r"labels have shape \[3, 5\]"),
        ((2, 5, 3), [[0] * 5, [4] * 5], (2, 4, 9, 3), "label 4 is out of range"),
    ],
)
def test_wrong_input_is_refused_by_name(features, labels, class_features, message):
    with pytest.raises(InputError, match=message):
        entropy_regulariser(torch.zeros(features), torch.tensor(labels), torch.zeros(class_features))
