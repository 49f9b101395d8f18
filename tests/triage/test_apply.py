"""From names to data: what joins the training data, what recalibrates, and in which form."""

import numpy as np
import pytest
from PIL import Image

from besnn.data import ImageSpec, load
from besnn.errors import InputError
from besnn.triage import Group, Triage, apply_names
from besnn.triage.apply import parts_of

UP, ALARM, JUNK = np.arange(10, 20), np.arange(20, 25), np.arange(25, 30)
NAMED = Triage(
    {
        "group-1": Group(UP, "left", "up"),
        "group-2": Group(ALARM, "left", "false alarm"),
        "group-3": Group(JUNK, "left", "junk"),
    },
    single=np.arange(30, 33),
)


def test_every_input_has_one_use():
    parts = parts_of(NAMED, 40)
    assert parts.training["up"].tolist() == [11, 12, 13, 14, 16, 17, 18, 19]
    assert parts.calibration.tolist() == [*range(10), 10, 15, *range(20, 25), *range(33, 40)]


def test_what_resembles_a_class_joins_it():
    more = Group(UP, "left", "up", similar=np.array([30, 39, 38, 37, 36]))
    parts = parts_of(Triage({"group-1": more}, np.arange(30, 33)), 40)
    assert parts.training["up"].tolist() == [11, 12, 13, 14, 16, 17, 18, 19, 36, 37, 38, 39]
    assert parts.calibration.tolist() == [*range(10), 10, 15, *range(20, 30), 30, *range(33, 36)]


def test_nothing_named_is_refused():
    with pytest.raises(InputError, match="no group has a name"):
        parts_of(Triage({"group-1": Group(UP, "left")}, np.arange(3)), 40)


def test_arrays(training, inbox, tmp_path):
    paths = apply_names(NAMED, tmp_path, inbox, training)
    new = load(str(paths["training"]))
    assert new.class_names == ("left", "right", "up")
    assert len(new) == len(training) + 8
    np.testing.assert_array_equal(new.inputs[new.labels == 2], inbox.inputs[parts_of(NAMED, len(inbox)).training["up"]])
    assert load(str(paths["calibration"])).labels is None


def test_tables_keep_their_columns(tmp_path):
    old, new = tmp_path / "old.csv", tmp_path / "new.csv"
    old.write_text("x1,remark,kind\n1,a,left\n2,b,right\n")
    new.write_text("remark,x1,more\n" + "".join(f"r{row},{row}.5,z\n" for row in range(40)))
    sets = load(str(new), columns=["x1"]), load(str(old), label="kind", columns=["x1"])
    paths = apply_names(NAMED, tmp_path, *sets, label="kind")
    joined = load(str(paths["training"]), label="kind", columns=["x1"])
    assert joined.class_names == ("left", "right", "up")
    assert sorted(joined.inputs[joined.labels == 2, 0]) == [row + 0.5 for row in parts_of(NAMED, 40).training["up"]]
    recalibration = load(str(paths["calibration"]), columns=["x1"])
    assert recalibration.inputs[:, 0].tolist() == [row + 0.5 for row in parts_of(NAMED, 40).calibration]


def test_folders_become_folders(tmp_path):
    def write(path, value):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4), value, np.uint8)).save(path)

    for row in range(40):
        write(tmp_path / "inbox" / f"{row:02}.png", row)
    for name in ("left", "right"):
        write(tmp_path / "photos" / name / "00.png", 200)
    spec = ImageSpec((4, 4), 1)
    sets = [load(str(tmp_path / name), image=spec) for name in ("inbox", "photos")]
    for _ in range(2):  # again, over what is there
        paths = apply_names(NAMED, tmp_path / "out", *sets)
    new = load(str(paths["training"]), image=spec)
    assert new.class_names == ("left", "right", "up")
    assert new.inputs[new.labels == 2, 0, 0, 0].tolist() == parts_of(NAMED, 40).training["up"].tolist()
    assert load(str(paths["calibration"]), image=spec).inputs[:, 0, 0, 0].tolist() == parts_of(NAMED, 40).calibration.tolist()
    unusable = Triage({"group-1": Group(UP, "left", "up/down")}, NAMED.single)
    with pytest.raises(InputError, match="cannot be the name of a folder"):
        apply_names(unusable, tmp_path / "out", *sets)
    assert len(load(str(paths["training"]), image=spec)) == len(new)  # what was there stays, and nothing else
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["calibration", "training"]
