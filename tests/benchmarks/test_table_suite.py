"""The suite of tables: its sets and tasks are what they say, and its figures add up."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler

from benchmarks.tables.detectors import BESNN, DETECTORS
from benchmarks.tables.sets import DEVELOPMENT, REPORTED, load_table
from benchmarks.tables.suite import by_table, false_alarms, ranks, run_suite, suite_record, suite_tables
from benchmarks.tables.tasks import INCH, NEW_WORD, SEEDS, tasks_of

MADE = [name for name in (*DEVELOPMENT, *REPORTED) if name.startswith("made-") or name in ("wine", "iris", "breast-cancer")]


def test_no_table_is_in_both_halves():
    assert len({*DEVELOPMENT, *REPORTED}) == len(DEVELOPMENT) + len(REPORTED) >= 12


@pytest.mark.parametrize("name", MADE)
def test_tables_are_the_same_at_every_call(name):
    table, again = load_table(name), load_table(name)
    np.testing.assert_array_equal(table.numbers, again.numbers)
    np.testing.assert_array_equal(table.words, again.words)
    assert len(table.numbers) == len(table.words) == len(table)
    assert (np.bincount(table.labels) >= 20).all()
    assert table.arrow().num_columns == table.numbers.shape[1] + table.words.shape[1]


def test_every_class_is_left_out_once():
    table = load_table("made-covertype")
    left_out = []
    for seed in range(SEEDS):
        *without, whole = tasks_of(table, seed)
        assert whole.name == "disturbed"
        for task in without:
            label = int(task.name.split()[1])
            left_out.append(label)
            assert set(task.unknown["class"].labels) == {label}
            assert len(task.training) + len(task.known) + len(task.unknown["class"]) == len(table)
            assert set(task.training.labels) == set(range(6))
    assert sorted(left_out) == list(range(7))


def test_disturbances_change_what_they_say():
    *_, task = tasks_of(load_table("made-covertype"), 0)
    known, unknown = task.known, task.unknown
    changed = {kind: (table.numbers != known.numbers).sum(axis=1) for kind, table in unknown.items()}
    assert (changed["unit error"] == 1).all()
    ratio = unknown["unit error"].numbers / known.numbers
    np.testing.assert_allclose(np.unique(ratio.round(6)), [1, INCH])
    assert (changed["swapped"] == 2).all()
    np.testing.assert_allclose(np.sort(unknown["swapped"].numbers), np.sort(known.numbers))
    assert set(changed["drift"]) == {2}
    assert len(np.unique((unknown["drift"].numbers - known.numbers).round(6), axis=0)) == 1
    assert ((unknown["new category"].words == NEW_WORD).sum(axis=1) == 1).all()
    assert not changed["new category"].any()
    for column, own in zip(unknown["mixed"].numbers.T, known.numbers.T, strict=True):
        assert np.isin(column, own).all()


def test_a_run_equals_scikit_learn_and_is_updated():
    kept = []
    earlier = {"rows": [{"table": "wine", "seed": 4, "detector": "LOF", "task": "disturbed", "kind": "drift", "auroc": 0.5}]}
    record = run_suite("development", ["nearest neighbours"], [0], 1, None, earlier, lambda text: None, kept.append, ["wine"])
    assert [row["detector"] for row in record["rows"]].count("LOF") == 1
    assert kept[-1]["rows"] == record["rows"]
    *_, task = tasks_of(load_table("wine"), 0)
    scale = StandardScaler().fit(task.training.numbers)
    search = NearestNeighbors(n_neighbors=5).fit(scale.transform(task.training.numbers))
    known, drifted = (search.kneighbors(scale.transform(t.numbers))[0][:, -1] for t in (task.known, task.unknown["drift"]))
    expected = roc_auc_score(np.repeat([0, 1], [len(known), len(drifted)]), np.append(known, drifted))
    found = [row for row in record["rows"] if row["kind"] == "drift" and row["detector"] == "nearest neighbours"]
    assert found[0]["auroc"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.parametrize("name", [name for name in DETECTORS if name not in (BESNN, "TabM", "ECOD", "COPOD", "LUNAR")])
def test_detectors_take_words_and_gaps(name):
    *_, task = tasks_of(load_table("made-shop").rows(np.arange(300)), 0)
    answers = DETECTORS[name](task.training, 0)(task.known)
    assert answers.scores.shape == (len(task.known),)
    assert np.isfinite(answers.scores).all()


def row(table, detector, kind, auroc, **more):
    return {"table": table, "seed": 0, "detector": detector, "task": "disturbed", "kind": kind, "auroc": auroc, **more}


def test_means_ranks_and_pages():
    alarms = {"alarms": 2, "known": 40, "calibrated": 60, "accuracy": 0.9}
    rows = [row(t, BESNN, kind, 0.9, **alarms) for t in REPORTED for kind in ("drift", "mixed")]
    rows += [row(t, "LOF", "drift", 0.95 if t == "iris" else 0.5) for t in REPORTED]
    rows += [row(t, "LOF", "mixed", 0.93 if t == "iris" else 0.5) for t in REPORTED]
    means = by_table(rows)
    assert means["LOF"]["iris"] == pytest.approx(0.94)
    assert ranks(means, REPORTED) == pytest.approx({BESNN: 8 / 7, "LOF": 13 / 7})
    rates, inside = false_alarms(rows)
    assert set(rates.values()) == {0.05}
    assert inside == (len(REPORTED), len(REPORTED))
    unknown, kinds, classes = suite_tables(suite_record("reported", rows))
    assert unknown.rows[0][0] == BESNN
    assert "**0.940**" in unknown.rows[1]
    assert len(kinds.rows) == 2
    assert classes.rows[0][0] == "accuracy, besnn"
