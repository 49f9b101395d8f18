"""The detector: a trained model with everything it needs to decide. It is what is saved, scored with, served and exported."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from besnn.checks import as_integers, check_labels
from besnn.detection import ConformalThreshold, Decision, LabelRule, ScoreSet, fit_decision
from besnn.detection.explanation import Examples, occlusion_map
from besnn.detection.label_rule import DECISIONS, Form
from besnn.detection.predictions import Explanation, Prediction, Predictions
from besnn.detection.score_set import COMBINED
from besnn.errors import BesnnError, DataError, InputError, NotReadyError, one_line
from besnn.model import InferenceNetwork, OODClassifier, Preprocessing, WrappedNetwork
from besnn.recipe.build import build_method
from besnn.recipe.config import Recipe
from besnn.recipe.reading import parse_recipe
from besnn.storage.signature import model_key
from besnn.storage.tensor_file import (
    MODEL_FILE,
    parse_tensor_file,
    read_tensor_file,
    tensor_file_bytes,
    under,
    write_tensor_file,
)

if TYPE_CHECKING:
    from besnn.data import Dataset
    from besnn.data.encoding import TableEncoding
    from besnn.evaluation import Evaluation, ScoredSet
    from besnn.evaluation.explained import Explained

__all__ = ["Array", "Detector", "Explanation", "Prediction", "Predictions"]

Array = NDArray[Any] | Tensor
BATCH_INPUTS, BATCH_ROWS = 512, 2048
"""Inputs per pass, unless a caller chooses: rows of at most `FEW_COLUMNS` numbers are so quick that calls would cost more."""
FEW_COLUMNS = 64


class Detector:
    """A classifier that says when it does not know.

    It is trained (by `besnn.fit_detector` or your own loop), then calibrated, then used. A step taken too early raises.

    Args:
        model: trained; its classes are frozen if they were not already.
        preprocessing: from raw inputs (pixels 0 to 255, table columns) to the model's.
        class_names: by class index; integers are text in messages and files, and stay integers in predictions.
        recipe: what the model was built from; without it, `load` needs a model of the same architecture.
        scoring: the scores and which of them decides; the method's own score unless given.
        layer: the inner layer or layers whose features densities use; the output of Φ unless given.
        provenance: where it comes from; see `besnn.training.record`.
        feature_names: of a table's columns, once they are numbers.
        encoding: how the cells of a table with words, dates or gaps become numbers; None for a table of numbers.

    >>> from besnn.model import WrappedNetwork
    >>> network = WrappedNetwork(torch.nn.Identity(), num_classes=2)  # the inputs are the logits
    >>> detector = Detector(network, Preprocessing((2,), torch.zeros(2), torch.ones(2)), ["left", "right"])
    >>> known = [[step / 2, 0.0] for step in range(9, 29)]
    >>> detector.calibrate(known).predict([[0.0, 9.0], [1.0, 1.0]]).is_ood
    array([False,  True])
    """

    def __init__(
        self,
        model: OODClassifier,
        preprocessing: Preprocessing,
        class_names: Sequence[str | int],
        recipe: Recipe | None = None,
        scoring: ScoreSet | None = None,
        layer: str | None = None,
        provenance: Mapping[str, Any] | None = None,
        feature_names: Sequence[str] = (),
        encoding: "TableEncoding | None" = None,
    ) -> None:
        if len(class_names) != model.num_classes:
            found = f"{len(class_names)} class names for a model with {model.num_classes} classes"
            raise InputError(f"{found}: give one name per class")
        self.model = model.eval()
        if not model.frozen:
            model.freeze_classes()
        self.preprocessing = preprocessing.eval()
        self.class_names, self.feature_names = tuple(map(str, class_names)), tuple(feature_names)
        self.encoding = encoding
        self.integer_labels = all(isinstance(name, int) for name in class_names)
        self.recipe, self.layer, self.provenance = recipe, layer, dict(provenance or {})
        self.scoring = scoring or ScoreSet(model.evidence_kind, model.default_score)
        self.decision: Decision | None = None
        self.examples: Examples | None = None  # training inputs to show
        self._networks: dict[str | None, InferenceNetwork] = {}

    @property
    def threshold(self) -> ConformalThreshold | None:
        """The threshold of all calibration scores; None before calibration. Setting it promises nothing about labels."""
        return None if self.decision is None else self.decision.threshold

    @threshold.setter
    def threshold(self, threshold: ConformalThreshold | None) -> None:
        self.decision = None if threshold is None else Decision(threshold, LabelRule(len(self.class_names)))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one raw input, `(channels, h, w)` or `(columns,)`."""
        return self.preprocessing.input_shape

    @property
    def columns(self) -> Sequence[str] | int:
        """The columns that a table must have: their encoding, their names, or how many there are."""
        return self.encoding or self.feature_names or self.input_shape[0]

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.preprocessing.mean.device

    @property
    def scoring_device(self) -> torch.device:
        """Where scores are computed: the model's device, or the CPU if that device has no float64 (MPS)."""
        return torch.device("cpu") if self.device.type == "mps" else self.device

    def to(self, device: torch.device | str) -> Self:
        """Move the model, in place."""
        self.model.to(device)
        self.preprocessing.to(device)
        self.forget_networks()
        return self

    def forget_networks(self) -> None:
        """Drop what `network` has prepared, and remove its hooks from a wrapped network."""
        for network in self._networks.values():
            network.close()
        self._networks = {}

    def network(self, layer: str | None) -> InferenceNetwork:
        """Return the model optimised for inference, with the features of Φ or of inner layers."""
        if layer not in self._networks:
            self._networks[layer] = InferenceNetwork(self.model, self.preprocessing, layer)
        return self._networks[layer]

    def outputs(
        self, inputs: Array, layer: str | None = None, batch_size: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield evidence `[members, batch, classes]` and features `[members, batch, d]` of Φ or the named layer, per batch."""
        raw, network = self._checked(inputs), self.network(layer)  # at the call, not when the first batch is drawn
        return self._outputs(raw, network, batch_size)

    @torch.inference_mode()
    def _outputs(self, raw: Tensor, network: InferenceNetwork, batch_size: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        if batch_size is None:
            few_columns = raw.ndim == 2 and raw.shape[1] <= FEW_COLUMNS
            batch_size = BATCH_ROWS if few_columns else BATCH_INPUTS
        for batch in raw.split(batch_size) if len(raw) else ():
            evidence, features = network(batch.to(self.device))
            yield evidence.to(self.scoring_device), features.to(self.scoring_device)

    def _collected(
        self,
        inputs: Array,
        layer: str | None,
        measure: Callable[[Tensor, Tensor], dict[str, Tensor]],
        batch_size: int | None = None,
        progress: Callable[[int], None] = lambda inputs: None,
    ) -> dict[str, Tensor]:
        """Return what `measure` computes from the evidence and features of each batch, `{name: [n, ...]}`, on the CPU."""
        raw = self._checked(inputs)
        rows = raw if len(raw) else raw.new_zeros(1, *self.input_shape)  # no inputs: for the types and shapes
        batches = []
        for evidence, features in self._outputs(rows, self.network(layer), batch_size):
            found = measure(evidence, features)
            batches.append({name: (each.float() if each.is_floating_point() else each).cpu() for name, each in found.items()})
            progress(evidence.shape[1] if len(raw) else 0)
        return {name: torch.cat([batch[name] for batch in batches])[: len(raw)] for name in batches[0]}

    def score(self, inputs: Array, name: str | None = None, batch_size: int | None = None) -> NDArray[np.float32]:
        """Return the OOD score of each input, `[n]`: the one that decides, or another by name; needs no calibration."""
        name = self.scoring.name if name is None else name
        return self.scores(inputs, [name], batch_size)[name]

    def scores(
        self, inputs: Array, names: Sequence[str] | None = None, batch_size: int | None = None
    ) -> dict[str, NDArray[np.float32]]:
        """Return several scores of the same inputs, `{name: [n]}`, in one pass; all of `scoring.names` unless given."""
        names = self.scoring.names if names is None else names
        layer, measure = self.layer_for(*names), partial(self.scoring.scores, names=names)
        return {name: score.numpy() for name, score in self._collected(inputs, layer, measure, batch_size).items()}

    def calibrate(
        self,
        inputs: Array,
        alpha: float = 0.05,
        delta: float | None = None,
        *,
        labels: Array | Sequence[int] | None = None,
        per_class: bool = False,
        label_alpha: float | None = None,
        label_sets: Form = "least-ambiguous",
        max_error: float | None = None,
    ) -> Self:
        """Set what the detector promises, from held-out in-distribution inputs.

        Args:
            inputs: like those to come, and not used for training.
            alpha: P(false alarm) ≤ alpha; see `ConformalThreshold`.
            delta: the promises hold for these inputs with probability 1 − delta over their draw; on average if None.
            labels: class indices `[n]`; with them, probabilities are scaled, and accepted inputs can be `unsure`.
            per_class: all promises hold for the inputs of each predicted class.
            label_alpha: P(an accepted input's class is not in its label set) ≤ label_alpha; 0.05 unless given, if the inputs
                are enough for it. Inputs with more than one label are `unsure`.
            label_sets: `"least-ambiguous"` (the smallest) or `"adaptive"` (larger for inputs that are harder).
            max_error: as many inputs as possible are `known` such that at most this share of their labels is wrong, with
                probability 1 − delta (0.1 unless given); the others are `unsure`, however many labels they have.
        """
        found = self._collected(inputs, self.layer_for(self.scoring.name), self._answers)
        scores = found[self.scoring.name]
        truth = None if labels is None else as_integers(labels, "labels")
        if truth is not None:
            check_labels(truth, len(self.class_names), len(scores))
        self.decision = fit_decision(
            scores,
            found["log_probabilities"],
            truth,
            self.class_names,
            alpha=alpha,
            delta=delta,
            per_class=per_class,
            label_alpha=label_alpha,
            label_sets=label_sets,
            max_error=max_error,
        )
        return self

    def _answers(self, evidence: Tensor, features: Tensor, names: Sequence[str] = ()) -> dict[str, Tensor]:
        """Return scores (the one that decides, or those named), and what the members together and each alone think."""
        alone = self.model.log_probabilities(evidence.flatten(0, 1)[None]).unflatten(0, evidence.shape[:2])
        best = alone.max(dim=-1)
        answers = {"log_probabilities": self.model.log_probabilities(evidence)}
        answers |= {"member_labels": best.indices.T, "member_log_probabilities": best.values.T}
        return answers | self.scoring.scores(evidence, features, names or [self.scoring.name])

    def predict(self, inputs: Array, batch_size: int | None = None) -> Predictions:
        """Return label, probabilities, score, p-value and decision for each raw input; needs calibration."""
        self._calibrated()
        return self._predictions(self._collected(inputs, self.layer_for(self.scoring.name), self._answers, batch_size))

    def _predictions(self, found: Mapping[str, Tensor]) -> Predictions:
        score = found[self.scoring.name]
        decided = self._calibrated().decide(score, found["log_probabilities"])
        indices = decided.probabilities.argmax(dim=1).numpy()
        return Predictions(
            labels=np.asarray(self.class_names)[indices].astype(np.int64 if self.integer_labels else np.str_),
            indices=indices,
            probabilities=decided.probabilities.numpy(),
            score=score.numpy(),
            p_value=decided.p_value.numpy(),
            is_ood=decided.is_ood.numpy(),
            decision=np.asarray(DECISIONS)[decided.codes.numpy()],
            label_sets=decided.label_sets.numpy(),
            member_labels=found["member_labels"].T.numpy(),
            member_probabilities=found["member_log_probabilities"].T.exp().numpy(),
        )

    def explain(self, inputs: Array, neighbours: int = 5, heat_map: bool = True) -> Explanation:
        """Say why each raw input is known, unsure or unknown; needs calibration.

        All but the heat maps takes little longer than a prediction. A heat map takes about 170 scores of the image.
        """
        self._calibrated()
        raw, examples = self._checked(inputs), self.examples
        tails = self.scoring.combined.tails if self.scoring.combined and self.scoring.name == COMBINED else {}

        def measure(evidence: Tensor, features: Tensor) -> dict[str, Tensor]:
            nearest = {} if examples is None else examples.nearest(features, neighbours)._asdict()
            return nearest | self._answers(evidence, features, [self.scoring.name, *tails])

        found = self._collected(inputs, self.layer, measure)
        predictions = self._predictions(found)
        surprise = {name: tail.surprise(found[name]).numpy() for name, tail in tails.items()}
        maps = [occlusion_map(self.score, image) for image in raw] if heat_map and raw.ndim == 4 else None
        none = torch.zeros(0, neighbours)
        return Explanation(
            predictions,
            neighbours=found.get("rows", none.long()).numpy(),
            distances=found.get("distances", none).numpy(),
            surprise=surprise or {self.scoring.name: -np.log(predictions.p_value).astype(np.float32)},
            heat_maps=None if maps is None else np.array(maps, np.float32).reshape(len(raw), *raw.shape[2:]),
        )

    def explained(
        self, inputs: NDArray[Any], names: Sequence[str], neighbours: int = 4, heat_map: bool = True
    ) -> "list[Explained]":
        """Return explanations with the inputs, their neighbours and all names, for pages and reports."""
        from besnn.evaluation.explained import Explained

        found, examples = self.explain(inputs, neighbours, heat_map), self.examples
        sets = found.predictions.named_label_sets(self.class_names)
        columns = self.feature_names or [f"column {place + 1}" for place in range(self.input_shape[0])]
        described = list(zip(columns, self.preprocessing.std.tolist(), strict=False))
        return [
            Explained(
                name=names[row],
                decision=decision if decision != "unsure" else f"unsure: {' or '.join(sets[row])}",
                value=inputs[row],
                neighbours=inputs[:0] if examples is None else examples.inputs[found.neighbours[row]],
                classes=[] if examples is None else [self.class_names[i] for i in examples.labels[found.neighbours[row]]],
                distances=found.distances[row].tolist() if examples is not None else [],
                surprise={part: float(values[row]) for part, values in found.surprise.items()},
                members=[self.class_names[index] for index in found.predictions.member_labels[:, row]],
                heat=None if found.heat_maps is None else found.heat_maps[row],
                columns=described,
            )
            for row, decision in enumerate(found.predictions.decision.tolist())
        ]

    def layer_for(self, *names: str) -> str | None:
        """Return the inner layer or layers that scores use; None if they use none, or the output of Φ."""
        return None if all(name in self.scoring.evidence_scores for name in names) else self.layer

    def evaluate(
        self,
        known: "Dataset",
        unknown: "Mapping[str, Dataset]",
        *,
        title: str = "Detector",
        known_name: str | None = None,
        input_names: Mapping[str, Sequence[str]] | None = None,
        provenance: Mapping[str, object] | None = None,
        progress: Callable[[int], None] = lambda inputs: None,
    ) -> "Evaluation":
        """Evaluate the calibrated detector on data of its classes and on sets of inputs that it should flag.

        Args:
            known: labelled, with the detector's classes in its order.
            unknown: OOD sets by name; their labels are not used.
            title: name of the detector in the report.
            known_name: name of the known data; its own name unless given.
            input_names: by the name of a set, the name of each of its inputs; the row number unless given.
            provenance: of this evaluation; the data's and the detector's are added.
            progress: called with the number of inputs after each batch.
        """
        from besnn.evaluation import Evaluation  # slow to import, and most uses do without

        decision = self._calibrated()
        if known.labels is None:
            fix = "give one sub-folder per class, or a table with the class of every row (--label names its column)"
            raise InputError(f"{known.name} has no labels: {fix}")
        known_name, names, data = known_name or known.name, input_names or {}, [known, *unknown.values()]
        origin = {
            **(provenance or {}),
            "data": {file: digest for each in data for file, digest in each.hashes.items()},
            "data_note": "; ".join(each.note for each in data if each.note),
            "model": self.provenance,
        }
        return Evaluation(
            title=title,
            method=self.model.method,
            class_names=self.class_names,
            alpha=decision.threshold.alpha,
            threshold=decision.threshold.threshold,
            default_score=self.scoring.name,
            known_name=known_name,
            known=self._scored_set(known, names.get(known_name), progress),
            labels=known.labels,
            unknown={name: self._scored_set(each, names.get(name), progress) for name, each in unknown.items()},
            provenance=origin,
            feature_names=self.feature_names or None,
            calibrated=len(decision.threshold.scores),
            delta=decision.threshold.delta,
            label_rule=decision.labels,
        )

    def _scored_set(self, dataset: "Dataset", names: Sequence[str] | None, progress: Callable[[int], None]) -> "ScoredSet":
        """Compute what `predict` and `scores` would, in one pass."""
        from besnn.evaluation import ScoredSet

        score_names = self.scoring.names
        measure = partial(self._answers, names=score_names)
        found = self._collected(dataset.inputs, self.layer_for(*score_names), measure, progress=progress)
        decided = self._calibrated().decide(found[self.scoring.name], found["log_probabilities"])
        return ScoredSet(
            probabilities=decided.probabilities.double().numpy(),
            scores={name: found[name].double().numpy() for name in score_names},
            p_values=decided.p_value.numpy(),
            is_ood=decided.is_ood.numpy(),
            label_sets=decided.label_sets.numpy(),
            unsure=(decided.codes == DECISIONS.index("unsure")).numpy(),
            inputs=dataset.inputs,
            names=names,
        )

    def _calibrated(self) -> Decision:
        if self.decision is None:
            raise NotReadyError("the detector is not calibrated: call calibrate(inputs, alpha) with held-out inputs first")
        return self.decision

    def _checked(self, inputs: Array) -> Tensor:
        raw = _as_tensor(self._from_frame(inputs) if hasattr(inputs, "__arrow_c_stream__") else inputs)
        wants = list(self.input_shape)
        if list(raw.shape[1:]) != wants or not raw.ndim:
            raise InputError(f"inputs have shape {list(raw.shape)}: this model takes [n, {', '.join(map(str, wants))}]")
        has_pixels = self.preprocessing.dtype == torch.uint8
        if has_pixels and raw.dtype != torch.uint8:
            raise InputError(f"images have dtype {raw.dtype}: pass pixels from 0 to 255 as uint8")
        if raw.is_complex() or raw.dtype == torch.bool:
            raise InputError(f"inputs have dtype {raw.dtype}: pass numbers")
        if raw.is_floating_point() and not bool(torch.isfinite(raw).all()):
            row = int((~torch.isfinite(raw)).flatten(1).any(dim=1).nonzero()[0])
            raise InputError(f"input {row} contains NaN or infinite values: remove the row or fill them in")
        # A number too large for float32 becomes infinite, and preprocessing clips it.
        return raw if has_pixels else raw.float()

    def _from_frame(self, frame: Any) -> Array:
        """Return the numbers in a frame of pandas, polars or Arrow; its columns are found by name, in any order."""
        from besnn.data.encoding import frame_rows  # Arrow is not needed otherwise

        if isinstance(self.columns, int):
            return np.asarray(frame)  # columns without names are taken in their order
        rows = frame_rows(frame, self.columns)
        for row, error in enumerate(rows.errors):
            if error:
                raise InputError(f"input {row}: {error}: remove the row or fill it in")
        return rows.inputs

    def save(self, path: str | os.PathLike[str], half: bool = False) -> None:
        """Write one safetensors file, atomically. With `half`, weight matrices have 16 bits, and the file half the size."""
        write_tensor_file(Path(path), MODEL_FILE, *self._to_parts(half))

    def to_bytes(self, half: bool = False) -> bytes:
        """Return the content of the file that `save` writes."""
        return tensor_file_bytes(MODEL_FILE, *self._to_parts(half))

    def _to_parts(self, half: bool = False) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, wrapped = self.model.file_parts()
        if half:
            matrices = {name for name, value in tensors.items() if value.dtype == torch.float32 and value.ndim > 1}
            tensors = {name: value.half() if name in matrices else value for name, value in tensors.items()}
        tensors |= {"preprocessing/mean": self.preprocessing.mean, "preprocessing/std": self.preprocessing.std}
        scoring_tensors, scoring = self.scoring.state()
        tensors, calibration = tensors | scoring_tensors, None
        if self.decision is not None:
            calibration_tensors, calibration = self.decision.state()
            tensors |= {f"calibration/{name}": value for name, value in calibration_tensors.items()}
        if self.examples is not None:
            tensors |= {f"examples/{name}": value for name, value in self.examples.state().items()}
        header = {
            "recipe": None if self.recipe is None else self.recipe.model_dump(mode="json"),
            "input_shape": list(self.input_shape),
            "class_names": [int(name) if self.integer_labels else name for name in self.class_names],
            "feature_names": list(self.feature_names),
            "encoding": None if self.encoding is None else self.encoding.settings(),
            "scoring": scoring,
            "layer": self.layer,
            "mirror": self.model.mirror,
            "wrapped": wrapped,
            "preprocessing": self.preprocessing.settings(),
            "calibration": calibration,
            "provenance": self.provenance,
        }
        return tensors, header

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], model: nn.Module | None = None, key: str | os.PathLike[str] | None = None
    ) -> Self:
        """Read a file that `save` wrote; nothing in it is executed.

        For a detector around a network of your own, pass the network that was wrapped, or an untrained `model` of the
        architecture that was trained. With a `key`, a file that holds it (the one that `$BESNN_MODEL_KEY` names unless given),
        a model that was not signed with it (`besnn sign`) is refused.
        """
        return cls._from_parts(*read_tensor_file(Path(path), MODEL_FILE, model_key(key)), model, f"model file {path}")

    @classmethod
    def from_bytes(cls, content: bytes | memoryview, model: nn.Module | None = None) -> Self:
        """Restore a detector from the content of its file; see `load`. No signature is checked."""
        return cls._from_parts(*parse_tensor_file(bytes(content), MODEL_FILE), model, "the model file")

    @classmethod
    def _from_parts(cls, tensors: dict[str, Tensor], header: dict[str, Any], model: nn.Module | None, file: str) -> Self:
        wrapped = header.get("wrapped") is not None
        if model is None and header.get("recipe") is None and not wrapped:
            raise InputError(f"{file} holds a network of your own: pass an untrained model like it, Detector.load(path, model)")
        try:
            return cls._restored(tensors, header, cls._restored_model(tensors, header, model))
        except (LookupError, TypeError, RuntimeError, ValueError, AttributeError, ArithmeticError) as error:
            if wrapped and isinstance(error, BesnnError):
                raise  # the network that was passed is not the file's
            reason = one_line(error)[:300]
            raise DataError(f"{file} does not match its own description ({reason}): train the model again") from None

    @classmethod
    def _restored_model(cls, tensors: dict[str, Tensor], header: dict[str, Any], model: nn.Module | None) -> OODClassifier:
        if header.get("wrapped") is not None:
            return WrappedNetwork.from_file_parts(tensors, header["wrapped"], len(header["class_names"]), model)
        if model is None:
            with torch.device("meta"):  # nothing is allocated before the file's tensors are known to fit
                recipe = parse_recipe(header["recipe"])
                model, _ = build_method(recipe, tuple(header["input_shape"]), len(header["class_names"]))
            model.float()  # whatever default the process has set
        if not isinstance(model, OODClassifier):
            raise TypeError(f"model is a {type(model).__name__}, not a besnn.model.OODClassifier")
        weights = under("model/", tensors)
        own = model.state_dict()
        for name, value in weights.items():
            expected = own[name].dtype if name in own else torch.float32  # class features are not there yet
            if value.dtype == torch.float16 and expected == torch.float32:
                weights[name] = value.float()
            elif value.dtype != expected:
                raise TypeError(f"{name} has dtype {value.dtype}, not {expected}")
        model.eval()
        model.load_state_dict(weights, assign=True)
        return model

    @classmethod
    def _restored(cls, tensors: dict[str, Tensor], header: dict[str, Any], model: OODClassifier) -> Self:
        mirror = header.get("mirror", model.mirror)  # a network of the user's own has no recipe to say so
        if not isinstance(mirror, bool):
            raise TypeError(f"mirror is {mirror!r}, not true or false")
        model.mirror = mirror
        moments = (tensors[f"preprocessing/{name}"].float() for name in ("mean", "std"))
        preprocessing = Preprocessing(tuple(header["input_shape"]), *moments, **header.get("preprocessing", {}))
        layer = header["layer"]
        if not isinstance(layer, str | None) or not all(isinstance(name, str) for name in header["feature_names"]):
            raise TypeError("layer and feature_names are not text")
        if not all(type(name) in (str, int) for name in header["class_names"]):
            raise TypeError("class_names are neither text nor integers")
        detector = cls(
            model,
            preprocessing,
            header["class_names"],
            None if header["recipe"] is None else parse_recipe(header["recipe"]),
            ScoreSet.from_state(model.evidence_kind, tensors, header["scoring"]),
            layer,
            header["provenance"],
            header["feature_names"],
            _encoding(header.get("encoding")),
        )
        if (calibration := header["calibration"]) is not None:
            detector.decision = Decision.from_state(under("calibration/", tensors), calibration, len(header["class_names"]))
        if examples := under("examples/", tensors):
            detector.examples = Examples.from_state(examples)
        return detector


def _encoding(settings: Sequence[dict[str, Any]] | None) -> "TableEncoding | None":
    if settings is None:
        return None
    from besnn.data.encoding import TableEncoding

    return TableEncoding.from_settings(settings)


def _as_tensor(inputs: Array) -> Tensor:
    if isinstance(inputs, Tensor):
        return inputs
    try:
        return torch.from_numpy(np.require(inputs, requirements=["C", "W"]))  # torch warns about read-only arrays
    except (TypeError, ValueError) as error:
        reason = one_line(error)
        raise InputError(f"inputs are not an array of numbers ({reason}): pass one number per column or pixel") from None
