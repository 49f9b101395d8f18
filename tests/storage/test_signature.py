"""Signatures of model files: what is forged, unsigned or signed by others is refused before it is parsed."""

import hashlib
import hmac
import shutil
import subprocess

import pytest

from besnn import Detector
from besnn.errors import BesnnError, DataError, InputError
from besnn.recipe.build import pretrained_backbone
from besnn.serve import Settings, server
from besnn.storage import tensor_file
from besnn.training.fit import fit_detector

KEY = "0123456789abcdef" * 2


@pytest.fixture(scope="module")
def detector(tiny_recipe, moons):
    return fit_detector(tiny_recipe("training.epochs=1"), moons).detector


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "model.key"
    path.write_text(f"{KEY}\n")
    return path


@pytest.fixture
def model(detector, tmp_path):
    path = tmp_path / "model.safetensors"
    detector.save(path)
    return path


@pytest.fixture
def signed(model, key, monkeypatch):
    """A signed model, with the key in the environment, as a service has it."""
    content = model.read_bytes()
    model.with_name("model.safetensors.sig").write_text(hmac.new(KEY.encode(), content, hashlib.sha256).hexdigest())
    monkeypatch.setenv("BESNN_MODEL_KEY", str(key))
    return model


def forge(path):
    """Change a model file; its digest is right, for whoever can write the file can write that."""
    tensors, header = tensor_file.read_tensor_file(path, tensor_file.MODEL_FILE)
    tensor_file.write_tensor_file(path, tensor_file.MODEL_FILE, tensors, header | {"class_names": ["safe", "sound"]})


def refused(load, *words):
    with pytest.raises(BesnnError) as caught:
        load()
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_a_signed_model_loads_and_others_are_not_even_parsed(signed, detector, monkeypatch):
    assert Detector.load(signed).class_names == detector.class_names
    forge(signed)

    def parsed(*_, **__):
        raise AssertionError("parsed before the signature was checked")

    for name in ("safe_open", "load"):
        monkeypatch.setattr(tensor_file, name, parsed)
    refused(lambda: Detector.load(signed), "is not what model.safetensors.sig was made of", "besnn sign")
    backbone = detector.recipe.backbone.model_copy(update={"weights": str(signed)})
    refused(lambda: pretrained_backbone(backbone, (2,)), "is not what model.safetensors.sig was made of")
    signed.with_name("model.safetensors.sig").write_text("")
    refused(lambda: Detector.load(signed), "is not what model.safetensors.sig was made of")
    signed.with_name("model.safetensors.sig").unlink()
    refused(lambda: Detector.load(signed), "has no signature model.safetensors.sig", "besnn sign")


def test_what_is_parsed_are_the_bytes_that_were_checked(signed, detector, monkeypatch):
    check = tensor_file.check_signature

    def replaced_after_the_check(*arguments):
        check(*arguments)
        signed.write_bytes(b"forged")

    monkeypatch.setattr(tensor_file, "check_signature", replaced_after_the_check)
    assert Detector.load(signed).to_bytes() == detector.to_bytes()


def test_a_key_file_can_be_given_and_must_be_the_right_one(model, key, signed, tmp_path, monkeypatch):
    other = tmp_path / "other.key"
    other.write_text(KEY[::-1])
    refused(lambda: Detector.load(model, key=other), "is not what model.safetensors.sig was made of with this key")
    monkeypatch.delenv("BESNN_MODEL_KEY")
    Detector.load(model, key=key)
    refused(lambda: Detector.load(model, key=other), "is not what model.safetensors.sig")
    Detector.load(model)  # without a key no signature is asked for


@pytest.mark.parametrize(
    ("content", "words"), [(None, "cannot read the key file"), ("short\n", "shorter than 16 bytes"), ("", "shorter than 16")]
)
def test_a_bad_key_opens_nothing(content, words, signed, key, monkeypatch):
    key.unlink() if content is None else key.write_text(content)
    with pytest.raises(InputError, match=f"{words}.*openssl rand"):
        Detector.load(signed)
    monkeypatch.setenv("BESNN_MODEL_KEY", "")  # as an unset variable of a container may leave it
    refused(lambda: Detector.load(signed), "cannot read the key file ''")


def test_workers_of_a_service_never_serve_a_model_that_replaced_the_signed_one(signed, monkeypatch):
    loaded = Detector.load(signed)
    forge(signed)
    monkeypatch.setattr(server, "Supervisor", lambda *_: pytest.fail("a worker was started"))
    with pytest.raises(DataError, match=r"is not what model\.safetensors\.sig"), server.listen("127.0.0.1", 0) as listener:
        server.run(loaded, signed, Settings(), [], listener, workers=2)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_the_signature_is_what_openssl_computes(model, key, capsys):
    from besnn.cli.app import run

    assert run(["sign", str(model), "--key", str(key)]) == 0
    assert capsys.readouterr().out == f"wrote {model}.sig\n"
    command = ["openssl", "dgst", "-sha256", "-hmac", KEY, "-r", str(model)]
    expected = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    assert model.with_name("model.safetensors.sig").read_text() == f"{expected}\n"
    model.write_bytes(model.read_bytes()[:-1])
    assert run(["sign", str(model), "--key", str(key)]) == 1  # damaged
