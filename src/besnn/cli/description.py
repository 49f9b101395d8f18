"""A detector in a few facts, and those facts in words."""

from collections.abc import Mapping
from typing import Any

from besnn.detection.block import block_name, kind_of
from besnn.detector import Detector

_SHOWN_CLASSES = 10


def facts_of(detector: Detector) -> dict[str, Any]:
    """What a detector is and how it decides, JSON-able."""
    threshold = detector.threshold
    return {
        "method": detector.model.method,
        "members": detector.model.members,
        "mirror": detector.model.mirror,
        "parameters": sum(parameter.numel() for parameter in detector.model.parameters()),
        "input_shape": list(detector.input_shape),
        "feature_names": list(detector.feature_names),
        "class_names": list(detector.class_names),
        "score": detector.scoring.name,
        "layer": detector.layer_for(detector.scoring.name),
        "calibration": None
        if threshold is None
        else {
            "alpha": threshold.alpha,
            "delta": threshold.delta,
            "inputs": len(threshold.scores),
            "threshold": threshold.threshold,
        },
    }


def in_words(facts: Mapping[str, Any]) -> list[str]:
    """The facts of a detector, a line each."""
    mirror = " (every second looks at mirror images)" if facts["mirror"] else ""
    return [
        f"method       {facts['method']}, {count(facts['members'], 'member')}{mirror}, {facts['parameters']:,} parameters",
        f"inputs       {_inputs(facts['input_shape'])}",
        f"classes      {len(facts['class_names'])}: {shortened(facts['class_names'])}",
        f"score        {_score(facts['score'], facts['layer'])}",
        f"calibration  {guarantee(facts['calibration'])}",
    ]


def guarantee(calibration: Mapping[str, Any] | None) -> str:
    """What a calibration promises."""
    if calibration is None:
        return "none yet: run besnn calibrate MODEL DATA"
    sure = "" if calibration["delta"] is None else f" with probability {1 - calibration['delta']:g}"
    return (
        f"false alarms on at most {100 * calibration['alpha']:g} % of known inputs{sure} "
        f"(threshold {calibration['threshold']:.4g}, from {count(calibration['inputs'], 'held-out input')})"
    )


def count(number: int, noun: str) -> str:
    """A number of things.

    >>> count(1, "member"), count(1200, "input")
    ('1 member', '1,200 inputs')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shortened(names: list[str]) -> str:
    """Some names, and how many more there are."""
    more = len(names) - _SHOWN_CLASSES
    return ", ".join(names[:_SHOWN_CLASSES]) + (f" and {more} more" if more > 0 else "")


def _score(name: str, layer: str | None) -> str:
    """The score with what it looks at; a density at one of several layers has that in its name."""
    return name if layer is None or kind_of(name) != name else block_name(name, layer)


def _inputs(shape: list[int]) -> str:
    if len(shape) == 1:
        return f"tables of {count(shape[0], 'column')}"
    channels, height, width = shape
    return f"{'grey' if channels == 1 else 'RGB' if channels == 3 else f'{channels}-channel'} images, {height}x{width}"
