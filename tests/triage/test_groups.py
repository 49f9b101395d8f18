"""Groups of flagged inputs: pure, complete, kept in a folder, and named by a person."""

import dataclasses

import numpy as np
import pytest
import yaml

from besnn.detector import Detector
from besnn.errors import DataError, InputError
from besnn.triage import Group, Triage, find_groups


@pytest.fixture(scope="module")
def found(detector, inbox):
    return find_groups(detector, inbox.inputs, detector.predict(inbox.inputs))


def test_each_new_kind_is_a_group_of_its_own(found, truth, detector):
    assert len(found.groups) == 2
    for group in found.groups.values():
        names, counts = np.unique(truth[group.rows], return_counts=True)
        assert counts.max() / counts.sum() >= 0.9
        assert names[counts.argmax()] in ("up", "down")
        assert len(group.rows) > 40
        assert group.nearest_class in detector.class_names


def test_every_flagged_input_is_in_one_place(found, detector, inbox):
    everything = np.concatenate([found.single, *(group.rows for group in found.groups.values())])
    flagged = np.flatnonzero(detector.predict(inbox.inputs).is_ood)
    assert np.array_equal(np.sort(everything), flagged)


def test_inputs_that_resemble_a_group_come_with_it_though_they_were_not_flagged(detector, inbox, truth):
    predictions = detector.predict(inbox.inputs)
    every_other = dataclasses.replace(predictions, is_ood=predictions.is_ood & (np.arange(len(inbox)) % 2 == 0))
    found = find_groups(detector, inbox.inputs, every_other)
    assert len(found.groups) == 2
    for group in found.groups.values():
        names, counts = np.unique(truth[group.rows], return_counts=True)
        assert (truth[group.similar] == names[counts.argmax()]).mean() >= 0.9
        assert len(group.similar) > 20
        assert not set(group.similar) & set(group.rows)
    without = Detector(detector.model, detector.preprocessing, detector.class_names, scoring=detector.scoring)
    without.decision = detector.decision
    assert all(len(group.similar) == 0 for group in find_groups(without, inbox.inputs, every_other).groups.values())


def test_few_flagged_inputs_make_no_group(detector, inbox):
    predictions = detector.predict(inbox.inputs[:61])
    none = find_groups(detector, inbox.inputs[:61], predictions)
    assert not none.groups
    assert len(none.single) == predictions.is_ood.sum()
    nothing = find_groups(detector, inbox.inputs[:0], predictions[:0])
    assert (len(nothing.groups), len(nothing.single)) == (0, 0)


def test_names_given_in_the_file_come_back(found, inbox, tmp_path):
    names = [f"row {row}" for row in range(len(inbox))]
    found.save(tmp_path, names)
    path = tmp_path / "groups.yaml"
    content = yaml.safe_load(path.read_text())
    content["groups"]["group-1"]["name"] = "up"
    content["groups"]["group-2"]["name"] = "junk"
    path.write_text(yaml.safe_dump(content))
    again = Triage.load(tmp_path)
    assert again.classes == ["up"]
    assert np.array_equal(again.rows_named("up"), np.sort(found.groups["group-1"].rows))
    assert np.array_equal(again.groups["group-2"].rows, found.groups["group-2"].rows)
    assert np.array_equal(again.single, found.single)
    renamed = {key: dataclasses.replace(group, name="up") for key, group in found.groups.items()}
    assert len(dataclasses.replace(found, groups=renamed).rows_named("up")) == sum(
        len(group.rows) + len(group.similar) for group in found.groups.values()
    )


def test_a_person_says_how_many_of_the_similar_inputs_join(inbox, tmp_path):
    group = Group(np.array([7, 5]), "left", similar=np.array([9, 3, 4]))
    Triage({"group-1": group}, np.array([9])).save(tmp_path, [str(row) for row in range(len(inbox))])
    path = tmp_path / "groups.yaml"
    content = yaml.safe_load(path.read_text())
    assert content["groups"]["group-1"]["similar"] == 3
    content["groups"]["group-1"] |= {"similar": 2, "name": "up"}
    path.write_text(yaml.safe_dump(content))
    again = Triage.load(tmp_path)
    assert again.rows_named("up").tolist() == [3, 5, 7, 9]
    assert again.single.tolist() == [9]
    content["groups"]["group-1"] |= {"name": "false alarm"}
    path.write_text(yaml.safe_dump(content))
    assert Triage.load(tmp_path).rows_named("false alarm").tolist() == [5, 7]


def test_a_damaged_folder_is_explained(found, inbox, tmp_path):
    with pytest.raises(InputError, match="run besnn triage without --apply first"):
        Triage.load(tmp_path)
    found.save(tmp_path, [str(row) for row in range(len(inbox))])
    (tmp_path / "flagged.csv").write_text("row,input\n1,a\n")
    with pytest.raises(DataError, match="group the inputs again"):
        Triage.load(tmp_path)
    (tmp_path / "groups.yaml").write_text("groups: {group-1: {nearest_class: a, name: [1]}}")
    with pytest.raises(InputError, match=r"the name of group-1 is \[1\]: give a text"):
        Triage.load(tmp_path)
    (tmp_path / "groups.yaml").write_text("groups: {group-1: {nearest_class: a, name: b, similar: many}}")
    with pytest.raises(InputError, match=r"similar of group-1 is 'many': give a number of inputs"):
        Triage.load(tmp_path)
    (tmp_path / "groups.yaml").write_text("groups: 7")
    with pytest.raises(InputError, match="is not a file of groups"):
        Triage.load(tmp_path)
