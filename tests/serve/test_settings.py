from pathlib import Path

import pytest

from besnn import Detector
from besnn.errors import InputError, NotReadyError
from besnn.serve import Settings, create_app
from besnn.serve.settings import access_settings, parse_settings, read_token

TOKEN = "correct-horse-battery-staple"


def test_overrides_are_converted():
    settings = parse_settings({"model_name": "a"}, ["deadline_seconds=2.5", "max_rows=7", "drift_state=x.sqlite"])
    assert (settings.deadline_seconds, settings.max_rows, str(settings.drift_state)) == (2.5, 7, "x.sqlite")


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("max_rows=0", "max_rows"),
        ("model_name=a/b", "model_name"),
        ("deadline_seconds=inf", "deadline_seconds"),
        ("colour=red", "colour"),
        ("max_rows", "FIELD=VALUE"),
        ("token=abc", "--token-file"),
    ],
)
def test_a_wrong_setting_is_named(override: str, named: str):
    with pytest.raises(InputError, match=named):
        parse_settings({}, [override])


def test_the_token_does_not_show():
    assert "correct-horse" not in repr(Settings.model_validate({"token": "correct-horse"}))


def test_a_detector_must_be_calibrated(moons_detector: Detector):
    bare = Detector(moons_detector.model, moons_detector.preprocessing, moons_detector.class_names)
    with pytest.raises(NotReadyError, match="calibrate"):
        create_app(bare)


def test_a_public_address_needs_a_token(tmp_path: Path):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert access_settings("0.0.0.0", file, False, []) == {"token": TOKEN}
    assert access_settings("0.0.0.0", None, True, []) == {}
    with pytest.raises(InputError, match=r"--host 0\.0\.0\.0 .* --token-file"):
        access_settings("0.0.0.0", None, False, [])
    assert "proxy.example" in access_settings("127.0.0.1", None, False, ["Proxy.example"])["allowed_hosts"]  # type: ignore[operator]


@pytest.mark.parametrize("content", [b"", b"short", b"has a blank inside", "kein-Umlaut-Gerät".encode()])
def test_a_weak_token_is_refused(tmp_path: Path, content: bytes):
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(InputError, match="token"):
        read_token(file)


def test_a_missing_token_file_is_named(tmp_path: Path):
    with pytest.raises(InputError, match="nowhere"):
        read_token(tmp_path / "nowhere")
