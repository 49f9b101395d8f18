"""Wrong use and damaged files: an exit code and one line on standard error that names what is wrong."""

from pathlib import Path

import numpy as np
import pytest

USE, FAILED = 2, 1

CASES = [
    # devices
    ("train two-moons -o {out} --device abacus", USE, "device 'abacus' is unknown: use auto, cpu, cuda, cuda:N or mps"),
    ("train two-moons -o {out} --device cuda:99", USE, "is not available on this machine: use"),
    ("score {model} two-moons -o {tmp}/scores.csv --device cuda:99", USE, "is not available on this machine"),
    ("score {model} two-moons -o {tmp}/scores --engine ray --device cuda", USE, "on Ray, use --gpus-per-worker"),
    # the program
    ("nonsense", USE, "No such command 'nonsense'"),
    ("data nonsense", USE, "nonsense"),
    # train
    ("train", USE, "RECIPE|DATA"),
    ("train two-moons", USE, "--output"),
    ("train nonsense -o {out}", USE, "'nonsense' is neither a built-in set"),
    ("train {tmp}/none.yaml -o {out}", USE, "cannot be read (FileNotFoundError)"),
    ("train {tmp}/list.yaml -o {out}", USE, "holds no settings"),
    ("train {tmp}/broken.yaml -o {out}", USE, "is not YAML"),
    ("train table -o {out}", USE, "'YOUR-TABLE' is neither a built-in set"),
    ("train two-moons -o {tmp}", USE, "is a folder"),
    ("train two-moons -o {out} --set training.epoch=3", USE, "'training.epoch' is unknown: allowed here are epochs"),
    ("train two-moons -o {out} --set training.epochs=x", USE, "'training.epochs' is 'x'"),
    ("train two-moons -o {out} --set nonsense", USE, "write it as field=value"),
    ("train two-moons -o {out} --alpha 1", USE, "'calibration.alpha' is 1.0"),
    ("train two-moons -o {out} --method nonsense", USE, "'method.name' is 'nonsense': use one of be-snn"),
    ("train two-moons -o {out} --method duq --members 3", USE, "'method.members' is unknown"),
    ("train two-moons -o {out} --strategy nonsense", USE, "nonsense"),
    ("train two-moons -o {out} --set score.name=nonsense", USE, "score.name='nonsense' is unknown"),
    ("train two-moons -o {out} --alpha 0.001", USE, "too few for alpha=0.001"),
    ("train two-moons:nonsense -o {out}", USE, "has no split 'nonsense'"),
    ("train {tmp}/unlabelled.csv -o {out}", USE, "has no column 'label': name its class column with --label (it has a, b)"),
    ("train {tmp}/unlabelled.npz -o {out}", USE, "has no labels"),
    ("train {tmp}/equal.csv -o {out}", USE, "all inputs of a class are equal"),
    ("train {tmp}/target.csv -o {out}", USE, "has 40 classes, such as"),
    ("train {tmp}/identifiers.csv -o {out}", USE, "numbers or identifiers; name a class column with --label"),
    ("train {tmp}/words.csv -o {out}", FAILED, "is not a finite number ('much')"),
    ("train {tmp}/empty -o {out}", FAILED, "holds no images"),
    ("train {tmp}/bad.npz -o {out}", FAILED, "check that it is complete and readable"),
    ("train {tmp}/words.csv --label kind -o {out}", USE, "has no column 'kind': name its class column with --label"),
    ("train two-moons -o {tmp}/stopped.safetensors", USE, "continue it with --resume, or drop it with --restart"),
    ("train two-moons -o {out} --resume --restart", USE, "give only one of them"),
    ("train two-moons -o {tmp}/points.csv/model.safetensors", USE, "cannot be written to {tmp}/points.csv: it is not a folder"),
    ("train two-moons -o {out} --epochs 0", USE, "give a number above 0"),
    ("train two-moons -o {out} --epochs x", USE, "give a whole number"),
    ("train two-moons -o {out} --devices 0", USE, "give a number greater than or equal to 1"),
    ("train {tmp}/unlabelled.csv -o {tmp}/unlabelled.csv", USE, "is a file that this command reads: give another name"),
    ("train two-moons --set backbone.weights={model} -o {model}", USE, "is a file that this command reads"),
    # models that are none
    ("inspect", USE, "MODEL"),
    ("inspect {tmp}/none.safetensors", USE, "does not exist: train a model"),
    ("inspect {tmp}", USE, "is a folder"),
    ("inspect {tmp}/words.csv", FAILED, "is truncated, damaged or not a safetensors file"),
    ("inspect {tmp}/cut.safetensors", FAILED, "is truncated, damaged or not a safetensors file"),
    ("inspect {tmp}/altered.safetensors", FAILED, "digest"),
    # calibrate
    ("calibrate {model} two-moons --alpha 2 -o {out}", USE, "alpha=2.0 is not a false-alarm rate"),
    ("calibrate {model} two-moons --delta 0 -o {out}", USE, "delta=0.0 is not a probability"),
    ("calibrate {model} two-moons --alpha much", USE, "--alpha"),
    ("calibrate {model} {tmp}/few.csv -o {out}", USE, "3 calibration scores are too few"),
    ("calibrate {model} digits", USE, "holds images, where a table of 2 columns is expected"),
    ("calibrate {model} {tmp}/other-classes.csv", USE, "the model does not know class 'sideways'"),
    # evaluate
    ("evaluate {model} --in two-moons", USE, "--out"),
    ("evaluate {model} --in two-moons --out two-moons nonsense", USE, "'nonsense' is neither a built-in set"),
    ("evaluate {model} --in two-moons --out digits", USE, "holds images"),
    ("evaluate {model} --in {tmp}/points.csv --out two-moons", USE, "has no labels"),
    ("evaluate {model} --in two-moons --out two-moons --report {tmp}/report.pdf", USE, "its name must end in .html"),
    ("evaluate {uncalibrated} --in two-moons --out two-moons", USE, "is not calibrated: run `besnn calibrate"),
    ("evaluate {model} --in two-moons --out two-moons --json {model}", USE, "--json {model} is a file that this command reads"),
    ("evaluate {model} --in two-moons --out {tmp}/points.csv --json {tmp}/points.csv", USE, "is a file that this command"),
    # export
    ("export {model} -o {model}", USE, "--output {model} is a file that this command reads"),
    ("export {uncalibrated} -o {out}", USE, "is not calibrated"),
    # serve
    ("serve {uncalibrated} --port 0", USE, "is not calibrated"),
    # score
    ("score {model}", USE, "INPUT"),
    ("score {model} two-moons", USE, "--output"),
    ("score {model} two-moons -o {tmp}/scores.txt", USE, "end its name in .parquet, .csv, .jsonl"),
    ("score {model} {tmp}/none.csv -o {tmp}/scores.csv", USE, "none.csv"),
    ("score {uncalibrated} two-moons -o {tmp}/scores.csv", USE, "is not calibrated"),
    ("score {model} two-moons -o {tmp}/scores.csv --engine nonsense", USE, "'local', 'ray'"),
    ("score {model} two-moons -o {tmp}/scores.csv --workers 2", USE, "--workers is for Ray: add --engine ray"),
    ("score {model} {tmp}/words.csv -o {tmp}/scores.csv", FAILED, "lacks column 'x1'"),
    ("score {model} digits -o {tmp}/scores.csv", USE, "holds images"),
    ("score {model} {tmp}/points.csv -o {tmp}/points.csv", USE, "is a file that this command reads"),
    ("score {model} two-moons -o /proc/scores.csv", FAILED, "cannot write /proc/scores.csv: "),
    ("demo -o {tmp}/points.csv", FAILED, "{tmp}/points.csv: File exists"),
    # data and recipes
    ("data fetch", USE, "NAME"),
    ("data fetch nonsense", USE, "no built-in set is called 'nonsense'"),
    ("data verify mnist --data-dir {tmp}", FAILED, "is missing, and 3 more"),
    ("data verify mnist:nonsense", USE, "mnist has no split 'nonsense'"),
    ("recipes nonsense", USE, "cannot be read"),
]


