"""Outliers made from in-distribution inputs, to choose settings without looking at any real outlier.

None of these sets is ever reported as a result, so a setting chosen on them is not chosen on the test.
Rotations and flips are left out on purpose: many classes (a zero, a bag, a plane) look the same when rotated. So is swapping
an image's own colour channels: a blue frog is a frog.
"""

import zlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from besnn.data.dataset import Inputs
from besnn.errors import InputError

STROKE_CORNERS = 6


def made_up_outliers(inputs: Inputs, *, kinds: Sequence[str] | None = None, seed: int = 0) -> dict[str, Inputs]:
    """Return outliers by kind, each of the shape and dtype of `inputs`.

    Kinds are from `IMAGE_OUTLIERS`, for colour images also from `COLOUR_OUTLIERS`, or from `TABLE_OUTLIERS`; all that apply
    unless given. The outliers of a kind depend only on the inputs and the seed.

    >>> sorted(made_up_outliers(np.zeros((3, 2), np.float32)))
    ['enlarged-box', 'permuted-columns']
    """
    makers = TABLE_OUTLIERS
    if inputs.ndim == 4:
        makers = IMAGE_OUTLIERS | COLOUR_OUTLIERS if inputs.shape[1] > 1 else IMAGE_OUTLIERS
    if len(inputs) < 2:
        raise InputError(f"outliers cannot be made from {len(inputs)} inputs: give at least 2 inputs")
    if unknown := [kind for kind in kinds or () if kind not in makers]:
        raise InputError(f"no outliers of kind {unknown[0]!r} for these inputs: choose from {', '.join(makers)}")
    # crc32, not hash(): the same in every process
    streams = {kind: np.random.default_rng([seed, zlib.crc32(kind.encode())]) for kind in kinds or makers}
    return {kind: makers[kind](inputs, stream) for kind, stream in streams.items()}


def shuffled_pixels(images: Inputs, rng: np.random.Generator) -> Inputs:
    """Shuffle the pixels of every image, each in its own order, with channels kept together."""
    n, c, h, w = images.shape
    order = rng.permuted(np.tile(np.arange(h * w), (n, 1)), axis=1)
    return np.take_along_axis(images.reshape(n, c, h * w), order[:, None], axis=2).reshape(images.shape)


def shuffled_patches(images: Inputs, rng: np.random.Generator) -> Inputs:
    """Cut every image into 4 by 4 patches and shuffle them; rows and columns beyond a multiple of 4 stay."""
    n, c, h, w = images.shape
    ph, pw = h // 4, w // 4
    if ph == 0 or pw == 0:
        return shuffled_pixels(images, rng)
    patches = images[:, :, : 4 * ph, : 4 * pw].reshape(n, c, 4, ph, 4, pw).transpose(0, 2, 4, 1, 3, 5)
    order = rng.permuted(np.tile(np.arange(16), (n, 1)), axis=1)
    moved = np.take_along_axis(patches.reshape(n, 16, -1), order[:, :, None], axis=1).reshape(patches.shape)
    result = images.copy()
    result[:, :, : 4 * ph, : 4 * pw] = moved.transpose(0, 3, 1, 4, 2, 5).reshape(n, c, 4 * ph, 4 * pw)
    return result


def inverted(images: Inputs, rng: np.random.Generator) -> Inputs:
    """Swap light and dark."""
    return np.subtract(255, images, dtype=np.uint8)


def uniform_noise(images: Inputs, rng: np.random.Generator) -> Inputs:
    """Draw every pixel uniformly from 0 to 255."""
    return rng.integers(0, 256, images.shape, dtype=np.uint8)


def gaussian_noise(images: Inputs, rng: np.random.Generator) -> Inputs:
    """Draw every pixel from a normal distribution with the mean and standard deviation of its channel."""
    axes = (0, 2, 3)
    mean, deviation = images.mean(axis=axes, keepdims=True), images.std(axis=axes, keepdims=True)
    pixels: NDArray[np.float64] = np.clip(rng.normal(mean, deviation, images.shape), 0, 255)
    return np.rint(pixels).astype(np.uint8)


def mosaics(images: Inputs, rng: np.random.Generator) -> Inputs:
    """Take the four quarters of every image from four images."""
    h, w = images.shape[2] // 2, images.shape[3] // 2
    result = images[rng.permutation(len(images))]
    for rows, columns in ((slice(h), slice(w, None)), (slice(h, None), slice(w)), (slice(h, None), slice(w, None))):
        result[:, :, rows, columns] = images[rng.permutation(len(images))][:, :, rows, columns]
    return result


