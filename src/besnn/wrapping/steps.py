"""The preprocessing of a network as data: from the transforms of torchvision and timm, or transformers' image processor."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch

from besnn.errors import InputError, reading
from besnn.model import Preprocessing
from besnn.model.preprocessing import Interpolation

_SKIPPED = ("ToTensor", "PILToTensor", "ToImage", "MaybeToTensor", "ToPureTensor", "MaybePILToTensor")
_PILLOW = {0: "nearest", 2: "bilinear", 3: "bicubic"}
Size = int | Sequence[int]


def preprocessing_of(
    input_shape: tuple[int, ...],
    given: object = None,
    *,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    size: Size | None = None,
) -> Preprocessing:
    """Return what turns pixels `(channels, h, w)` into a network's inputs.

    Args:
        input_shape: of raw images.
        given: torchvision transforms, timm's configuration (a mapping), transformers' image processor, or a `Preprocessing`.
        mean: in place of `given`, of pixels from 0 to 1, one number or one per channel; 0 unless given.
        std: of the same pixels; 1 unless given.
        size: the side, or height and width, that images are resized to.

    >>> preprocessing_of((3, 40, 40), mean=0.5, std=0.25, size=32)(torch.zeros(1, 3, 40, 40)).shape
    torch.Size([1, 3, 32, 32])
    """
    if given is not None and not (mean is None and std is None and size is None):
        raise InputError("preprocessing and mean, std or size are both given: pass one or the other")
    if isinstance(given, Preprocessing):
        return given
    steps = _Steps(input_shape)
    if given is None:
        steps.resize(size)
        steps.mean, steps.std = mean, std
    elif isinstance(given, Mapping):
        _from_timm(steps, given)
    elif hasattr(given, "image_mean"):
        _from_processor(steps, given)
    else:
        _from_transforms(steps, given)
    return steps.result()


def read_preprocessing(path: Path, channels: int) -> Preprocessing:
    """Return the preprocessing of image files that a JSON file describes: transformers' `preprocessor_config.json`, or timm's.

    Files of any size are brought to its `input_shape` as its `short_side` says.
    """
    with reading(path):
        given = json.loads(path.read_bytes())
    if not isinstance(given, dict):
        raise InputError(f"{path} does not describe a preprocessing: give a preprocessor_config.json, or timm's config.json")
    steps = _Steps((channels, 1, 1))
    if "image_mean" in given:
        _from_processor(steps, SimpleNamespace(**given))
    else:
        _from_timm(steps, given.get("pretrained_cfg", given))
    if steps.size is None:
        raise InputError(f"{path} does not say which size images have: pass --mean, --std and --size instead")
    files = _Steps((channels, *(steps.crop or steps.size)))
    files.mean, files.std, files.divisor = steps.mean, steps.std, steps.divisor
    preprocessing = files.result()
    preprocessing.short_side = steps.short_side
    return preprocessing


class _Steps:
    """The steps found so far, in the order resize, crop, scale to 0 … 1, standardise."""

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        self.input_shape = input_shape
        self.size: tuple[int, int] | None = None
        self.crop: tuple[int, int] | None = None
        self.short_side: int | None = None
        self.interpolation, self.divisor = "bilinear", 255.0
        self.mean: float | Sequence[float] | None = None
        self.std: float | Sequence[float] | None = None

    def resize(self, size: Any, interpolation: Any = None) -> None:
        """Resize to a height and width, or, given one number, the shorter side to it."""
        if size is None:
            return
        if self.crop is not None or self.size is not None:
            raise InputError("the transforms resize after they crop or resize: write them as one Resize and one CenterCrop")
        height, width = self.input_shape[1:]
        sides = [size] if isinstance(size, int) else list(size)
        if len(sides) == 1:  # as torchvision rounds
            self.short_side = short = sides[0]
            sides = [short, int(short * width / height)] if height <= width else [int(short * height / width), short]
        self.size = (int(sides[0]), int(sides[1]))
        if interpolation is not None:
            name = str(getattr(interpolation, "value", interpolation)).lower()
            self.interpolation = _PILLOW.get(int(name), name) if name.isdigit() else name

    def centre_crop(self, size: Any) -> None:
        sides = [size] if isinstance(size, int) else list(size)
        self.crop = (int(sides[0]), int(sides[-1]))

    def result(self) -> Preprocessing:
        channels = self.input_shape[0]
        moments = [self._per_channel(value, unless, channels) for value, unless in ((self.mean, 0.0), (self.std, 1.0))]
        return Preprocessing(
            self.input_shape,
            *moments,
            divisor=self.divisor,
            resize=self.size,
            crop=self.crop,
            interpolation=cast(Interpolation, self.interpolation),
        )

    @staticmethod
    def _per_channel(value: float | Sequence[float] | None, unless: float, channels: int) -> torch.Tensor:
        values = torch.as_tensor(unless if value is None else value, dtype=torch.float32).flatten()
        return values.repeat(channels) if len(values) == 1 else values


def _from_transforms(steps: _Steps, given: object) -> None:
    """Read torchvision's transforms, version 1 or 2, or its presets, which are what `weights.transforms()` returns."""
    if hasattr(given, "resize_size") and hasattr(given, "crop_size"):
        preset = cast(Any, given)
        steps.resize(preset.resize_size, preset.interpolation)
        steps.centre_crop(preset.crop_size)
        steps.mean, steps.std = preset.mean, preset.std
        return
    for transform in getattr(given, "transforms", [given]):
        name, step = type(transform).__name__, cast(Any, transform)
        if name == "Resize":
            steps.resize(step.size, step.interpolation)
        elif name == "CenterCrop":
            steps.centre_crop(step.size)
        elif name == "Normalize":
            steps.mean, steps.std = _numbers(step.mean), _numbers(step.std)
        elif name not in (*_SKIPPED, "ConvertImageDtype") and not (name == "ToDtype" and getattr(step, "scale", False)):
            what = f"the transform {name} cannot be kept as data"
            raise InputError(f"{what}: pass Resize, CenterCrop, ToTensor and Normalize, or mean, std and size")


