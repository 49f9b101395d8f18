"""Wrapping: a trained network of any kind becomes a detector, and stays as it is."""

from besnn.wrapping.layers import find_layers
from besnn.wrapping.scores import score_names
from besnn.wrapping.steps import preprocessing_of
from besnn.wrapping.wrap import wrap

__all__ = ["find_layers", "preprocessing_of", "score_names", "wrap"]
