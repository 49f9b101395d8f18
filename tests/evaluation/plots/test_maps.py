"""Confidence maps: bright where confidence is high, dark where it is low."""

import numpy as np
import pytest
import torch
from sklearn.datasets import make_moons

from besnn.errors import InputError
from besnn.evaluation.plane import Plane
from besnn.evaluation.plots import confidence_map, confidence_maps

DATA, LABELS = make_moons(60, noise=0.1, random_state=0)
PLANE = Plane.around(DATA, margin=0.5, resolution=40)
FALLING = np.exp(-np.square(PLANE.points - DATA.mean(axis=0)).sum(axis=1))


def test_yellow_in_the_middle_and_purple_at_the_border(pixels_of) -> None:
    figure = confidence_map(PLANE, torch.from_numpy(FALLING), DATA, torch.from_numpy(LABELS), "Two Moons")
    pixels = pixels_of(figure)
    axes = figure.axes[0]
    assert axes.get_title("left") == "Two Moons"
    mesh = axes.collections[0]
    np.testing.assert_allclose(mesh.get_array().reshape(40, 40), PLANE.as_grid(FALLING))
    colours = mesh.get_facecolors().reshape(40, 40, 4)
    middle = np.unravel_index(FALLING.argmax(), (40, 40))
    assert colours[middle][:2].min() > 0.7  # much red and green: yellow
    assert colours[0, 0][:2].max() < 0.35  # little of both: purple
    assert (pixels[..., :2].min(axis=-1) > 200).mean() > 0.05


def test_panels_share_axes_and_colours(pixels_of) -> None:
    figure = confidence_maps(PLANE, [("sure", np.ones(1600)), ("unsure", FALLING)], DATA, LABELS)
    pixels_of(figure)
    sure, unsure, _ = figure.axes
    assert sure.get_xlim() == unsure.get_xlim()
    assert sure.collections[0].get_clim() == unsure.collections[0].get_clim() == (0, 1)
    assert len(unsure.collections) == len(sure.collections) + 1  # the line at 0.5, where there is one


def test_mismatched_labels_are_an_error() -> None:
    with pytest.raises(InputError, match="data 60, labels 2"):
        confidence_map(PLANE, FALLING, DATA, [0, 1])
