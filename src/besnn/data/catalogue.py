"""The built-in data sets: what they are, where their official files lie, and what is in them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from besnn.errors import InputError

DIGITS = tuple("0123456789")


@dataclass(frozen=True)
class OfficialFile:
    """One file of a set.

    Attributes:
        path: where it lies in a data folder, unpacked; `.gz` may follow.
        sha256: of the unpacked content, so that compressing anew changes nothing.
        records: how many images (or labels) it holds.
        urls: where to download it from, in order of preference.
        member: its name within the archive at `urls`; empty where the address is the file itself.
        archive_sha256: of that archive.
    """

    path: str
    sha256: str
    records: int
    urls: tuple[str, ...]
    member: str = ""
    archive_sha256: str = ""


@dataclass(frozen=True)
class DatasetInfo:
    """A built-in set.

    Attributes:
        name: as the command line takes it.
        description: in a few words.
        licence: as far as its authors state one.
        class_names: name of class 0, 1, ...
        sizes: how many inputs each split holds.
        files: the official files of each split; none for sets that are generated.
        format: the files' format, a key of `besnn.data.formats.PARSERS`; empty for sets that are generated.
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

    Example:
        >>> [info.name for info in available()]
        ['two-moons', 'digits', 'fashion-mnist', 'mnist', 'not-mnist', 'cifar10', 'svhn']
    """
    return list(_CATALOGUE)


def parse_name(spec: str) -> tuple[DatasetInfo, str | None] | None:
    """Take `mnist` or `mnist:test` apart; None where it does not begin with a built-in name.

    Example:
        >>> info, split = parse_name("mnist:test")
        >>> info.name, split
        ('mnist', 'test')
    """
    name, colon, split = spec.partition(":")
    info = next((info for info in _CATALOGUE if info.name == name), None)
    if info is not None and colon and split not in info.sizes:
        raise InputError(f"{name} has no split {split!r}: use {' or '.join(f'{name}:{each}' for each in info.sizes)}")
    return None if info is None else (info, split or None)


def require_name(spec: str) -> tuple[DatasetInfo, str | None]:
    """Take a built-in name apart, or say which there are."""
    parsed = parse_name(spec)
    if parsed is None:
        raise InputError(f"no built-in set is called {spec!r}: choose from {', '.join(i.name for i in _CATALOGUE)}")
    return parsed


def _idx_files(
    folder: str, urls: tuple[str, ...], prefix: str, records: int, images: str, labels: str
) -> tuple[OfficialFile, ...]:
    """The two idx files of a split, given the SHA-256 of each."""
    named = ((f"{prefix}-images-idx3-ubyte", images), (f"{prefix}-labels-idx1-ubyte", labels))
    return tuple(
        OfficialFile(f"{folder}/raw/{name}", sha256, records, tuple(f"{url}/{name}.gz" for url in urls))
        for name, sha256 in named
    )


def _cifar_file(name: str, sha256: str) -> OfficialFile:
    path = f"cifar-10-batches-bin/{name}.bin"
    return OfficialFile(path, sha256, 10_000, (_CIFAR_URL,), member=path, archive_sha256=_CIFAR_ARCHIVE_SHA256)


def _svhn_file(split: str, sha256: str, records: int) -> OfficialFile:
    name = f"{split}_32x32.mat"
    return OfficialFile(f"SVHN/{name}", sha256, records, (f"http://ufldl.stanford.edu/housenumbers/{name}",))


_FASHION_URLS = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
)
_MNIST_URLS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)
_CIFAR_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
_CIFAR_ARCHIVE_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
_NOT_MNIST_URLS = (
    "https://raw.githubusercontent.com/davidflanagan/notMNIST-to-MNIST/c58c29ff93d7b8c809c449b380a232f9f39909fd",
)

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
        sizes={"train": 60_000, "test": 10_000},
        format="idx",
        files={
            "train": _idx_files(
                "FashionMNIST",
                _FASHION_URLS,
                "train",
                60_000,
                images="c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                labels="bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            ),
            "test": _idx_files(
                "FashionMNIST",
                _FASHION_URLS,
                "t10k",
                10_000,
                images="5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                labels="0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
        },
    ),
    DatasetInfo(
        name="mnist",
        description="handwritten digits, grey 28x28",
        licence="CC BY-SA 3.0 (as commonly given)",
        class_names=DIGITS,
        sizes={"train": 60_000, "test": 10_000},
        format="idx",
        files={
            "train": _idx_files(
                "MNIST",
                _MNIST_URLS,
                "train",
                60_000,
                images="ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                labels="65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            ),
            "test": _idx_files(
                "MNIST",
                _MNIST_URLS,
                "t10k",
                10_000,
                images="0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                labels="ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
        },
    ),
    DatasetInfo(
        name="not-mnist",
        description="letters A to J in many fonts, grey 28x28, a sample of 1,000 a letter",
        licence="none stated",
        class_names=tuple("ABCDEFGHIJ"),
        sizes={"test": 10_000},
        format="idx",
        files={
            "test": _idx_files(
                "NotMNIST",
                _NOT_MNIST_URLS,
                "t10k",
                10_000,
                images="8e7f38ae95cc8f48e0986175ffc9137e5007ebcf3d8fdf6656c904eb9dab198b",
                labels="5f8e6012f2ce730700d8d05fca098bc47f71d25b890e4bec7ac5ebfd614a4001",
            )
        },
    ),
    DatasetInfo(
        name="cifar10",
        description="small photographs of ten kinds of things, RGB 32x32",
        licence="none stated (cite Krizhevsky 2009)",
        class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        sizes={"train": 50_000, "test": 10_000},
        format="cifar",
        files={
            "train": (
                _cifar_file("data_batch_1", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
                _cifar_file("data_batch_2", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
                _cifar_file("data_batch_3", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
                _cifar_file("data_batch_4", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
                _cifar_file("data_batch_5", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
            ),
            "test": (_cifar_file("test_batch", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),),
        },
    ),
    DatasetInfo(
        name="svhn",
        description="house numbers, one digit an image, RGB 32x32",
        licence="non-commercial use only",
        class_names=DIGITS,
        sizes={"train": 73_257, "test": 26_032},
        format="svhn",
        files={
            "train": (_svhn_file("train", "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8", 73_257),),
            "test": (_svhn_file("test", "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b", 26_032),),
        },
    ),
)
