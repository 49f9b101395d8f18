"""The scikit-learn estimator: scikit-learn's own checks, calibrated decisions, and what arrays people bring."""

import copy
import re
import warnings
from pathlib import Path

import joblib
import numpy as np
import pyarrow as pa
import pytest
import torch
from scipy.stats import betabinom
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, make_blobs
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from besnn import BESNNClassifier, Detector, fit_detector
from besnn.data import Dataset
from besnn.errors import InputError, NotReadyError
from besnn.training import load_recipe


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# As for scikit-learn's own networks: rows in another order, or rows repeated, make other batches and another network.
STOCHASTIC = {"check_sample_weight_equivalence_on_dense_data": "training is stochastic"}


# A small network, trained briefly, because the checks fit it 200 times.
@pytest.mark.no_cover
@parametrize_with_checks(
    [BESNNClassifier(2, hidden=(16,), feature_dim=8, epochs=20, learning_rate=0.02)],
    expected_failed_checks=lambda estimator: STOCHASTIC,
)
def test_scikit_learn_estimator_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def cancer():
    return train_test_split(*load_breast_cancer(return_X_y=True), test_size=0.4, random_state=0)


@pytest.fixture(scope="module")
def fitted(cancer):
    X, _, y, _ = cancer
    return BESNNClassifier(random_state=0).fit(X, y)


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


def quick(**parameters):
    """For tests of what does not depend on how well it is trained."""
    return BESNNClassifier(**{"epochs": 2, "hidden": (16,), "random_state": 0, **parameters})


class TestQuality:
    def test_is_about_as_accurate_as_a_plain_network(self, fitted, cancer):
        X, X_new, y, y_new = cancer
        plain = make_pipeline(StandardScaler(), MLPClassifier(max_iter=500, random_state=0)).fit(X, y)
        assert fitted.score(X_new, y_new) >= plain.score(X_new, y_new) - 0.03

    @pytest.mark.parametrize("alpha", [0.05, 0.2])
    def test_false_alarms_follow_their_exact_distribution(self, alpha):
        points, labels = make_blobs(3000, n_features=6, centers=4, cluster_std=2.0, random_state=1)
        classifier = BESNNClassifier(epochs=5, random_state=0).fit(points[:600], labels[:600])
        alarms = int(classifier.is_ood(points[600:], alpha).sum())
        n, rank = 120, int(np.ceil(121 * (1 - alpha) - 1e-9))
        assert len(classifier.calibration_scores_) == n
        # The share above the rank-th of n exchangeable scores is Beta(n + 1 − rank, rank).
        low, high = betabinom(2400, n + 1 - rank, rank).interval(0.999)
        assert low <= alarms <= high

    def test_flags_what_is_unlike_the_training_data(self, fitted, cancer):
        X = cancer[0]
        rng = np.random.default_rng(0)
        box = rng.uniform(X.min(axis=0), X.max(axis=0), X.shape)
        assert fitted.is_ood(box).mean() > 0.9

    def test_flags_an_unknown_class(self, iris):
        X, y = iris
        known = y != 0
        classifier = BESNNClassifier(random_state=0).fit(X[known], y[known])
        assert classifier.is_ood(X[~known]).mean() > 0.9

    def test_is_what_the_command_line_trains(self, iris):
        X, y = iris
        classifier = BESNNClassifier(epochs=3, random_state=0).fit(X, y)
        seed = np.random.RandomState(0).randint(2**31)
        data = Dataset(X.astype(np.float32), y, ("0", "1", "2"), "iris")
        detector = fit_detector(load_recipe("table", ["training.epochs=3", f"training.seed={seed}"]), data).detector
        np.testing.assert_array_equal(classifier.ood_score(X), detector.score(X))
        np.testing.assert_array_equal(classifier.is_ood(X), detector.predict(X).is_ood)