def blends(images: Inputs, rng: np.random.Generator) -> Inputs:
    """Average every image with another one."""
    order = rng.permutation(len(images))
    partner = np.empty_like(order)
    partner[order] = np.roll(order, 1)  # the next on one cycle through all images, so never the image itself
    return ((images.astype(np.uint16) + images[partner]) // 2).astype(np.uint8)


def mixed_channels(images: Inputs, rng: np.random.Generator) -> Inputs:
    """Take each channel of every image from another image."""
    return np.stack([channel[rng.permutation(len(images))] for channel in images.swapaxes(0, 1)], axis=1)


def magnified_patches(images: Inputs, rng: np.random.Generator) -> Inputs:
    """Enlarge a quarter of every image's height and width, at a random place, to full size: smooth colours, no object."""
    n, _, h, w = images.shape
    ph, pw = max(1, h // 4), max(1, w // 4)
    top, left = rng.integers(0, h - ph + 1, (n, 1)), rng.integers(0, w - pw + 1, (n, 1))
    rows, columns = (np.arange(h) * (ph - 1) / max(1, h - 1), np.arange(w) * (pw - 1) / max(1, w - 1))
    result = np.zeros(images.shape)
    for i, vertical in _interpolation(rows, ph):
        for j, horizontal in _interpolation(columns, pw):
            pixels = images[np.arange(n)[:, None, None], :, (top + i)[:, :, None], (left + j)[:, None, :]]  # [n, h, w, c]
            result += pixels.transpose(0, 3, 1, 2) * vertical[:, None] * horizontal
    return np.rint(result).astype(np.uint8)


def _interpolation(places: NDArray[np.float64], size: int) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Return, for linear interpolation at places in 0 to size − 1, the pixels on both sides and their weights."""
    low = np.floor(places).astype(np.int64)
    share = places - low
    return [(low, 1 - share), (np.minimum(low + 1, size - 1), share)]


def scrambled_phases(images: Inputs, rng: np.random.Generator) -> Inputs:
    """Make noise with the spectrum of every image: its textures and colours remain, its shapes do not."""
    spectrum = np.fft.rfft2(images.astype(np.float64))
    noise = np.fft.rfft2(rng.normal(size=(len(images), 1, *images.shape[2:])))  # the same for all channels, to keep the colours
    noise[:, :, 0, 0] = 1  # the mean stays
    turned = spectrum * noise / np.maximum(np.abs(noise), 1e-12)
    pixels = np.fft.irfft2(turned, s=images.shape[2:])
    return np.rint(np.clip(pixels, 0, 255)).astype(np.uint8)


def drawn_strokes(images: Inputs, rng: np.random.Generator) -> Inputs:
    """Draw random polylines with a soft pen, in two colours of an image: shapes that belong to no data set.

    The background is the colour of the image's first corner; the pen is the colour in that image that differs most from it.
    """
    n, _, h, w = images.shape
    background, pen = _two_colours(images[rng.permutation(n)])
    y, x = (np.stack(np.meshgrid(np.arange(h), np.arange(w), indexing="ij")) + 0.5) / max(h, w)
    ink = np.zeros((n, h, w), np.float32)
    corners = rng.uniform(0.1, 0.9, (n, STROKE_CORNERS, 2)) * (h, w) / max(h, w)
    used: NDArray[np.int64] = rng.integers(2, STROKE_CORNERS + 1, (n,))  # corners of each polyline
    width, softness = rng.uniform(0.02, 0.08, (2, n, 1, 1))
    for corner in range(STROKE_CORNERS - 1):
        (y0, x0), (y1, x1) = (corners[:, corner + i].T[:, :, None, None] for i in (0, 1))
        length = (y1 - y0) ** 2 + (x1 - x0) ** 2
        along = np.clip(((y - y0) * (y1 - y0) + (x - x0) * (x1 - x0)) / np.maximum(length, 1e-9), 0, 1)
        distance = np.hypot(y - y0 - along * (y1 - y0), x - x0 - along * (x1 - x0))
        segment = np.clip(1 - (distance - width) / softness, 0, 1) * (used > corner + 1)[:, None, None]
        np.maximum(ink, segment, out=ink, casting="same_kind")
    blended = background + ink[:, None] * (pen - background)
    return np.rint(blended).astype(np.uint8)


def _two_colours(images: Inputs) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the colour of each image's first corner, and of the pixel that differs most from it, `[n, c, 1, 1]` each."""
    pixels = images.reshape(*images.shape[:2], -1).astype(np.float32)
    background = pixels[:, :, :1]
    farthest = np.abs(pixels - background).sum(axis=1).argmax(axis=1)
    pen = np.take_along_axis(pixels, farthest[:, None, None], axis=2)
    return background[..., None], pen[..., None]


def permuted_columns(rows: Inputs, rng: np.random.Generator) -> Inputs:
    """Shuffle every column on its own: each value is likely, their combination is not."""
    return rng.permuted(rows, axis=0)


def enlarged_box(rows: Inputs, rng: np.random.Generator) -> Inputs:
    """Draw uniformly from the bounding box of the data, made twice as wide along every axis."""
    low, high = rows.min(axis=0), rows.max(axis=0)
    margin = (high - low) / 2
    return rng.uniform(low - margin, high + margin, rows.shape).astype(np.float32)


Maker = Callable[[Inputs, np.random.Generator], Inputs]

IMAGE_OUTLIERS: dict[str, Maker] = {
    "shuffled-pixels": shuffled_pixels,
    "shuffled-patches": shuffled_patches,
    "inverted": inverted,
    "uniform-noise": uniform_noise,
    "gaussian-noise": gaussian_noise,
    "mosaics": mosaics,
    "blends": blends,
    "drawn-strokes": drawn_strokes,
}
COLOUR_OUTLIERS: dict[str, Maker] = {
    "mixed-channels": mixed_channels,
    "magnified-patches": magnified_patches,
    "scrambled-phases": scrambled_phases,
}
TABLE_OUTLIERS: dict[str, Maker] = {"permuted-columns": permuted_columns, "enlarged-box": enlarged_box}