def _from_timm(steps: _Steps, given: Mapping[str, Any]) -> None:
    """Read timm's configuration, as `timm.data.resolve_data_config` or a network's `pretrained_cfg` holds it."""
    if "input_size" not in given or given.get("crop_mode", "center") not in ("center", "squash"):
        raise InputError("this configuration is not timm's (input_size, crop_pct, mean, std), or does not crop the middle")
    height, width = given["input_size"][-2:]
    share = given.get("crop_pct") or 1.0
    squash = given.get("crop_mode") == "squash" or height != width
    enlarged = [int(height / share), int(width / share)]
    steps.resize(enlarged if squash else enlarged[0], given.get("interpolation", "bilinear"))
    steps.centre_crop((height, width))
    steps.mean, steps.std = given.get("mean"), given.get("std")


def _from_processor(steps: _Steps, given: object) -> None:
    """Read transformers' image processor."""
    processor = cast(Any, given)
    if getattr(processor, "do_resize", False):
        steps.resize(_sides(processor.size), getattr(processor, "resample", None))
    if getattr(processor, "do_center_crop", False):
        steps.centre_crop(_sides(processor.crop_size))
    steps.divisor = 1 / processor.rescale_factor if getattr(processor, "do_rescale", False) else 1.0
    if abs(steps.divisor - 255) < 1e-3:
        steps.divisor = 255.0
    if getattr(processor, "do_normalize", False):
        steps.mean, steps.std = processor.image_mean, processor.image_std


def _sides(size: Any) -> Size:
    """Read `{"height": h, "width": w}` or `{"shortest_edge": s}`, a mapping or an object; one number is a square."""
    if isinstance(size, int):
        return [size, size]
    names = ("height", "width", "shortest_edge")
    height, width, short = (size.get(name) if isinstance(size, Mapping) else getattr(size, name, None) for name in names)
    if height and width:
        return [height, width]
    if short is None:
        raise InputError(f"the image processor's size {size} cannot be kept as data: pass mean, std and size")
    return int(short)


def _numbers(values: Any) -> list[float]:
    return [float(value) for value in torch.as_tensor(values).flatten()]
