"""The built-in data sets: what they are, where their official files are published, and what is in them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from besnn.errors import InputError


@dataclass(frozen=True)
class OfficialFile:
    """One file of a set."""

    path: str  # in a data folder, unpacked (`.gz` may follow), and in an archive
    sha256: str  # of the unpacked content, so that compressing it again changes nothing
    records: int  # how many images (or labels) it holds
    urls: tuple[str, ...]  # where to download it or its archive from, in order of preference; none if it is not published
    archive_sha256: str = ""  # of the archive; empty if `urls` are those of the file itself


@dataclass(frozen=True)
class DatasetInfo:
    """A built-in set.

    Attributes:
        name: as the command line takes it.
        description: what it shows.
        licence: as far as its authors state one.
        class_names: by class index.
        sizes: how many inputs each split holds.
        files: the official files of each split; none for generated sets.
        format: of these files, a key of `besnn.data.official.PARSERS`.

    >>> {info.name: dict(info.sizes) for info in available()}["digits"]
    {'train': 1438, 'test': 359}
    """

    name: str
    description: str
    licence: str
    class_names: tuple[str, ...]
    sizes: Mapping[str, int]
    files: Mapping[str, tuple[OfficialFile, ...]] = field(default_factory=dict)
    format: str = ""


def available() -> list[DatasetInfo]:
    """Return the built-in sets.

    >>> [info.name for info in available()]
    ['two-moons', 'digits', 'fashion-mnist', 'mnist', 'not-mnist', 'cifar10', 'svhn', 'cifar100-sample']
    """
    return list(_CATALOGUE)


def parse_name(spec: str) -> tuple[DatasetInfo, str | None] | None:
    """Return the set and the split that `mnist` or `mnist:test` names; None if it does not begin with a built-in name.

    A folder of that name is the user's own data: it takes precedence, and `mnist:test` still names the built-in set.
    """
    return None if Path(spec).is_dir() else _parse(spec)


def _parse(spec: str) -> tuple[DatasetInfo, str | None] | None:
    name, colon, split = spec.partition(":")
    info = next((info for info in _CATALOGUE if info.name == name), None)
    if info is not None and colon and split not in info.sizes:
        raise InputError(f"{name} has no split {split!r}: use {' or '.join(f'{name}:{each}' for each in info.sizes)}")
    return None if info is None else (info, split or None)


def require_name(spec: str) -> tuple[DatasetInfo, str | None]:
    """Return the set and the split of a built-in name, whatever folders there are; another name is an error."""
    parsed = _parse(spec)
    if parsed is None:
        raise InputError(f"no built-in set is called {spec!r}: choose from {', '.join(i.name for i in _CATALOGUE)}")
    return parsed


_SHA256 = {
    "FashionMNIST/raw/train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "FashionMNIST/raw/train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "FashionMNIST/raw/t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "FashionMNIST/raw/t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    "MNIST/raw/train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "MNIST/raw/train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "MNIST/raw/t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "MNIST/raw/t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    "NotMNIST/raw/t10k-images-idx3-ubyte": "8e7f38ae95cc8f48e0986175ffc9137e5007ebcf3d8fdf6656c904eb9dab198b",
    "NotMNIST/raw/t10k-labels-idx1-ubyte": "5f8e6012f2ce730700d8d05fca098bc47f71d25b890e4bec7ac5ebfd614a4001",
    "cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    "cifar-10-batches-bin/data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "cifar-10-batches-bin/data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "cifar-10-batches-bin/data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "cifar-10-batches-bin/data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "cifar-10-batches-bin/data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "cifar-10-batches-bin/test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    "CIFAR100/sample5000.npz": "f7f19bf80cce161c5823cef5ffcafa82c0bbd82c114400b3005795c2c7cce5a0",
    "SVHN/train_32x32.mat": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    "SVHN/test_32x32.mat": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
}


def _idx_files(folder: str, sizes: Mapping[str, int], *urls: str) -> dict[str, tuple[OfficialFile, ...]]:
    def file(name: str, records: int) -> OfficialFile:
        path = f"{folder}/raw/{name}"
        return OfficialFile(path, _SHA256[path], records, tuple(f"{url}/{name}.gz" for url in urls))

    prefixes = {"train": "train", "test": "t10k"}
    return {
        split: tuple(file(f"{prefixes[split]}-{kind}-ubyte", records) for kind in ("images-idx3", "labels-idx1"))
        for split, records in sizes.items()
    }


def _cifar_files(*names: str) -> tuple[OfficialFile, ...]:
    archive = "cifar-10-binary.tar.gz"
    urls = (f"https://www.cs.toronto.edu/~kriz/{archive}",)
    paths = [f"cifar-10-batches-bin/{name}.bin" for name in names]
    return tuple(OfficialFile(path, _SHA256[path], 10_000, urls, _SHA256[archive]) for path in paths)


def _svhn_files(split: str, records: int) -> tuple[OfficialFile, ...]:
    name = f"{split}_32x32.mat"
    urls = (f"http://ufldl.stanford.edu/housenumbers/{name}",)
    return (OfficialFile(f"SVHN/{name}", _SHA256[f"SVHN/{name}"], records, urls),)


DIGITS = tuple("0123456789")
_CIFAR100 = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
    forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
    mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
    sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree
    wolf woman worm
"""
_SAMPLE = "CIFAR100/sample5000.npz"
_MNIST_SIZES = {"train": 60_000, "test": 10_000}

