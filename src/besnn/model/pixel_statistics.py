"""What an image looks like before any network sees it: what is glaringly different shows here first."""

import torch
import torch.nn.functional as F
from torch import Tensor

from besnn.errors import InputError

PLACES = (2, 3)  # the axes of a pixel's row and column
SCALES = 3  # edges are measured at full, half and quarter size
PATCHES = (4, 8)  # sides of the squares that local contrast is measured in
FLAT = 0.02  # pixels count as flat where neighbours differ by less, in standard deviations of all pixels
SMALL = 1e-4  # keeps logarithms and ratios finite


def pixel_statistics(images: Tensor) -> Tensor:
    """Describe standardised images `[batch, channels, h, w]` by colour, contrast and edges, `[batch, d]`.

    Photographs, text, drawings, noise and flat colours differ in these, whatever they show.
    """
    if images.ndim != 4:
        raise InputError(f"inputs {list(images.shape[1:])} are not images [channels, h, w]: leave pixels out of score.far")
    grey = images.mean(dim=1, keepdim=True)
    return torch.cat([*_colours(images, grey), *_greys(grey), *_edges(grey), *_contrasts(grey)], dim=1)


def _colours(images: Tensor, grey: Tensor) -> list[Tensor]:
    """Return mean and log variance of each channel, and how colourful it is at all and at its edges."""
    found = [images.mean(PLACES), (_variance(images) + SMALL).log()]
    if images.shape[1] > 1:
        colour = images - grey
        found += [_log(part.abs().mean(PLACES)) for part in (colour, *_differences(colour))]
    return found


def _greys(grey: Tensor) -> list[Tensor]:
    """Return the darkest and the lightest grey, skewness and log kurtosis."""
    unit = (grey - grey.mean(PLACES, keepdim=True)) / (_variance(grey) + SMALL).sqrt()[..., None, None]
    return [grey.amin(PLACES), grey.amax(PLACES), unit.pow(3).mean(PLACES), _log(unit.pow(4).mean(PLACES))]


def _edges(grey: Tensor) -> list[Tensor]:
    """Return, at several scales, how strong edges are, how much of them few pixels hold, and the share of flat pixels."""
    found: list[Tensor] = []
    if min(grey.shape[2:]) > 2:
        inner = grey[:, :, 1:-1, 1:-1]
        around = grey[:, :, :-2, 1:-1] + grey[:, :, 2:, 1:-1] + grey[:, :, 1:-1, :-2] + grey[:, :, 1:-1, 2:]
        found += _strength(4 * inner - around)
    for _ in range(SCALES):
        if min(grey.shape[2:]) < 2:
            break
        for edges in _differences(grey):
            found += [*_strength(edges), (1 - edges.abs() / FLAT).clamp_min(0).mean(PLACES)]
        grey = F.avg_pool2d(grey, 2)
    return found


def _contrasts(grey: Tensor) -> list[Tensor]:
    """Return mean, deviation, minimum and maximum over the image of the log contrast within squares."""
    found: list[Tensor] = []
    for side in PATCHES:
        if min(grey.shape[2:]) >= 2 * side:
            variance = F.avg_pool2d(grey.square(), side) - F.avg_pool2d(grey, side).square()
            contrast = _log((variance.clamp_min(0) + SMALL).sqrt())
            deviation = (_variance(contrast) + SMALL).sqrt()
            found += [contrast.mean(PLACES), deviation, contrast.amin(PLACES), contrast.amax(PLACES)]
    return found


def _differences(maps: Tensor) -> tuple[Tensor, Tensor]:
    return maps[:, :, 1:] - maps[:, :, :-1], maps[..., 1:] - maps[..., :-1]


def _strength(edges: Tensor) -> list[Tensor]:
    mean = edges.abs().mean(PLACES)
    return [_log(mean), _log(edges.square().mean(PLACES) / (mean.square() + SMALL))]


def _variance(maps: Tensor) -> Tensor:
    return (maps - maps.mean(PLACES, keepdim=True)).square().mean(PLACES)


def _log(values: Tensor) -> Tensor:
    return torch.log(values + SMALL**0.5)
