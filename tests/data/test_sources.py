import numpy as np
import pytest
from PIL import Image

from besnn.data import Dataset, ImageSpec, StreamingFolder, available, load, load_or_stream, stream, verify
from besnn.data.sources import Kind, count_inputs, kind_of
from besnn.errors import BesnnError, DataError, InputError


@pytest.fixture
def sources(tmp_path):
    """One small source of every kind."""
    for name in ("a/1.png", "b/2.png"):
        (tmp_path / "images" / name).parent.mkdir(parents=True)
        Image.new("RGB", (6, 5)).save(tmp_path / "images" / name)
    (tmp_path / "table.csv").write_text("x,y,label\n1,2,a\n3,4,b\n")
    np.savez(tmp_path / "arrays.npz", X=np.zeros((2, 2)), y=[0, 1])
    np.savez(tmp_path / "pictures.npz", images=np.zeros((2, 6, 6), np.uint8))
    return tmp_path


def test_every_kind_is_recognised_and_loaded(sources):
    expected = {
        "images": (Kind.FOLDER, (2, 3, 5, 6)),
        "table.csv": (Kind.TABLE, (2, 2)),
        "arrays.npz": (Kind.ARRAYS, (2, 2)),
        "pictures.npz": (Kind.ARRAYS, (2, 1, 6, 6)),
    }
    for name, (kind, shape) in expected.items():
        assert kind_of(sources / name) is kind
        assert load(sources / name).inputs.shape == shape
        assert load(str(sources / name)).name == str(sources / name)
    assert kind_of(sources / "images" / "a" / "1.png") is Kind.IMAGE


def test_a_folder_takes_precedence_over_the_built_in_set_of_its_name(sources, monkeypatch):
    monkeypatch.chdir(sources)
    assert kind_of("digits") is Kind.BUILT_IN
    (sources / "images").rename("digits")
    assert kind_of("digits") is Kind.FOLDER
    assert load("digits").inputs.shape == (2, 3, 5, 6)
    assert kind_of("digits:test") is Kind.BUILT_IN
    assert verify("digits") == []  # the files of the built-in set, whatever folders there are


def test_inputs_are_counted_without_being_read(sources):
    for name in ("images", "images/a/1.png", "table.csv", "arrays.npz", "pictures.npz"):
        columns, image = (None, ImageSpec(4, 1)) if "images" in name or "pictures" in name else (2, None)
        streamed = sum(len(batch.ids) for batch in stream(sources / name, image=image, columns=columns))
        assert count_inputs(sources / name) == streamed
    assert count_inputs("digits") == count_inputs("digits:test") == 359


def test_images_are_brought_to_the_requested_size(sources):
    spec = ImageSpec(8, channels=3)
    for name in (sources / "images", sources / "pictures.npz", "digits:test"):
        assert load(name, image=spec).inputs.shape[1:] == (3, 8, 8)


def test_an_unknown_name_lists_what_there_is(tmp_path, one_line):
    for spec in ("imagenet", tmp_path / "absent.csv", tmp_path / "notes.txt", ""):
        with pytest.raises(DataError) as caught:
            load(spec)
        one_line(caught, *(info.name for info in available()), ".npz", ".csv", ".parquet", "folder of images")


WRONG = [
    ("images/a/1.png", {}, "single image"),
    ("table.csv", {"image": ImageSpec(4, 1)}, "is a table, where images (grey 4x4) are expected"),
    ("arrays.npz", {"image": ImageSpec(4, 1)}, "is a table"),
    ("arrays.npz", {"columns": ["x", "y", "z"]}, "a table of 2 columns, where a table of 3 columns is expected"),
    ("pictures.npz", {"columns": ["x"]}, "holds images, where a table of 1 columns is expected"),
    ("images", {"columns": ["x"]}, "holds images"),
]


@pytest.mark.parametrize(("name", "options", "words"), WRONG)
def test_data_of_the_wrong_kind(sources, name, options, words, one_line):
    with pytest.raises(BesnnError) as caught:
        load(sources / name, **options)
    one_line(caught, words)


def test_a_folder_beyond_the_budget_stays_on_the_disk(sources, monkeypatch):
    whole = load_or_stream(sources / "images", byte_budget=2 * 90)
    assert isinstance(whole, Dataset)
    assert np.array_equal(load(sources / "images").inputs, whole.inputs)
    monkeypatch.setattr("besnn.data.sources.BYTE_BUDGET", 2 * 90 - 1)
    with pytest.raises(InputError, match="need more than 179 bytes"):
        load(sources / "images")
    streaming = load_or_stream(sources / "images", byte_budget=2 * 90 - 1)
    assert isinstance(streaming, StreamingFolder)
    assert np.array_equal(streaming[1][0], whole.inputs[1])
    assert load_or_stream("digits:test", byte_budget=1).name == "digits:test"


@pytest.mark.parametrize(
    ("fails", "read"),
    [
        ("pathlib.Path.iterdir", load),
        ("pathlib.Path.read_bytes", lambda folder: load(folder, image=ImageSpec(4, 1))),
        ("os.walk", lambda folder: list(stream(folder, image=ImageSpec(4, 1)))),
    ],
)
def test_a_folder_that_cannot_be_read(sources, monkeypatch, one_line, fails, read):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(fails, refuse)
    with pytest.raises(DataError) as caught:
        read(sources / "images")
    one_line(caught, str(sources / "images"), "cannot be read", "Permission denied")
