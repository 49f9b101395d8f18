"""Classifiers that say "I don't know this": batch-ensemble stochastic neural networks (BE-SNN)."""

from typing import TYPE_CHECKING

from besnn.version import __version__

if TYPE_CHECKING:
    from besnn.detector import Detector
    from besnn.estimator import BESNNClassifier
    from besnn.model import BESNN
    from besnn.training.fit import fit_detector
    from besnn.wrapping import wrap

__all__ = ["BESNN", "BESNNClassifier", "Detector", "__version__", "fit_detector", "wrap"]

_HOMES = {
    "BESNN": "besnn.model",
    "BESNNClassifier": "besnn.estimator",
    "Detector": "besnn.detector",
    "fit_detector": "besnn.training.fit",
    "wrap": "besnn.wrapping",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that `import besnn` and `besnn --help` are fast."""
    if name not in _HOMES:
        raise AttributeError(f"module 'besnn' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