class TestCalibration:
    def test_p_values_count_the_calibration_rows(self, fitted, cancer):
        X_new = cancer[1][:50]
        equal = 1e-5 * np.abs(fitted.calibration_scores_).max()  # up to rounding
        at_least = (fitted.calibration_scores_[:, None] >= fitted.ood_score(X_new) - equal).sum(axis=0)
        np.testing.assert_allclose(fitted.p_value(X_new), (1 + at_least) / (len(fitted.calibration_scores_) + 1))

    @pytest.mark.parametrize("alpha", [0.02, 0.05, 0.3])
    def test_decides_by_the_p_value(self, fitted, cancer, alpha):
        X_new = cancer[1]
        np.testing.assert_array_equal(fitted.is_ood(X_new, alpha), fitted.p_value(X_new) <= alpha)

    def test_calibration_rows_take_no_part_in_training(self):
        X, y = make_blobs(100, random_state=0)
        classifier = quick().fit(X, y)
        gaps = np.abs(classifier.ood_score(X)[:, None] - classifier.calibration_scores_)
        held_out = np.unique(gaps.argmin(axis=0))
        assert len(held_out) == len(classifier.calibration_scores_) == 20
        X_other, y_other = X.copy(), y.copy()
        X_other[held_out], y_other[held_out] = 9.0, 1
        other = quick().fit(X_other, y_other)
        np.testing.assert_array_equal(other.predict_proba(X), classifier.predict_proba(X))
        X_other[np.setdiff1d(np.arange(100), held_out)[0]] = 9.0
        assert (quick().fit(X_other, y_other).predict_proba(X) != classifier.predict_proba(X)).any()

    def test_few_rows_give_p_values_but_no_small_alpha(self, iris):
        X, y = (part[::5] for part in iris)  # 30 rows, 6 of them held out
        classifier = quick().fit(X, y)
        assert classifier.p_value(X).min() >= 1 / 7
        assert classifier.is_ood(X, alpha=0.2).dtype == bool
        with pytest.raises(InputError, match=r"6 calibration scores .* alpha=0\.05: provide at least 19.*calibration=0\.2"):
            classifier.is_ood(X)
        with pytest.raises(NotReadyError, match="calibrate"):
            classifier.detector_.predict(X)

    @pytest.mark.parametrize(("rows", "calibration"), [(6, 0.2), (150, 0.0)])
    def test_no_calibration_rows_at_all(self, iris, rows, calibration):
        X, y = (part[:: 150 // rows] for part in iris)
        classifier = quick(calibration=calibration).fit(X, y)
        assert classifier.predict(X).shape == (rows,)
        with pytest.raises(NotReadyError, match="held out no rows"):
            classifier.p_value(X)

    def test_the_detector_is_ready_for_use(self, fitted, cancer, tmp_path):
        X_new = cancer[1]
        fitted.detector_.save(tmp_path / "model.safetensors")
        predictions = Detector.load(tmp_path / "model.safetensors").predict(X_new)
        np.testing.assert_array_equal(predictions.is_ood, fitted.is_ood(X_new))
        np.testing.assert_array_equal(predictions.labels, fitted.predict(X_new))
        assert predictions.labels.dtype == np.int64  # as in y

    def test_says_that_a_class_is_lost(self):
        X, y = np.arange(60.0).reshape(-1, 2), np.array(["common", "usual"] * 15)
        y[0] = "rare"
        for seed in range(40):  # a row in five is held out, so the rare one soon is
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                quick(epochs=1, random_state=seed).fit(X, y)
            if caught:
                break
        assert [str(warning.message).partition(":")[0] for warning in caught] == ["no row of class 'rare' is left to train on"]


class TestScikitLearnTools:
    def test_pipeline_and_grid_search(self, iris):
        pipeline = make_pipeline(StandardScaler(), quick())
        search = GridSearchCV(pipeline, {"besnnclassifier__members": [1, 2]}, cv=2).fit(*iris)
        assert search.best_estimator_[-1].detector_.model.members == search.best_params_["besnnclassifier__members"]
        assert search.best_estimator_[-1].p_value(iris[0]).shape == (150,)

    def test_copies_and_files_answer_the_same(self, fitted, cancer, tmp_path):
        X_new = cancer[1]
        joblib.dump(fitted, tmp_path / "classifier.joblib")
        for again in (copy.deepcopy(fitted), joblib.load(tmp_path / "classifier.joblib")):
            np.testing.assert_array_equal(again.predict_proba(X_new), fitted.predict_proba(X_new))
            np.testing.assert_array_equal(again.p_value(X_new), fitted.p_value(X_new))
            np.testing.assert_array_equal(again.predict(X_new), fitted.predict(X_new))

    def test_an_unfitted_estimator_pickles(self, tmp_path):
        joblib.dump(BESNNClassifier(members=3), tmp_path / "unfitted.joblib")
        assert joblib.load(tmp_path / "unfitted.joblib").members == 3

    def test_random_state_decides_the_result(self, iris):
        X = iris[0]
        first, again, other, instance = (
            quick(random_state=state).fit(*iris).predict_proba(X) for state in (1, 1, 2, np.random.RandomState(1))
        )
        np.testing.assert_array_equal(first, again)
        np.testing.assert_array_equal(first, instance)
        assert (first != other).any()

    def test_leaves_torch_and_the_inputs_alone(self, iris):
        X, y = (part.copy() for part in iris)
        torch.manual_seed(7)
        torch.set_float32_matmul_precision("medium")
        state, threads = torch.get_rng_state(), torch.get_num_threads()
        try:
            quick(random_state=None).fit(X, y).p_value(X)
            assert torch.get_float32_matmul_precision() == "medium"
        finally:
            torch.set_float32_matmul_precision("highest")
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.get_num_threads() == threads
        np.testing.assert_array_equal(X, iris[0])
        np.testing.assert_array_equal(y, iris[1])


class TestLabelsAndTables:
    @pytest.mark.parametrize("names", [["setosa", "versicolor", "virginica"], [1.0, 2.0, 7.0], [-3, 5, 10]])
    def test_labels_of_any_type(self, iris, names):
        X, y = iris
        labels = np.asarray(names)[y]
        classifier = quick().fit(X, labels)
        np.testing.assert_array_equal(classifier.classes_, names)
        predicted = classifier.predict(X)
        assert predicted.dtype == labels.dtype
        np.testing.assert_array_equal(predicted, np.asarray(names)[classifier.predict_proba(X).argmax(axis=1)])

    def test_takes_column_names_from_a_frame(self, iris):
        X, y = iris
        names = ["sepal length", "sepal width", "petal length", "petal width"]
        table = pa.table(dict(zip(names, X.T, strict=True)))
        classifier = quick().fit(table, y)
        assert list(classifier.feature_names_in_) == names
        assert classifier.detector_.feature_names == tuple(names)
        np.testing.assert_array_equal(classifier.predict_proba(table), quick().fit(X, y).predict_proba(X))
        with pytest.raises(ValueError, match="feature names should match"):
            classifier.predict(table.select(names[::-1]))

    @pytest.mark.parametrize("column", [np.geomspace(1e59, 1e60, 150), 1e9 + np.linspace(0, 1, 150)])
    def test_columns_that_float32_cannot_hold_are_centred_first(self, iris, column):
        X, y = iris
        X = np.column_stack([X[:, :2], column])
        assert BESNNClassifier(epochs=60, random_state=0).fit(X, y).score(X, y) > 0.97  # classes are sorted, as the column is

    @pytest.mark.parametrize("form", ["pandas", "polars", "arrow"])
    def test_frames_with_words_dates_and_gaps(self, form, tmp_path):
        rng = np.random.default_rng(0)
        y = np.arange(200) % 2
        columns = {
            "size": np.where(rng.random(200) < 0.2, np.nan, rng.normal(y)),
            "colour": np.where(y, rng.choice(["red", "green"], 200), "blue"),
            "flag": rng.random(200) < 0.3 + 0.4 * y,
            "day": np.datetime64("2024-01-01") + rng.integers(0, 90, 200).astype("timedelta64[D]"),
        }
        module = pytest.importorskip("pyarrow" if form == "arrow" else form)
        make = {"pandas": "DataFrame", "polars": "DataFrame", "arrow": "table"}[form]
        frame = getattr(module, make)(columns)
        classifier = BESNNClassifier(epochs=20, random_state=0).fit(frame, y)
        assert classifier.score(frame, y) > 0.9
        strange = getattr(module, make)({**columns, "colour": np.full(200, "purple")})
        assert classifier.is_ood(strange).all()
        classifier.detector_.save(tmp_path / "model.safetensors")
        detector = Detector.load(tmp_path / "model.safetensors")
        backwards = getattr(module, make)(dict(reversed(columns.items())))
        np.testing.assert_array_equal(detector.predict(backwards).score, classifier.ood_score(frame))

    def test_gaps_in_an_array(self, iris):
        X, y = iris
        X = np.where(np.random.default_rng(0).random(X.shape) < 0.1, np.nan, X)
        X[:, 0] = iris[0][:, 0]
        classifier = BESNNClassifier(epochs=60, random_state=0).fit(X, y)
        assert classifier.score(X, y) > 0.9
        strange = iris[0].copy()
        strange[:, 0] = np.nan
        assert classifier.is_ood(strange).all()
        with pytest.raises(ValueError, match="infinity"):
            classifier.predict(np.full((1, 4), np.inf))

    def test_gaps_that_training_rows_did_not_have_are_refused_in_one_line(self, iris):
        with pytest.raises(ValueError, match=r"X has gaps \(NaN\), and the rows that were learned from have none: fill them"):
            quick().fit(*iris).predict([[5.0, np.nan, 1.0, 0.2]])

    @pytest.mark.parametrize("jitter", [np.float64(1e-16), np.float32(1e-7)])
    def test_takes_a_column_that_is_constant_but_for_rounding(self, iris, jitter):
        X, y = iris
        column = np.float32(0.3) + jitter * (np.arange(150) % 2).astype(jitter.dtype)
        assert quick().fit(np.column_stack([X.astype(jitter.dtype), column]), y).n_features_in_ == 5

    def test_scales_do_not_matter(self, iris):
        X, y = iris
        units = np.array([2.0**40, 2.0**-40, 1.0, 2.0**100])
        np.testing.assert_allclose(
            quick().fit(X * units, y).predict_proba(X * units), quick().fit(X, y).predict_proba(X), rtol=1e-3
        )

    def test_constant_columns_and_far_inputs(self, fitted, cancer, iris):
        X, y = iris
        assert np.isfinite(quick().fit(np.column_stack([X, np.full(150, 3.0)]), y).ood_score(np.zeros((1, 5)))).all()
        far = np.full((2, 30), [[1e300], [-1e300]])
        assert np.isfinite(fitted.predict_proba(far)).all()
        assert fitted.is_ood(far).all()

    def test_rows_that_do_not_vary_within_their_class(self):
        X = np.array([[0.0], [1.0]] * 50)
        classifier = quick(epochs=40).fit(X, X[:, 0])
        assert classifier.score(X, X[:, 0]) == 1
        assert classifier.detector_.scoring.name == "tempered-entropy"  # a density would have no width


class TestImages:
    @pytest.fixture(scope="class")
    def digits(self):
        X, y = load_digits(n_class=3, return_X_y=True)
        return np.rint(X * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8), y

    @pytest.fixture(scope="class")
    def reader(self, digits):
        return quick(hidden=(8, 8), epochs=6, learning_rate=0.01).fit(*digits)

    def test_reads_digits_and_flags_noise(self, reader, digits):
        X, y = digits
        noise = np.random.default_rng(0).integers(0, 256, (100, 1, 8, 8), dtype=np.uint8)
        assert reader.score(X, y) > 0.95
        assert reader.detector_.scoring.name == "nearest-neighbour"
        assert reader.is_ood(noise).mean() > 0.9

    @pytest.mark.parametrize(
        "arrange",
        [
            lambda images: images / 255,
            lambda images: (images / 255).astype(np.float32),
            lambda images: images.astype(np.int64),
            lambda images: images.transpose(0, 2, 3, 1),
            lambda images: images[:, 0],
        ],
    )
    def test_layouts_and_ranges_mean_the_same(self, digits, arrange):
        X, y = (part[:40] for part in digits)
        same = quick(hidden=(8,)).fit(arrange(X), y)
        np.testing.assert_array_equal(same.predict_proba(arrange(X)), quick(hidden=(8,)).fit(X, y).predict_proba(X))

    def test_refuses_floats_beyond_one(self, digits):
        X, y = digits
        with pytest.raises(InputError, match=r"image 0 has pixels outside 0 to 1: .*floats in \[0, 1\]"):
            quick().fit(X.astype(np.float32), y)

    def test_refuses_images_of_another_size(self, reader, digits):
        with pytest.raises(InputError, match=r"\[n, 1, 8, 8\]"):
            reader.predict(digits[0][:, :, :6])

    def test_refuses_a_table_in_place_of_images(self, reader, digits):
        with pytest.raises(ValueError, match="64 features"):
            reader.predict(digits[0].reshape(-1, 64))


class TestParameters:
    @pytest.mark.parametrize("name", ["method", "nearest-neighbour", "combined", "auto"])
    def test_score_by_name(self, iris, name):
        classifier = quick(score_name=name, epochs=10).fit(*iris)
        choices = {
            "method": ["tempered-entropy"],
            "auto": ["tempered-entropy", "class-covariance", "class-residual", "combined", "whitened-neighbour"],
        }
        assert classifier.detector_.scoring.name in choices.get(name, [name])
        assert classifier.is_ood(np.full((1, 4), 50.0), alpha=0.1).all()

    def test_trains_small_data_for_enough_steps(self, iris):
        X, y = iris
        assert len(quick(epochs=None, batch_size=35).fit(X, y).history_) == 100  # of 3 steps: 105 rows are trained on
        assert len(quick(epochs=3).fit(X, y).history_) == 3

    @pytest.mark.parametrize(
        ("parameters", "message"),
        [
            ({"members": 0}, "members' is 0"),
            ({"hidden": 64}, "hidden' is 64"),
            ({"feature_dim": -1}, "feature_dim' is -1"),
            ({"epochs": 0}, "epochs' is 0"),
            ({"batch_size": 0}, "batch_size' is 0"),
            ({"learning_rate": 0.0}, r"learning_rate' is 0\.0"),
            ({"weight_decay": -1.0}, r"weight_decay' is -1\.0"),
            ({"score_name": "entropy"}, "'entropy' is unknown"),
            ({"score_name": "combined", "validation": 0.0}, "needs validation"),
            ({"calibration": 1.0}, r"calibration' is 1\.0"),
            ({"accelerator": "abacus"}, "'abacus'"),
        ],
    )
    def test_wrong_ones_are_named_in_fit(self, iris, parameters, message):
        classifier = BESNNClassifier(**parameters)
        with pytest.raises(InputError, match=message) as caught:
            classifier.fit(*iris)
        assert "\n" not in str(caught.value)


def test_the_guide_runs(tmp_path, monkeypatch, capsys):
    guide = Path(__file__).parents[1] / "docs" / "guide-python.md"
    blocks = re.findall(r"^```python\n(.*?)^```", guide.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert "6 calibration scores are too few for alpha=0.05" in capsys.readouterr().out
    assert names["classifier"].is_ood(names["X_test"] * 3).mean() > 0.9
    assert names["reader"].is_ood(names["images"][~names["known"]]).mean() > 0.5


def test_a_pipeline_reaches_p_values_and_decisions(cancer):
    X, X_new, y, _ = cancer
    far = np.vstack([X_new[:20], 50 * X_new[:20]])
    pipeline = make_pipeline(StandardScaler(), BESNNClassifier(epochs=3, random_state=0)).fit(X, y)
    classifier, rows = pipeline[-1], pipeline[0].transform(far)
    np.testing.assert_array_equal(pipeline.score_samples(far), classifier.p_value(rows))
    np.testing.assert_array_equal(pipeline.score_samples(far) <= 0.1, classifier.is_ood(rows, alpha=0.1))
    assert classifier.is_ood(rows)[20:].all()


def test_rows_are_learned_from_by_their_weight():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    y = (rng.random(400) < 0.5).astype(int)  # the same inputs in both classes: only weights can decide
    for favoured in (0, 1):
        weights = np.where(y == favoured, 4.0, 1.0)
        fitted = BESNNClassifier(epochs=10, random_state=0).fit(X, y, sample_weight=weights)
        assert (fitted.predict(X) == favoured).mean() > 0.9
        mean = fitted.predict_proba(X)[:, favoured].mean()
        assert 0.7 < mean < 0.9  # 4 / 5, the share of the weight


def test_rows_without_weight_are_not_there():
    X, y = load_iris(return_X_y=True)
    junk = np.vstack([X, 1000 + X[:30]]), np.append(y, np.arange(30) + 7)
    weights = np.append(np.ones(150), np.zeros(30))
    one = BESNNClassifier(epochs=2, random_state=0).fit(X, y, sample_weight=np.ones(150))
    other = BESNNClassifier(epochs=2, random_state=0).fit(*junk, sample_weight=weights)
    np.testing.assert_array_equal(one.predict_proba(X), other.predict_proba(X))
    np.testing.assert_array_equal(one.ood_score(X), other.ood_score(X))


@pytest.mark.parametrize("names", [np.array([10, 20, 30]), np.array(["a", "b", "c"])], ids=["integers", "text"])
def test_the_detector_predicts_labels_of_the_kind_it_was_given(names):
    X, y = load_iris(return_X_y=True)
    detector = BESNNClassifier(epochs=2, random_state=0).fit(X, names[y]).detector_
    for each in (detector, Detector.from_bytes(detector.to_bytes())):
        labels = each.predict(X[:5]).labels
        assert labels.dtype.kind == names.dtype.kind
        assert set(labels.tolist()) <= set(names.tolist())
        assert each.class_names == tuple(map(str, names))


def test_one_class_is_told_from_everything_else():
    X, y = load_iris(return_X_y=True)
    fitted = BESNNClassifier(random_state=0).fit(X[y == 0], y[y == 0])
    assert (fitted.predict(X) == 0).all()
    assert fitted.p_value(X[y == 2]).max() < fitted.p_value(X[y == 0]).mean()