@pytest.fixture(scope="module")
def places(tmp_path_factory, write_csv, moons_model, uncalibrated_model) -> dict[str, Path]:
    tmp = tmp_path_factory.mktemp("wrong")
    whole = moons_model.read_bytes()
    (tmp / "cut.safetensors").write_bytes(whole[: len(whole) // 2])
    (tmp / "altered.safetensors").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    (tmp / "list.yaml").write_text("- 1\n- 2\n")
    (tmp / "broken.yaml").write_text("name: [\n")
    (tmp / "bad.npz").write_bytes(b"no archive")
    (tmp / "empty" / "class").mkdir(parents=True)
    (tmp / "stopped.safetensors.run").mkdir()
    (tmp / "stopped.safetensors.run" / "checkpoint.safetensors").touch()
    points = np.random.default_rng(0).normal(size=(40, 2)).round(3).tolist()
    write_csv(tmp / "unlabelled.csv", ["a", "b"], points)
    write_csv(tmp / "points.csv", ["x1", "x2"], points)
    write_csv(tmp / "few.csv", ["x1", "x2"], points[:3])
    write_csv(tmp / "equal.csv", ["a", "label"], [[1, "only"]] * 40)
    write_csv(tmp / "target.csv", ["a", "b", "label"], [[*point, point[0] / 3] for point in points])
    write_csv(tmp / "identifiers.csv", ["a", "b", "label"], [[*point, f"id{row}"] for row, point in enumerate(points)])
    np.savez(tmp / "unlabelled.npz", X=points)
    write_csv(tmp / "words.csv", ["a", "label"], [[1, "one"], ["much", "two"]])
    write_csv(tmp / "other-classes.csv", ["x1", "x2", "label"], [[*point, "sideways"] for point in points])
    return {"tmp": tmp, "out": tmp / "out.safetensors", "model": moons_model, "uncalibrated": uncalibrated_model}


def contents(places):
    """Return the contents of all files that commands read."""
    return [path.read_bytes() for path in (places["model"], *sorted(places["tmp"].glob("*.csv")))]


@pytest.mark.parametrize(("line", "code", "words"), CASES, ids=[case[0] for case in CASES])
def test_wrong_use_is_one_line_and_a_code(besnn, places, line, code, words):
    if "--engine ray" in line:
        pytest.importorskip("ray", reason="needs the ray extra")
    before = contents(places)
    outcome = besnn(*line.format(**places).split())
    assert words.format(**places) in outcome.err
    assert outcome.code == code
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("besnn: ")
    assert "Traceback" not in outcome.err
    assert not places["out"].exists()
    assert not list(places["tmp"].glob("scores*"))
    assert contents(places) == before
