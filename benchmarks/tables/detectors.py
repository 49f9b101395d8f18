"""What the suite compares: besnn, and what one would write with scikit-learn, PyOD or a few networks instead."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables.sets import Numbers, Table

Scores = NDArray[np.floating[Any]]
BESNN, TABM, FOREST, BOOSTING, ENSEMBLE = "besnn", "TabM", "random forest", "gradient boosting", "deep ensemble"
MEMBERS = 3
ALPHA = 0.05


class Answers(NamedTuple):
    """About rows: how strange each is; the class that each is given, and whether it is flagged, if the detector says so."""

    scores: Scores
    labels: NDArray[Any] | None = None
    alarms: NDArray[np.bool_] | None = None
    calibrated: int = 0  # rows that the alarms were calibrated on


Fitted = Callable[[Table], Answers]


def encoder(training: Table) -> Callable[[Table], Numbers]:
    """Return what turns rows into standardised numbers for baselines: medians for gaps, words one-hot."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers, words = range(training.numbers.shape[1]), training.words.shape[1]
    parts = [("numbers", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), list(numbers))]
    if words:
        places = list(range(len(numbers), len(numbers) + words))
        parts.append(("words", OneHotEncoder(handle_unknown="ignore", sparse_output=False), places))

    def joined(table: Table) -> NDArray[Any]:
        return np.hstack([table.numbers.astype(object), table.words.astype(object)]) if words else table.numbers

    transformer = ColumnTransformer(parts).fit(joined(training))
    return lambda table: np.asarray(transformer.transform(joined(table)), np.float64)


def of_numbers(
    fit: Callable[[Numbers, NDArray[np.int64], int], Callable[[Numbers], Answers]],
) -> Callable[[Table, int], Fitted]:
    """Return a detector of tables from one of standardised numbers."""

    def fit_table(training: Table, seed: int) -> Fitted:
        encode = encoder(training)
        answer = fit(encode(training), training.labels, seed)
        return lambda table: answer(encode(table))

    return fit_table


def fit_besnn(training: Table, seed: int) -> Fitted:
    """Fit the estimator with its defaults to the table as it is."""
    from besnn import BESNNClassifier

    classifier = BESNNClassifier(random_state=seed).fit(training.arrow(), training.labels)

    def answer(table: Table) -> Answers:
        rows = table.arrow()
        alarms = classifier.is_ood(rows, ALPHA)
        return Answers(classifier.ood_score(rows), classifier.predict(rows), alarms, len(classifier.calibration_scores_))

    return answer


def class_gaussian(x: Numbers, y: NDArray[np.int64], seed: int) -> Callable[[Numbers], Answers]:
    """Fit a Gaussian to each class; the smallest distance −log N counts."""
    from scipy.stats import multivariate_normal
    from sklearn.covariance import OAS

    fitted = [OAS().fit(x[y == label]) for label in np.unique(y) if (y == label).sum() > 1]
    gaussians = [multivariate_normal(each.location_, each.covariance_, allow_singular=True) for each in fitted]
    return lambda rows: Answers(-np.max([np.atleast_1d(each.logpdf(rows)) for each in gaussians], axis=0))


def mahalanobis(x: Numbers, y: NDArray[np.int64], seed: int) -> Callable[[Numbers], Answers]:
    """Measure the distance from the mean of all rows by their covariance."""
    from sklearn.covariance import OAS

    covariance = OAS().fit(x)
    return lambda rows: Answers(covariance.mahalanobis(rows))


def local_outliers(x: Numbers, y: NDArray[np.int64], seed: int) -> Callable[[Numbers], Answers]:
    """Compare the density around a row with that around its neighbours (LOF)."""
    from sklearn.neighbors import LocalOutlierFactor

    model = LocalOutlierFactor(n_neighbors=min(20, len(x) - 1), novelty=True).fit(x)
    return lambda rows: Answers(-model.score_samples(rows))


def isolation_forest(x: Numbers, y: NDArray[np.int64], seed: int) -> Callable[[Numbers], Answers]:
    """Count how few random splits isolate a row."""
    from sklearn.ensemble import IsolationForest

    model = IsolationForest(random_state=seed).fit(x)
    return lambda rows: Answers(-model.score_samples(rows))


