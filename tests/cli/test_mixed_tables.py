"""A table with words, dates and gaps, from training to scores."""

import csv
import gzip
import json

import numpy as np
import pytest


@pytest.fixture(scope="module")
def orders(tmp_path_factory):
    """Two hundred orders: classes differ in price and colour; some prices are missing."""
    rng = np.random.default_rng(0)
    lines = ["price;colour;sent;urgent;kind"]
    for row in range(200):
        kind = row % 2
        price = "" if rng.random() < 0.1 else f"{rng.normal(10 + 10 * kind):.2f}".replace(".", ",")
        colour = ["red", "blue"][kind] if rng.random() < 0.8 else "white"
        lines.append(f"{price};{colour};2024-03-{1 + row % 28:02d};{rng.random() < 0.5};{'ab'[kind]}")
    path = tmp_path_factory.mktemp("orders") / "orders.csv.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def test_a_mixed_table_is_trained_on_and_scored(orders, besnn, tmp_path):
    model, scores = tmp_path / "model.safetensors", tmp_path / "scores.csv"
    facts = json.loads(besnn("train", orders, "--label", "kind", "-o", model, "--set", "training.least_steps=60", "--json").out)
    assert facts["feature_names"] == [
        "price", "price is missing", "colour=blue", "colour=red", "colour=white", "sent", "urgent", "unexpected cells"
    ]  # fmt: skip
    new = tmp_path / "new.csv"
    new.write_text("urgent,note,sent,colour,price\nTrue,x,2024-03-05,red,10\nTrue,x,2024-03-05,purple,10\nTrue,x,soon,red,9\n")
    besnn("score", model, new, "-o", scores)
    ordinary, purple, wrong = csv.DictReader(scores.read_text().splitlines())
    assert (ordinary["label"], ordinary["is_ood"]) == ("a", "false")
    assert purple["is_ood"] == "true"
    assert wrong["error"] == "column 'sent' is not a date ('soon')"
    strange = tmp_path / "strange.csv"
    strange.write_text("price,colour,sent,urgent\n9,purple,2024-03-05,\n,green,2030-01-01,False\n")
    report = json.loads(besnn("evaluate", model, "--in", orders, "--out", strange, "--json", "-").out)
    assert report["scores"]["combined"][str(strange)]["auroc"] > 0.99
