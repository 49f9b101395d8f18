"""`besnn inspect`: what a model file holds; and the facts about a detector that other commands print too."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from besnn.cli.options import Json, Model
from besnn.cli.output import announce, count

if TYPE_CHECKING:
    from besnn.detector import Detector

_SHOWN_CLASSES = 10


def inspect(model: Model, json: Json = False) -> None:
    """Show what a model file holds.

    That is its method, inputs, classes, score, calibration, recipe and provenance.
    """
    from besnn.cli.loading import load_detector

    detector = load_detector(model)
    recipe = None if detector.recipe is None else detector.recipe.model_dump(mode="json")
    origin = detector.provenance
    made = {"": origin.get("date"), "besnn ": origin.get("versions", {}).get("besnn"), "commit ": origin.get("commit")}
    recorded = ", ".join(f"{what}{value}" for what, value in made.items() if value)
    facts = {"file": str(model), "bytes": os.path.getsize(model), **facts_of(detector), "recipe": recipe, "provenance": origin}
    sentences = [
        f"{model} ({facts['bytes']:,} bytes)",
        *in_words(facts),
        *measured_in_words(origin.get("measured", {})),
        f"recipe       {'none: ' + origin.get('network', 'a network of its own') if recipe is None else recipe['name']}",
        f"data         {', '.join(origin.get('data', {})) or 'not recorded'}",
        f"{'wrapped' if 'network' in origin else 'trained'}      {recorded or 'not recorded'}",
    ]
    announce(facts, sentences, as_json=json, quiet=False)


def facts_of(detector: "Detector") -> dict[str, Any]:
    """Return what a detector is and how it decides, as JSON-able values."""
    calibration: dict[str, Any] | None = None
    if (decision := detector.decision) is not None:
        threshold, rule = decision.threshold, decision.labels
        calibration = {"alpha": threshold.alpha, "delta": threshold.delta, "inputs": len(threshold.scores)}
        calibration |= {"threshold": threshold.threshold, "per_class": decision.by_class is not None, "labels": None}
        if rule.alpha is not None:
            calibration["labels"] = rule.state()[1]
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
        "calibration": calibration,
    }


def in_words(facts: Mapping[str, Any]) -> list[str]:
    """Return the facts about a detector, one line each."""
    mirror = " (every second one sees mirror images)" if facts["mirror"] else ""
    size = f", {facts['parameters']:,} parameters" if facts["parameters"] else ""  # an ONNX graph's are not counted
    names = facts["class_names"]
    more = f" and {len(names) - _SHOWN_CLASSES} more" if len(names) > _SHOWN_CLASSES else ""
    return [
        f"method       {facts['method']}, {count(facts['members'], 'member')}{mirror}{size}",
        f"inputs       {_inputs(facts['input_shape'])}",
        f"classes      {len(names)}: {', '.join(names[:_SHOWN_CLASSES])}{more}",
        f"score        {_score(facts['score'], facts['layer'])}",
        f"calibration  {guarantee(facts['calibration'])}",
        *(f"labels       {line}" for line in labels_in_words(facts["calibration"])),
    ]


def measured_in_words(measured: Mapping[str, Any]) -> list[str]:
    """Return what training found out about class features and members, one line each."""
    lines = []
    if features := measured.get("class_features"):
        spread = f"{features['spread']:.2g} on average, {features['least_spread']:.2g} at least"
        lines.append(f"class spread {spread}{_entropies(features)}")
    if differences := measured.get("members_differ"):
        disagreement, spread = differences["disagreement"], differences["score_spread"]
        choices = " and ".join(f"{100 * share:.2g} % of {name} inputs" for name, share in disagreement.items())
        scores = " and ".join(f"{value:.2g}" for value in spread.values())
        lines.append(f"members      two of them disagree on {choices}; their own scores differ by {scores}")
    return lines


def _entropies(features: Mapping[str, float]) -> str:
    """Compare the entropies of generated and of real features, in words.

    >>> _entropies({"entropy": -1.25, "data_entropy": -1.5, "covered": 1.0})
    '; entropy -1.25 nats per dimension (the data: -1.5), no lower for any class'
    """
    if "entropy" not in features:
        return ""
    missing = 1 - features["covered"]
    where = "no lower for any class" if not missing else f"lower for {100 * missing:.2g} % of members and classes"
    return f"; entropy {features['entropy']:.3g} nats per dimension (the data: {features['data_entropy']:.3g}), {where}"


def guarantee(calibration: Mapping[str, Any] | None) -> str:
    """Return what a calibration guarantees, in words."""
    if calibration is None:
        return "none yet: run besnn calibrate MODEL DATA"
    sure = "" if calibration["delta"] is None else f" with probability {1 - calibration['delta']:g}"
    which = " of each predicted class" if calibration["per_class"] else ""
    return (
        f"false alarms on at most {100 * calibration['alpha']:g} % of known inputs{which}{sure} "
        f"(threshold {calibration['threshold']:.4g}, from {count(calibration['inputs'], 'held-out input')})"
    )


def labels_in_words(calibration: Mapping[str, Any] | None) -> list[str]:
    """Return what a calibration promises about the labels of accepted inputs, one line each; none without labels."""
    if calibration is None or (rule := calibration["labels"]) is None:
        return []
    held = f"the label set of an accepted input holds its class with probability {1 - rule['alpha']:g} or more"
    lines = [f"{held} ({rule['form']}, from {count(rule['inputs'], 'input')}, temperature {rule['temperature']:.3g})"]
    if rule["max_error"] is not None:
        sure = f"with probability {1 - rule['delta']:g}"
        lines.append(f"of the inputs called known, at most {100 * rule['max_error']:g} % have a wrong label, {sure}")
    return lines


def _score(name: str, layer: str | None) -> str:
    """Return a score with the layers it looks at; a density at one of several layers already has its layer in its name."""
    from besnn.detection.densities import density_kind
    from besnn.model.feature_layers import INPUTS

    if layer is None or density_kind(name) != name:
        return name
    if layer == INPUTS:
        return f"{name}, of the inputs themselves"
    several = "layers" if "," in layer else "layer"
    return f"{name}, from features of the network's {several} {layer.replace(',', ', ')}"


def _inputs(shape: list[int]) -> str:
    if len(shape) == 1:
        return f"tables of {count(shape[0], 'column')}"
    channels, height, width = shape
    return f"{'grey' if channels == 1 else 'RGB' if channels == 3 else f'{channels}-channel'} images, {height}x{width}"
