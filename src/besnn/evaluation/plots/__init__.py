"""Figures of an evaluation, as matplotlib `Figure` objects in one house style."""

from besnn.evaluation.plots.classes import confusion_heat_map, reliability_diagram
from besnn.evaluation.plots.images import image_grid
from besnn.evaluation.plots.maps import confidence_map, confidence_maps
from besnn.evaluation.plots.ranking import precision_recall_curves, roc_curves, score_histograms
from besnn.evaluation.plots.style import as_data_uri, house_style, save_figure

__all__ = [
    "as_data_uri",
    "confidence_map",
    "confidence_maps",
    "confusion_heat_map",
    "house_style",
    "image_grid",
    "precision_recall_curves",
    "reliability_diagram",
    "roc_curves",
    "save_figure",
    "score_histograms",
]
