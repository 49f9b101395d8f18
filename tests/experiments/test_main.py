"""`python -m experiments`: every part on a small subset, as a user calls it."""

from pathlib import Path

import pytest

from besnn.detector import Detector
from experiments.__main__ import InName
from experiments.__main__ import run as experiments
from experiments.records import load_records
from experiments.runs import TASKS

Small = dict[str, tuple[str, ...]]


def options(settings: tuple[str, ...], results: Path, data_dir: Path | None = None) -> list[str]:
    given = [part for setting in settings for part in ("--set", setting)]
    where = [] if data_dir is None else ["--data-dir", str(data_dir)]
    return [*given, *where, "--results", str(results), "--device", "cpu"]


@pytest.mark.parametrize(("part", "runs"), [("table3", 5), ("ablations", 6)])
def test_parts_about_be_snn(
    part: str, runs: int, small: Small, small_generator: tuple[str, ...], made_up_data: Path, tmp_path: Path
) -> None:
    settings = options((*small["fashion-mnist"], *small_generator), tmp_path, made_up_data)
    assert experiments([part, "--seeds", "1", *settings]) == 0
    assert len(load_records(tmp_path)) == runs


def test_the_detector_is_made_from_kept_weights(
    small: Small, made_up_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    *settings, _, _ = options(small["fashion-mnist"], tmp_path, made_up_data)
    model = tmp_path / "model.safetensors"
    make = ["detector", "-o", str(model), *settings]
    assert experiments(make) == 2
    assert "there is no record" in capsys.readouterr().err
    assert experiments(["table1", "--seeds", "1", "--only", "be-snn", "--keep-weights", *settings]) == 0
    assert experiments(make) == 0
    assert "AUROC of combined on not-mnist: " in capsys.readouterr().out
    detector = Detector.load(model)
    assert (detector.scoring.name, detector.threshold.alpha) == ("combined", 0.05)
    document = tmp_path / "page.md"
    document.write_text("<!-- table: The trained detector of fashion-mnist -->\n<!-- end of table -->\n")
    assert experiments(["tables", "--into", str(document), "--results", str(tmp_path)]) == 0
    assert "| AUROC of tempered-entropy on mnist | " in document.read_text()


@pytest.mark.parametrize(
    ("part", "in_name", "runs"),
    [("table1 --all", "fashion-mnist", 6), ("near-ood", "cifar10", 4), ("baselines", "fashion-mnist", 3)],
)
def test_parts_about_methods(part: str, in_name: str, runs: int, small: Small, made_up_data: Path, tmp_path: Path) -> None:
    settings = options(small[in_name], tmp_path, made_up_data)
    assert experiments([*part.split(), "--in", in_name, "--seeds", "1", *settings]) == 0
    records = load_records(tmp_path)
    assert len(records) == runs
    unknown = {"fashion-mnist": 2, "cifar10": 3}[in_name]
    assert all(len(sets) == unknown for record in records for sets in record.scores.values())


def test_figure_1_table_2_and_the_tables(
    small: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    results = tmp_path / "results"
    tiny = options(("training.epochs=1", "data.limit=100"), results)
    assert experiments(["figure1", "--seeds", "1", *tiny, "--output", "figure1.svg"]) == 0
    assert experiments(["table2", "--rounds", "2", *options(small["fashion-mnist"], results)]) == 0
    Path("docs").mkdir()
    for document in ("README.md", "docs/reproduction.md"):
        Path(document).write_text("<!-- table: all -->\n<!-- end of table -->\n")
    assert experiments(["tables"]) == 0
    said = capsys.readouterr().out
    assert all(f"wrote {name}" in said for name in ("figure1.svg", "README.md", "docs/reproduction.md"))
    text = Path("README.md").read_text()
    assert "| Softmax network | ours, cpu" in text
    assert "| Deep ensemble, N = 4 | 1 |" in text
    assert text == Path("docs/reproduction.md").read_text()


def test_only_chooses_and_quiet_is_quiet(
    small: Small, made_up_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = options(small["fashion-mnist"], tmp_path, made_up_data)
    assert experiments(["table1", "--seeds", "2", "--only", "softmax-seed1", "--quiet", *settings]) == 0
    assert [(record.method, record.seed) for record in load_records(tmp_path)] == [("softmax", 1)]
    assert experiments(["table1", "--only", "sofmtax", *settings]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("besnn: no run matches --only sofmtax")


def test_a_failure_ends_in_exit_code_1(
    small: Small, made_up_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = options((*small["fashion-mnist"], "method.label_smoothing=0.1"), tmp_path, made_up_data)
    assert experiments(["table1", "--only", "softmax", *settings]) == 2  # a baseline has no such setting
    assert "label_smoothing" in capsys.readouterr().err
    settings = options((*small["fashion-mnist"], "training.augment.crop=99"), tmp_path, made_up_data)
    assert experiments(["table1", "--seeds", "1", "--only", "softmax", *settings]) == 1
    printed = capsys.readouterr()
    assert "failed training.augment.crop=99" in printed.out
    assert printed.err.startswith("besnn: 1 of 1 runs failed")


def test_every_task_can_be_named() -> None:
    assert {name.value for name in InName} == set(TASKS)


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert experiments([]) == 0
    printed = capsys.readouterr().out
    assert all(part in printed for part in ("table1", "table2", "table3", "figure1", "ablations", "near-ood", "tables"))


@pytest.mark.real_data
@pytest.mark.parametrize(("in_name", "note"), [("fashion-mnist", ""), ("cifar10", "svhn:test: test_32x32.mat is partial")])
def test_table_1_on_a_part_of_the_real_data(in_name: str, note: str, small: Small, real_data_dir: Path, tmp_path: Path) -> None:
    settings = options((*small[in_name], "data.limit=300"), tmp_path, real_data_dir)
    assert experiments(["table1", "--in", in_name, "--seeds", "1", "--only", "softmax", *settings]) == 0
    (record,) = load_records(tmp_path)
    assert {figures["n_in"] for sets in record.scores.values() for figures in sets.values()} == {300}
    assert note in next(tmp_path.glob("table1/*.json")).read_text()
