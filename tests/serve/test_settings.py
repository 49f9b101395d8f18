import pytest

from besnn import Detector
from besnn.errors import InputError, NotReadyError
from besnn.serve import Settings, create_app
from besnn.serve.inputs import InputReader
from besnn.serve.settings import parse_settings


def test_overrides_are_converted():
    settings = parse_settings({"model_name": "a"}, ["deadline_seconds=2.5", "max_rows=7", "drift_state=x.sqlite"])
    assert (settings.deadline_seconds, settings.max_rows, str(settings.drift_state)) == (2.5, 7, "x.sqlite")


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("max_rows=0", "max_rows"),
        ("max_rows=many", "max_rows"),
        ("deadline_seconds=inf", "deadline_seconds"),
        ("colour=red", "colour"),
        ("max_rows", "field=value"),
        ("token=abc", "--token-file"),
    ],
)
def test_a_wrong_setting_is_named(override: str, named: str):
    with pytest.raises(InputError, match=named):
        parse_settings({}, [override])


def test_a_model_name_fits_in_a_path():
    with pytest.raises(InputError, match="model_name"):
        parse_settings({"model_name": "a/b"})


def test_the_token_does_not_show():
    assert "correct-horse" not in repr(Settings.model_validate({"token": "correct-horse"}))


def test_a_detector_must_be_calibrated(moons_detector: Detector):
    bare = Detector(moons_detector.model, moons_detector.preprocessing, moons_detector.class_names)
    with pytest.raises(NotReadyError, match="calibrate"):
        create_app(bare)


@pytest.mark.parametrize("shape", [(2, 8, 8), (3, 4), (1, 2, 3, 4)])
def test_inputs_that_cannot_be_sent_are_refused(shape: tuple[int, ...]):
    with pytest.raises(InputError, match="cannot be served"):
        InputReader(shape, Settings())
