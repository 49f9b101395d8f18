"""From a detector and data to an evaluation."""

from collections.abc import Mapping, Sequence

import numpy as np

from besnn.data import Dataset
from besnn.detector import Detector
from besnn.errors import InputError, NotReadyError
from besnn.evaluation import Evaluation, ScoredSet
from besnn.training.choose_score import all_scores
from besnn.training.record import provenance


def evaluate_detector(
    detector: Detector,
    known: Dataset,
    unknown: Mapping[str, Dataset],
    *,
    title: str,
    known_name: str | None = None,
    input_names: Mapping[str, Sequence[str]] | None = None,
) -> Evaluation:
    """Judges a calibrated detector on data of its classes and on sets of inputs that it should not know.

    Args:
        detector: calibrated.
        known: labelled, in the detector's order of classes.
        unknown: OOD sets by name; their labels are not looked at.
        title: what to call the detector, for people.
        known_name: what to call the known data; its own name unless given.
        input_names: by a set's name, what each of its inputs is called; the row number unless given.

    >>> from besnn.data import made_up_outliers, two_moons
    >>> from besnn.training.fit import fit_detector
    >>> from besnn.training import load_recipe
    >>> detector = fit_detector(load_recipe("two-moons", ["training.epochs=1"]), two_moons(500)).detector
    >>> moons = two_moons(200, seed=1)
    >>> far = Dataset(moons.inputs + 50, None, (), "far away")
    >>> evaluate_detector(detector, moons, {"far": far}, title="Moons").metrics()["detection_rate"]["far"]["rate"]
    1.0
    """
    if detector.threshold is None:
        raise NotReadyError("the detector is not calibrated: call calibrate(inputs, alpha) with held-out inputs first")
    if known.labels is None:
        raise InputError(f"{known.name} has no labels: give known data with the class of every input")
    known_name = known_name or known.name
    names = input_names or {}
    sets = {name: scored_set(detector, data, names.get(name)) for name, data in unknown.items()}
    data = [known, *unknown.values()]
    origin = provenance({file: digest for each in data for file, digest in each.hashes.items()}, detector.device)
    return Evaluation(
        title=title,
        method=detector.model.method,
        class_names=detector.class_names,
        alpha=detector.threshold.alpha,
        threshold=detector.threshold.threshold,
        default_score=detector.scoring.name,
        known_name=known_name,
        known=scored_set(detector, known, names.get(known_name)),
        labels=known.labels,
        unknown=sets,
        provenance=origin | {"data_note": "; ".join(each.note for each in data if each.note), "model": detector.provenance},
        feature_names=detector.feature_names or None,
    )


def scored_set(detector: Detector, dataset: Dataset, names: Sequence[str] | None = None) -> ScoredSet:
    """What a calibrated detector says of a whole set, with every score it has."""
    predictions = detector.predict(dataset.inputs)
    scores = all_scores(detector, detector.scoring, dataset.inputs)
    return ScoredSet(
        probabilities=predictions.probabilities.astype(np.float64),
        scores={name: values.astype(np.float64) for name, values in scores.items()},
        p_values=predictions.p_value,
        is_ood=predictions.is_ood,
        inputs=dataset.inputs,
        names=names,
    )