def neighbours(x: Numbers, y: NDArray[np.int64], seed: int) -> Callable[[Numbers], Answers]:
    """Measure the distance to the fifth nearest row."""
    from sklearn.neighbors import NearestNeighbors

    model = NearestNeighbors(n_neighbors=min(5, len(x))).fit(x)
    return lambda rows: Answers(model.kneighbors(rows)[0][:, -1])


def unsure(make: Callable[[int], list[Any]]) -> Callable[[Numbers, NDArray[np.int64], int], Callable[[Numbers], Answers]]:
    """Return a detector by the largest mean probability of scikit-learn's classifiers, made by `make` from a seed."""

    def fit(x: Numbers, y: NDArray[np.int64], seed: int) -> Callable[[Numbers], Answers]:
        models = [model.fit(x, y) for model in make(seed)]

        def answer(rows: Numbers) -> Answers:
            probabilities = np.mean([model.predict_proba(rows) for model in models], axis=0)
            return Answers(-probabilities.max(axis=1), models[0].classes_[probabilities.argmax(axis=1)])

        return answer

    return fit


def _forest(seed: int) -> list[Any]:
    from sklearn.ensemble import RandomForestClassifier

    return [RandomForestClassifier(300, random_state=seed)]


def _boosting(seed: int) -> list[Any]:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return [HistGradientBoostingClassifier(random_state=seed)]


def _networks(count: int) -> Callable[[int], list[Any]]:
    def make(seed: int) -> list[Any]:
        from sklearn.neural_network import MLPClassifier

        return [MLPClassifier(random_state=count * seed + i) for i in range(count)]

    return make


def pyod(name: str) -> Callable[[Numbers, NDArray[np.int64], int], Callable[[Numbers], Answers]]:
    """Return a detector of PyOD by the name of its class."""

    def fit(x: Numbers, y: NDArray[np.int64], seed: int) -> Callable[[Numbers], Answers]:
        import importlib

        import torch

        torch.manual_seed(seed)
        model = getattr(importlib.import_module(f"pyod.models.{name.lower()}"), name)()
        model.fit(x)
        return lambda rows: Answers(np.asarray(model.decision_function(rows)))

    return fit


def tabm(x: Numbers, y: NDArray[np.int64], seed: int) -> Callable[[Numbers], Answers]:
    """Fit a batch ensemble by TabM's settings, without class features and densities; the largest mean probability counts."""
    from besnn import fit_detector
    from besnn.data import Dataset
    from besnn.training import load_recipe

    method = "method={name: batch-ensemble, members: 8, fast_weights: first}"
    changes = [method, "score.name=max-softmax-probability", "data.validation=0", "data.calibration=0", f"training.seed={seed}"]
    data = Dataset(x.astype(np.float32), y, tuple(map(str, np.unique(y))), "table")
    detector = fit_detector(load_recipe("table", changes), data).detector

    def answer(rows: Numbers) -> Answers:
        inputs = rows.astype(np.float32)
        logits = [detector.model.log_probabilities(evidence) for evidence, _ in detector.outputs(inputs)]
        labels = np.concatenate([each.argmax(dim=1).numpy() for each in logits])
        return Answers(detector.score(inputs), labels)

    return answer


DETECTORS: dict[str, Callable[[Table, int], Fitted]] = {
    BESNN: fit_besnn,
    "Gaussian per class": of_numbers(class_gaussian),
    "Mahalanobis": of_numbers(mahalanobis),
    "LOF": of_numbers(local_outliers),
    "isolation forest": of_numbers(isolation_forest),
    "nearest neighbours": of_numbers(neighbours),
    FOREST: of_numbers(unsure(_forest)),
    "ECOD": of_numbers(pyod("ECOD")),
    "COPOD": of_numbers(pyod("COPOD")),
    "LUNAR": of_numbers(pyod("LUNAR")),
    "network": of_numbers(unsure(_networks(1))),
    BOOSTING: of_numbers(unsure(_boosting)),
    ENSEMBLE: of_numbers(unsure(_networks(MEMBERS))),
    TABM: of_numbers(tabm),
}
"""All detectors, by the name in records; quick ones first."""
PYOD = ("ECOD", "COPOD", "LUNAR")
CLASSIFIERS = ("network", FOREST, BOOSTING)
"""Those that accuracy is compared with."""
