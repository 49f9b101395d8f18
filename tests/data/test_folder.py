import numpy as np
import pytest
from PIL import Image

from besnn.data.folder import list_files, open_folder, suitable_size
from besnn.data.images import ImageSpec
from besnn.errors import DataError

SPEC = ImageSpec(4, channels=1)


def save(path, shade=0, size=(4, 4), mode="L"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, shade if mode == "L" else (shade,) * 3).save(path)


@pytest.fixture
def animals(tmp_path):
    """Two classes, one of them with images deeper down, among files that are not images."""
    save(tmp_path / "dog" / "2.png", 20)
    save(tmp_path / "dog" / "1.PNG", 10)
    save(tmp_path / "cat" / "young" / "5.png", 50)
    save(tmp_path / "cat" / "4.png", 40)
    save(tmp_path / ".hidden" / "9.png", 90)
    save(tmp_path / "cat" / ".9.png", 90)
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / ".DS_Store").write_bytes(b"\0")
    return tmp_path


def test_sub_folders_are_classes_in_sorted_order(animals):
    loaded = open_folder(animals, SPEC).load()
    assert loaded.class_names == ("cat", "dog")
    assert loaded.labels.tolist() == [0, 0, 1, 1]
    assert loaded.inputs[:, 0, 0, 0].tolist() == [40, 50, 10, 20]
    assert loaded.inputs.shape == (4, 1, 4, 4)


def test_a_flat_folder_has_no_labels(animals):
    loaded = open_folder(animals / "dog", SPEC).load()
    assert loaded.labels is None
    assert loaded.class_names == ()
    assert loaded.inputs[:, 0, 0, 0].tolist() == [10, 20]


def test_linked_class_folders_are_followed(animals, tmp_path_factory):
    links = tmp_path_factory.mktemp("links")
    for name in ("cat", "dog"):
        (links / name).symlink_to(animals / name)
    assert open_folder(links, SPEC).load().labels.tolist() == [0, 0, 1, 1]


def test_many_images_come_in_order(tmp_path):
    for number in range(300):
        save(tmp_path / f"{number:03}.png", number % 251)
    assert open_folder(tmp_path).load().inputs[:, 0, 0, 0].tolist() == [number % 251 for number in range(300)]


def test_the_hash_follows_content_and_names(animals):
    def digest():
        (value,) = open_folder(animals, SPEC).load().hashes.values()
        return value

    first = digest()
    assert digest() == first
    save(animals / "dog" / "2.png", 21)
    changed = digest()
    assert changed != first
    (animals / "dog" / "2.png").rename(animals / "dog" / "3.png")
    assert digest() not in (first, changed)


def test_without_a_spec_the_images_keep_their_one_size(tmp_path):
    save(tmp_path / "a.png", size=(5, 3))
    assert open_folder(tmp_path).load().inputs.shape == (1, 1, 3, 5)
    save(tmp_path / "b.png", size=(5, 3), mode="RGB")
    assert open_folder(tmp_path).load().inputs.shape == (2, 3, 3, 5)
    save(tmp_path / "c.png", size=(4, 3))
    with pytest.raises(DataError, match=r"a.png is grey 3x5, c.png is grey 3x4"):
        open_folder(tmp_path).load()


def test_empty_folders_are_refused(tmp_path):
    with pytest.raises(DataError, match="holds no images"):
        open_folder(tmp_path, SPEC)
    save(tmp_path / "cat" / "1.png")
    (tmp_path / "dog").mkdir()
    with pytest.raises(DataError, match="dog holds no images"):
        open_folder(tmp_path, SPEC)


def test_images_beside_class_folders_are_refused(animals):
    save(animals / "stray.png")
    with pytest.raises(DataError, match=r"beside its class folders \(stray.png\)"):
        open_folder(animals, SPEC).load()


def test_a_streaming_folder_gives_what_loading_gives(animals):
    whole, opened = open_folder(animals, SPEC).load(), open_folder(animals, SPEC)
    assert len(opened) == 4
    for place in range(4):
        image, label = opened[place]
        assert np.array_equal(image, whole.inputs[place])
        assert label == whole.labels[place]
    image, label = open_folder(animals / "dog", SPEC)[0]
    assert (image[0, 0, 0], label) == (10, -1)


def test_a_subset_of_a_streaming_folder(animals):
    part = open_folder(animals, SPEC).subset([3, 0])
    assert [(image[0, 0, 0], label) for image, label in (part[0], part[1])] == [(20, 1), (40, 0)]
    assert open_folder(animals / "dog", SPEC).subset([1])[0][0][0, 0, 0] == 20


def test_torch_batches_a_streaming_folder(animals):
    torch = pytest.importorskip("torch")
    images, labels = next(iter(torch.utils.data.DataLoader(open_folder(animals, SPEC), batch_size=4)))
    assert images.dtype == torch.uint8
    assert images.shape == (4, 1, 4, 4)
    assert labels.tolist() == [0, 0, 1, 1]


def test_listing_skips_only_hidden_files(animals):
    names = [path.relative_to(animals).as_posix() for path in list_files(animals)]
    assert names == ["cat/4.png", "cat/notes.txt", "cat/young/5.png", "dog/1.PNG", "dog/2.png"]


def test_listing_does_not_skip_a_folder_it_cannot_read(tmp_path):
    with pytest.raises(FileNotFoundError):
        list(list_files(tmp_path / "gone"))


def test_all_unreadable_images_are_listed_or_left_out(animals, one_line):
    whole = open_folder(animals, SPEC).load()
    for name in ("cat/4.png", "dog/2.png"):
        (animals / name).write_bytes((animals / name).read_bytes()[:40])
    for folder in (open_folder(animals, SPEC), open_folder(animals)):
        with pytest.raises(DataError) as caught:
            folder.load()
        one_line(caught, "2 of 4 images cannot be read: cat/4.png, dog/2.png", "--skip-bad")
        kept = folder.load(skip_bad=True)
        assert kept.inputs.tolist() == whole.inputs[[1, 2]].tolist()
        assert (kept.labels.tolist(), kept.class_names) == ([0, 1], ("cat", "dog"))
        assert "cat/4.png, dog/2.png" in kept.note
        streaming = folder.readable()
        assert [path.name for path in streaming.files] == ["5.png", "1.PNG"]
        assert streaming.note == kept.note


def test_a_folder_without_a_readable_image_is_refused(tmp_path):
    (tmp_path / "a.png").write_text("no image")
    for spec in (SPEC, None):
        with pytest.raises(DataError, match="cannot be read"):
            open_folder(tmp_path, spec).load(skip_bad=True)


@pytest.mark.parametrize(("sizes", "suitable"), [([(20, 90)], 32), ([(48, 48)], 32), ([(64, 50), (64, 64), (9, 9)], 64)])
def test_larger_images_are_kept_larger(sizes, suitable, tmp_path):
    for number, size in enumerate(sizes):
        save(tmp_path / "cat" / f"{number}.png", size=size)
    (tmp_path / "cat" / "broken.png").write_text("not an image")
    assert suitable_size(tmp_path) == suitable
