"""Wrapping: a trained network of any kind becomes a detector, and stays as it is."""

from besnn.wrapping.layers import FoundLayers, find_layers
from besnn.wrapping.scores import ScoreFit, score_names
from besnn.wrapping.steps import preprocessing_of
from besnn.wrapping.wrap import wrap

__all__ = ["FoundLayers", "ScoreFit", "find_layers", "preprocessing_of", "score_names", "wrap"]
