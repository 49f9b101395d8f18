"""The tables that the records of all experiments make."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from besnn.detection.score_set import COMBINED
from besnn.evaluation.result import method_name
from besnn.training.record import read_record
from experiments.benchmarks import BENCHMARKS
from experiments.comparison import DETECTION_HEADER, PAPER_SCORE, Row, plus_minus, reported_scores
from experiments.conversion import CONVERSION
from experiments.cost import COST
from experiments.cost_table import cost_table
from experiments.hunt import HUNT, hunt_table, others_table
from experiments.layer_table import layer_table
from experiments.readme_table import readme_table
from experiments.records import Record, load_records, spread
from experiments.rendering import Table, build_tables
from experiments.trained import detector_table

_PLAIN_SCORE = "softmax-entropy"
_WHOLE_TABLES = ("table1", "table2", "table3")


def result_tables(results: Path) -> list[Table]:
    """Every table that the records under a folder make: the paper's with ours beside, the further experiments', Figure 1's."""
    records = [record for record in load_records(results) if record.setting.experiment not in ("figure1", COST, HUNT)]
    shown = [*map(_reported, records), *(_tempering(each) for each in records if each.setting.experiment == "table3")]
    hunts = [table(results, in_name) for in_name in BENCHMARKS for table in (hunt_table, others_table)]
    hunts += [layer_table(results, *each) for each in (("fashion-mnist", "fashion-convnet"), ("cifar10", "cifar-resnet18"))]
    tables = [
        *build_tables(shown),
        cost_table(results),
        figure1_table(results),
        detector_table(results),
        *hunts,
        readme_table(results),
    ]
    notes = _data_notes(results)
    return [
        replace(table, note=f"{table.note} {_about(table, notes)}".strip()) if table.header == DETECTION_HEADER else table
        for table in tables
        if table.rows
    ]


def figure1_table(results: Path) -> Table:
    """What the eye sees in Figure 1, in numbers."""
    runs = [read_record(path) for path in sorted((results / "figure1").glob("*.json"))]
    runs.sort(key=lambda fields: (fields["method"], fields["members"], fields["seed"]))
    edges = [(ring["inner"], ring["outer"]) for ring in runs[0]["rings"]] if runs else []
    header = ("Method", "Seeds", *(f"{inner:g} to {outer:g}" for inner, outer in edges), "Share above 0.5")
    rows = []
    for (method, members), same in groupby(runs, key=lambda fields: (fields["method"], fields["members"])):
        seeds = list(same)
        by_ring = zip(*([ring["mean_confidence"] for ring in fields["rings"]] for fields in seeds), strict=True)
        figures = [*by_ring, [fields["share_confident"] for fields in seeds]]
        name = f"{method_name(method)}, N = {members}" if members > 1 or method == "be-snn" else method_name(method)
        rows.append(Row((name, str(len(seeds)), *(plus_minus(spread(values)) for values in figures))))
    note = (
        "Two Moons: mean confidence at so great a distance from the nearest training point, and the share of the plane with a "
        "confidence above 0.5; mean ± sample standard deviation over seeds."
    )
    return Table("Figure 1: confidence over the plane", header, 1, rows, note)


def _reported(record: Record) -> Record:
    """A record of a further experiment with the scores that it is about; Tables 1 to 3 choose their own."""
    if record.setting.experiment in _WHOLE_TABLES:
        return record
    others = [COMBINED] if record.setting.experiment == CONVERSION else []
    return _with_scores(record, [*reported_scores([record]), *others])


def _tempering(record: Record) -> Record:
    """A run of Table 3 as one of the ablation that tempered and plain softmax are."""
    setting = replace(record.setting, experiment="tempered or plain softmax")
    return replace(_with_scores(record, [PAPER_SCORE, _PLAIN_SCORE]), setting=setting)


def _with_scores(record: Record, names: Sequence[str]) -> Record:
    return replace(record, scores={name: sets for name, sets in record.scores.items() if name in names})


def _data_notes(results: Path) -> list[str]:
    """What readers of results must know about the data, such as that only a part of a set was there: `set:split: note` each."""
    origins = (read_record(path).get("provenance", {}) for path in sorted(results.glob("*/*.json")))
    return list(dict.fromkeys(note for origin in origins for note in origin.get("data_note", "").split("; ") if note))


def _about(table: Table, notes: list[str]) -> str:
    """The notes on sets that a table shows, as a sentence; nothing where there are none."""
    shown = {cell.partition(" ")[0] for row in table.rows for cell in row.cells}
    own = [note for note in notes if note.partition(":")[0] in shown]
    return f"Data: {'; '.join(own)}." if own else ""
