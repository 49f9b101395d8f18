"""Classifiers that say "I don't know this": batch-ensemble stochastic neural networks (BE-SNN)."""

from besnn.version import __version__

__all__ = ["__version__"]
