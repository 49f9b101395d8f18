"""A torch.export program is read without executing anything that is in the file."""

import io
import json
import pickle
import zipfile

import pytest
import torch
from torch import nn

from besnn.errors import DataError
from besnn.model.program import load_program, save_program


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.fc(self.conv(x).relu().mean((2, 3)))


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return Pooled().eval()


@pytest.fixture(scope="module")
def content(network) -> bytes:
    return save_program(network, torch.rand(4, 1, 8, 8))


def changed(content: bytes, suffix: str, change, added: dict[str, bytes] | None = None) -> bytes:
    """Return the archive with one of its JSON entries changed, or others added."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.infolist():
            body = old.read(entry)
            if suffix and entry.filename.endswith(suffix):
                values = json.loads(body)
                change(values)
                body = json.dumps(values).encode()
            new.writestr(entry.filename, body)
        for name, body in (added or {}).items():
            new.writestr(f"archive/{name}", body)
    return target.getvalue()


def test_the_network_and_its_layers(network, content):
    loaded, shape, safe = load_program(content)
    x = torch.rand(7, 1, 8, 8)
    assert torch.equal(loaded(x), network(x))
    assert shape == (1, 8, 8)
    assert [name for name, _ in loaded.named_modules()] == ["", "conv", "fc"]
    assert load_program(safe)[2] == safe
    assert b"data.pkl" not in safe


class Bomb:
    def __reduce__(self):
        return (print, ("executed",))


def pickled_sample() -> bytes:
    file = io.BytesIO()
    torch.save(Bomb(), file)
    return file.getvalue()


def test_pickled_sample_inputs_are_never_read(content, capsys):
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.infolist():
            new.writestr(entry.filename, pickled_sample() if "sample_inputs" in entry.filename else old.read(entry))
    load_program(target.getvalue())
    assert "executed" not in capsys.readouterr().out


def first_config(values) -> dict:
    return next(iter(values["config"].values()))


def first_node(values) -> dict:
    return values["graph_module"]["graph"]["nodes"][0]


def spoil_size(values) -> None:
    tensors = values["graph_module"]["graph"]["tensor_values"]
    tensors["x"]["sizes"][0] = {"as_expr": {"expr_str": "__import__('os').system('true')", "hint": None}}


@pytest.mark.parametrize(
    ("suffix", "change", "message"),
    [
        ("weights_config.json", lambda values: first_config(values).update(use_pickle=True), "is pickled"),
        ("weights_config.json", lambda values: first_config(values).update(path_name="../x"), "is pickled"),
        ("model.json", lambda values: first_node(values).update(target="torch.hub.load"), "it calls 'torch.hub.load'"),
        ("model.json", lambda values: first_node(values).update(target="torch.ops.mine.run"), "it calls 'torch.ops.mine.run'"),
        ("model.json", spoil_size, "it computes a size as"),
    ],
)
def test_a_program_that_would_execute_something_is_refused(content, suffix, change, message):
    with pytest.raises(DataError, match=message) as caught:
        load_program(changed(content, suffix, change), "mine.pt2")
    assert str(caught.value).startswith("mine.pt2 is not a plain torch.export program")
    assert "\n" not in str(caught.value)


def test_guards_which_are_code_are_dropped(content, network, capsys):
    spoiled = changed(content, "model.json", lambda values: values.update(guards_code=["print('executed')"]))
    loaded, *_ = load_program(spoiled)
    loaded(torch.rand(2, 1, 8, 8))
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("entry", "message"),
    [("data/aotinductor/model/x.so", "it holds data/aotinductor"), ("data/constants/custom_obj_0", "it holds data/constants")],
)
def test_other_entries_are_refused(content, entry, message):
    with pytest.raises(DataError, match=message):
        load_program(changed(content, "", None, {entry: b"x"}), "mine.pt2")


def test_other_files_are_refused():
    weights = io.BytesIO()
    torch.save({"weight": torch.zeros(2)}, weights)
    for other, message in (
        (pickle.dumps([1]), "mine.pt2 is a pickle, which besnn does not read"),
        (b"hello", "mine.pt2 is not a torch.export program"),
        (weights.getvalue(), "it is a pickle"),
    ):
        with pytest.raises(DataError, match=message):
            load_program(other, "mine.pt2")


def test_a_program_of_two_inputs_is_refused():
    class Two(nn.Module):
        def forward(self, x, y):
            return x + y

    file = io.BytesIO()
    torch.export.save(torch.export.export(Two(), (torch.rand(2, 3), torch.rand(2, 3))), file)
    with pytest.raises(DataError, match="takes 2 inputs and returns 1 values: export a network from one tensor to logits"):
        load_program(file.getvalue(), "mine.pt2")