_CATALOGUE = (
    DatasetInfo(
        name="two-moons",
        description="two interleaved half circles in the plane (generated)",
        licence="none needed",
        class_names=("upper", "lower"),
        sizes={"train": 1000, "test": 1000},
    ),
    DatasetInfo(
        name="digits",
        description="handwritten digits, grey 8x8 (comes with scikit-learn)",
        licence="BSD-3-Clause",
        class_names=DIGITS,
        sizes={"train": 1438, "test": 359},
    ),
    DatasetInfo(
        name="fashion-mnist",
        description="clothes, grey 28x28",
        licence="MIT",
        class_names=("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
        sizes=_MNIST_SIZES,
        format="idx",
        files=_idx_files(
            "FashionMNIST",
            _MNIST_SIZES,
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        ),
    ),
    DatasetInfo(
        name="mnist",
        description="handwritten digits, grey 28x28",
        licence="CC BY-SA 3.0 (as commonly given)",
        class_names=DIGITS,
        sizes=_MNIST_SIZES,
        format="idx",
        files=_idx_files(
            "MNIST",
            _MNIST_SIZES,
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "https://storage.googleapis.com/cvdf-datasets/mnist",
        ),
    ),
    DatasetInfo(
        name="not-mnist",
        description="letters A to J in many fonts, grey 28x28, a sample of 1,000 per letter",
        licence="none stated",
        class_names=tuple("ABCDEFGHIJ"),
        sizes={"test": 10_000},
        format="idx",
        files=_idx_files(
            "NotMNIST",
            {"test": 10_000},
            "https://raw.githubusercontent.com/davidflanagan/notMNIST-to-MNIST/c58c29ff93d7b8c809c449b380a232f9f39909fd",
        ),
    ),
    DatasetInfo(
        name="cifar10",
        description="small photographs of ten kinds of things, RGB 32x32",
        licence="none stated (cite Krizhevsky 2009)",
        class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        sizes={"train": 50_000, "test": 10_000},
        format="cifar",
        files={"train": _cifar_files(*(f"data_batch_{i}" for i in range(1, 6))), "test": _cifar_files("test_batch")},
    ),
    DatasetInfo(
        name="svhn",
        description="house numbers, one digit per image, RGB 32x32",
        licence="non-commercial use only",
        class_names=DIGITS,
        sizes={"train": 73_257, "test": 26_032},
        format="svhn",
        files={"train": _svhn_files("train", 73_257), "test": _svhn_files("test", 26_032)},
    ),
    DatasetInfo(
        name="cifar100-sample",
        description="small photographs of a hundred kinds of things, RGB 32x32, 50 per kind; not the official test split",
        licence="none stated (cite Krizhevsky 2009)",
        class_names=tuple(_CIFAR100.split()),
        sizes={"test": 5000},
        format="npz",
        files={"test": (OfficialFile(_SAMPLE, _SHA256[_SAMPLE], 5000, ()),)},
    ),
)
