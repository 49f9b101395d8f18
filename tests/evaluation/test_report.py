"""The report: complete, self-contained, accessible, and safe against names that are markup."""

import base64
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from besnn.errors import DataError
from besnn.evaluation import Evaluation
from besnn.evaluation.report import extreme_examples, render_report, write_report

Make = Callable[..., Evaluation]
VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """Tags with their attributes, the visible text, and a check that every tag is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def rendered(evaluation_settings: dict[str, Any]) -> str:
    return render_report(Evaluation(**evaluation_settings))


@pytest.fixture(scope="module")
def page(rendered: str) -> Page:
    return Page(rendered)


def test_every_section_is_there(page: Page) -> None:
    headings = {attributes.get("id") for attributes in page.all("h2")}
    assert headings == {"summary", "figures", "decisions", "scores", "classes", "examples", "provenance"}
    assert len(page.all("img")) == 5 + 3  # five figures; known images and two sets of unknown ones
    for words in ["most unusual known inputs", "most ordinary unknown inputs (scrambled)", "versions.besnn", "1.0.0"]:
        assert words in page.text


def test_the_numbers_are_those_of_the_evaluation(page: Page, make_evaluation: Make) -> None:
    figures = make_evaluation().metrics()
    for sets in figures["scores"].values():
        for row in sets.values():
            assert f"{row['auroc']:.3f}" in page.text
            assert f"{row['fpr95_ood']:.3f}" in page.text
    rate = figures["false_alarm_rate"]
    assert f"({rate['flagged']} of {rate['n']})" in page.text


def test_nothing_is_fetched_or_run(rendered: str, page: Page) -> None:
    assert not re.search(r"https?://|//[a-z]|@import|url\(|javascript:", rendered)
    assert {name for name, _ in page.tags}.isdisjoint({"script", "link", "iframe", "object", "embed", "base", "form"})
    for _, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
    for image in page.all("img"):
        address = image["src"] or ""
        assert address.startswith("data:image/svg+xml;base64,")
        assert b"<script" not in base64.b64decode(address.partition(",")[2])
    policy = next(meta["content"] for meta in page.all("meta") if "http-equiv" in meta)
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def test_accessible_and_printable(rendered: str, page: Page) -> None:
    assert page.all("html")[0]["lang"] == "en"
    assert all(image["alt"] for image in page.all("img"))
    assert all(header.get("scope") for header in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table"))
    assert "@media print" in rendered
    assert "break-inside: avoid" in rendered


def test_names_that_are_markup_stay_text(make_evaluation: Make, evaluation_settings: dict[str, Any]) -> None:
    attack = "\"><script>alert('x')</script><img src=x onerror=alert(1)>{{ 7 * 7 }}"
    known = evaluation_settings["known"]
    hostile = make_evaluation(
        title=attack,
        method=attack,
        class_names=[f"{attack}{index}" for index in range(8)],
        known_name=attack,
        known=replace(known, names=[attack] * len(known)),
        unknown={attack: evaluation_settings["unknown"]["scrambled"]},
        provenance={attack: {attack: [attack]}},
    )
    page = Page(render_report(hostile))
    assert page.all("script") == []
    assert all((image["src"] or "").startswith("data:") for image in page.all("img"))
    assert not any("onerror" in attributes for _, attributes in page.tags)
    assert page.text.count(attack) > 5
    assert "49" not in page.text.replace(attack, "").partition("Provenance")[2]


def test_table_rows_are_listed(make_evaluation: Make, evaluation_settings: dict[str, Any]) -> None:
    def as_table(answers):
        return replace(answers, inputs=np.arange(len(answers) * 9.0).reshape(-1, 9))

    known = as_table(evaluation_settings["known"])
    evaluation = make_evaluation(
        known=known,
        unknown={name: as_table(answers) for name, answers in evaluation_settings["unknown"].items()},
        feature_names=[f"width {index}" for index in range(9)],
    )
    page = Page(render_report(evaluation))
    assert len(page.all("img")) == 5
    strangest = int(known.scores["entropy"].argmax())
    assert f"#{strangest}" in page.text
    assert f"{9.0 * strangest:.4g}" in page.text
    assert "width 5" in page.text
    assert "width 6" not in page.text
    assert "… 3 more" in page.text


@pytest.fixture
def bare(make_evaluation: Make, evaluation_settings: dict[str, Any]) -> Evaluation:
    """Without inputs and provenance, which also makes it quick."""
    unknown = {"scrambled": replace(evaluation_settings["unknown"]["scrambled"], inputs=None)}
    return make_evaluation(known=replace(evaluation_settings["known"], inputs=None), unknown=unknown, provenance={})


def test_without_inputs_and_provenance_and_written_whole_or_not_at_all(bare: Evaluation, tmp_path: Path) -> None:
    path = write_report(bare, tmp_path / "report.html")
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    page = Page(text)
    assert "worth a look" not in page.text
    assert "None was recorded." in page.text
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(DataError, match=r"cannot write .*report\.html/inside\.html"):
        write_report(bare, path / "inside.html")
    assert list(tmp_path.iterdir()) == [path]


def test_extremes_of_the_default_score(make_evaluation: Callable[..., Evaluation]) -> None:
    evaluation = make_evaluation()
    strange, nines, scrambled = extreme_examples(evaluation, count=5)
    known_order = np.argsort(-evaluation.known.scores["entropy"])[:5]
    np.testing.assert_array_equal(strange.inputs, evaluation.known.inputs[known_order])
    assert [fact["true class"] for fact in strange.facts] == [f"digit {evaluation.labels[row]}" for row in known_order]
    for shown, answers in [(nines, evaluation.unknown["eight and nine"]), (scrambled, evaluation.unknown["scrambled"])]:
        order = np.argsort(answers.scores["entropy"])[:5]
        np.testing.assert_array_equal(shown.inputs, answers.inputs[order])
        assert [fact["predicted class"] for fact in shown.facts] == [f"digit {answers.predictions[row]}" for row in order]
        assert [fact["decision"] == "flagged" for fact in shown.facts] == answers.is_ood[order].tolist()
        assert "true class" not in shown.facts[0]
