"""OOD metrics against scikit-learn, torchmetrics and brute force, ties and infinities included."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import auc, average_precision_score, roc_auc_score
from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision

from besnn.errors import InputError
from besnn.evaluation import ood_metrics
from besnn.evaluation.metrics import precision_recall_points, required_positives, roc_points

# Few distinct values, so that ties are the rule; the infinities among them.
tied_scores = st.lists(st.sampled_from([-math.inf, -1.0, 0.0, 0.25, 0.5, 3.0, math.inf]), min_size=1, max_size=45)


def brute_force_fpr(accepted_first: list[float], others: list[float]) -> float:
    """Try every threshold from below; stop at the first that accepts 95 % in exact arithmetic."""
    for threshold in sorted(set(accepted_first)):
        accepted = sum(score <= threshold for score in accepted_first)
        if Fraction(accepted, len(accepted_first)) >= Fraction(95, 100):
            return sum(score <= threshold for score in others) / len(others)
    raise AssertionError("the largest threshold accepts all")


@settings(deadline=None, max_examples=60)
@given(tied_scores, tied_scores)
def test_figures_equal_brute_force_with_ties(inside: list[float], outside: list[float]) -> None:
    figures = ood_metrics(inside, outside)
    wins = sum((out > known) + 0.5 * (out == known) for out in outside for known in inside)
    assert figures["auroc"] == pytest.approx(wins / (len(inside) * len(outside)), abs=1e-12)
    assert figures["fpr95"] == brute_force_fpr(inside, outside)
    assert figures["fpr95_ood"] == brute_force_fpr([-score for score in outside], [-score for score in inside])
    assert (figures["n_in"], figures["n_out"]) == (len(inside), len(outside))


@settings(deadline=None, max_examples=60)
@given(tied_scores, tied_scores)
def test_swapping_the_sets_mirrors_every_figure(inside: list[float], outside: list[float]) -> None:
    figures = ood_metrics(inside, outside)
    mirrored = ood_metrics([-score for score in outside], [-score for score in inside])
    assert mirrored["auroc"] == pytest.approx(figures["auroc"], abs=1e-12)
    assert mirrored["aupr_in"] == pytest.approx(figures["aupr_out"], abs=1e-12)
    assert mirrored["fpr95_ood"] == figures["fpr95"]


@pytest.mark.parametrize("decimals", [1, 6], ids=["ties", "hardly any ties"])
def test_against_sklearn_and_torchmetrics(decimals: int) -> None:
    generator = np.random.default_rng(3)
    inside, outside = generator.normal(0, 1, 300).round(decimals), generator.normal(1, 1, 500).round(decimals)
    figures = ood_metrics(inside, outside)
    scores, is_out = np.concatenate([inside, outside]), np.repeat([0, 1], [300, 500])
    assert figures["auroc"] == pytest.approx(roc_auc_score(is_out, scores))
    assert figures["aupr_out"] == pytest.approx(average_precision_score(is_out, scores))
    assert figures["aupr_in"] == pytest.approx(average_precision_score(1 - is_out, -scores))
    # torchmetrics squashes scores outside [0, 1] by a sigmoid, which may merge them: give it a monotone map into it
    squashed, targets = torch.from_numpy((scores + 10) / 20), torch.from_numpy(is_out)
    assert figures["auroc"] == pytest.approx(BinaryAUROC()(squashed, targets).item(), abs=1e-6)
    assert figures["aupr_out"] == pytest.approx(BinaryAveragePrecision()(squashed, targets).item(), abs=1e-6)
    assert figures["aupr_in"] == pytest.approx(BinaryAveragePrecision()(1 - squashed, 1 - targets).item(), abs=1e-6)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 10**7))
def test_required_positives_is_the_least_count_of_95_percent(n: int) -> None:
    count = required_positives(n)
    assert Fraction(count, n) >= Fraction(95, 100) > Fraction(count - 1, n)


def test_separated_and_equal_sets() -> None:
    assert ood_metrics([1, 2, 3], [4, 5]) == {
        "auroc": 1.0, "aupr_in": 1.0, "aupr_out": 1.0, "fpr95": 0.0, "fpr95_ood": 0.0, "n_in": 3, "n_out": 2,
    }  # fmt: skip
    constant = ood_metrics([7.0] * 30, [7.0] * 10)
    assert constant["auroc"] == 0.5
    assert constant["fpr95"] == constant["fpr95_ood"] == 1.0  # tied inputs are accepted together
    assert (constant["aupr_in"], constant["aupr_out"]) == (0.75, 0.25)  # the shares of the sets


def test_plain_numbers_for_any_kind_of_array() -> None:
    inside, outside = [0.0, 0.5, 1.0], [0.75, 2.0]
    expected = ood_metrics(inside, outside)
    for convert in (
        np.float32,
        lambda values: torch.tensor(values, dtype=torch.bfloat16),
        lambda values: torch.tensor(values, requires_grad=True),
    ):
        assert ood_metrics(convert(inside), convert(outside)) == expected
    assert {type(value) for value in expected.values()} == {float, int}
    assert json.loads(json.dumps(expected)) == expected


@pytest.mark.parametrize(
    ("inside", "outside", "words"),
    [
        ([], [1.0], "in_scores is empty"),
        ([1.0], [], "out_scores is empty"),
        ([1.0, math.nan], [1.0], "in_scores has 1 NaN, the first at index 1"),
        ([[1.0]], [1.0], r"in_scores has shape \[1, 1\]"),
        (["high"], [1.0], "in_scores has dtype"),
        ([[1.0], [1.0, 2.0]], [1.0], "in_scores is ragged"),
    ],
)
def test_wrong_scores_are_named(inside: list[float], outside: list[float], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        ood_metrics(inside, outside)
    assert "\n" not in str(caught.value)


@settings(deadline=None, max_examples=60)
@given(tied_scores, tied_scores)
def test_curves_carry_the_figures(inside: list[float], outside: list[float]) -> None:
    figures = ood_metrics(inside, outside)
    false_alarms, caught = roc_points(inside, outside)
    assert auc(false_alarms, caught) == pytest.approx(figures["auroc"])
    recall, precision = precision_recall_points(inside, outside)
    assert np.all(np.diff(recall) >= 0)
    assert recall[0] == 0
    assert precision[-1] == pytest.approx(len(outside) / (len(inside) + len(outside)))
