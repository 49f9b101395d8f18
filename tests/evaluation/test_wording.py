"""The sentences say what the numbers say."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from besnn.evaluation import Evaluation
from besnn.evaluation.wording import NO_BREAK, summary


def verdict(make: Callable[..., Evaluation], flagged: int) -> str:
    known = make().known
    is_ood = np.arange(len(known)) < flagged
    return summary(make(known=replace(known, is_ood=is_ood)))[2].replace(NO_BREAK, " ")


@pytest.mark.parametrize(
    ("share", "words"), [(0.1, "in line with what was asked"), (0.0, "clearly fewer than asked"), (0.3, "more than asked")]
)
def test_false_alarms_are_judged_by_their_interval(share: float, words: str, make_evaluation) -> None:
    n = len(make_evaluation().known)
    sentence = verdict(make_evaluation, round(share * n))
    assert "at most 10 % of known inputs" in sentence
    assert f"({round(share * n)} of {n};" in sentence
    assert words in sentence


def test_every_unknown_set_has_its_sentence(make_evaluation) -> None:
    evaluation = make_evaluation()
    scrambled = evaluation.unknown["scrambled"]
    sentences = summary(evaluation)
    assert len(sentences) == 3 + len(evaluation.unknown)
    passed = int(np.sum(~scrambled.is_ood))
    assert sentences[-1].endswith(f"{passed} passed as known.")
    all_caught = replace(scrambled, is_ood=np.ones(len(scrambled), dtype=bool))
    assert summary(make_evaluation(unknown={"noise": all_caught}))[-1].endswith("none passed as known.")
