"""The detector: a trained model with all it needs to decide. It is what is saved, scored with, served and exported."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from besnn.detection import ConformalThreshold
from besnn.detection.scoring import Scoring
from besnn.errors import DataError, InputError, NotReadyError, one_line
from besnn.model import InferenceNetwork, OODClassifier, Preprocessing
from besnn.predictions import Predictions
from besnn.recipe.build import build_method
from besnn.recipe.config import Recipe
from besnn.recipe.reading import parse_recipe
from besnn.storage.model_file import read_model_file, write_model_file

Array = NDArray[Any] | Tensor


class Detector:
    """A classifier that says when it does not know.

    Its life: trained (by `besnn.fit_detector` or your own loop), then calibrated, then used. A step taken too early says so.

    Args:
        model: trained; its classes are frozen if they were not.
        preprocessing: from raw inputs (pixels 0 to 255, table columns) to the model's.
        class_names: by class index.
        recipe: what the model was built from; with None the file can only be loaded with a model of the same kind at hand.
        scoring: the score to decide by; the method's own unless given.
        layer: the layer whose features density scores use, or several (see `besnn.model.feature_layers.layer_groups`); Φ's
            output unless given.
        provenance: where it comes from; see `besnn.training.record`.
        feature_names: names of table columns.
    """

    def __init__(
        self,
        model: OODClassifier,
        preprocessing: Preprocessing,
        class_names: Sequence[str],
        recipe: Recipe | None = None,
        scoring: Scoring | None = None,
        layer: str | None = None,
        provenance: Mapping[str, Any] | None = None,
        feature_names: Sequence[str] = (),
    ) -> None:
        if len(class_names) != model.num_classes:
            raise InputError(f"{len(class_names)} class names for a model of {model.num_classes} classes: give one for each")
        self.model = model.eval()
        if not model.frozen:
            model.freeze_classes()
        self.preprocessing = preprocessing.eval()
        self.class_names, self.feature_names = tuple(class_names), tuple(feature_names)
        self.recipe, self.layer, self.provenance = recipe, layer, dict(provenance or {})
        self.scoring = scoring or Scoring(model.evidence_kind, model.default_score)
        self.threshold: ConformalThreshold | None = None
        self._networks: dict[str | None, InferenceNetwork] = {}

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one raw input, `(channels, h, w)` or `(columns,)`."""
        return self.preprocessing.input_shape

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.preprocessing.mean.device

    @property
    def scoring_device(self) -> torch.device:
        """Where scores are computed: the model's device, or the CPU if that device has no float64 (MPS)."""
        return torch.device("cpu") if self.device.type == "mps" else self.device

    def to(self, device: torch.device | str) -> Self:
        """Moves the model, in place."""
        self.model.to(device)
        self.preprocessing.to(device)
        self._networks = {}
        return self

    def network(self, layer: str | None) -> InferenceNetwork:
        """The fast equal of the model, with the features of Φ or of inner layers."""
        if layer not in self._networks:
            self._networks[layer] = InferenceNetwork(self.model, self.preprocessing, layer)
        return self._networks[layer]

    def outputs(self, inputs: Array, layer: str | None = None, batch_size: int = 512) -> Iterator[tuple[Tensor, Tensor]]:
        """Evidence `[members, batch, classes]` and features `[members, batch, d]` of Φ or the named layer, batch by batch."""
        raw, network = self._raw(inputs), self.network(layer)  # at the call, not when the first batch is asked for
        return self._outputs(raw, network, batch_size)

    @torch.inference_mode()
    def _outputs(self, raw: Tensor, network: InferenceNetwork, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in raw.split(batch_size) if len(raw) else ():
            evidence, features = network(batch.to(self.device))
            yield evidence.to(self.scoring_device), features.to(self.scoring_device)

    def score(self, inputs: Array, name: str | None = None, batch_size: int = 512) -> NDArray[np.float32]:
        """The OOD score of each input, `[n]`: the one that decides, or another by name; no calibration needed."""
        layer = self.layer_for(self.scoring.name if name is None else name)
        parts = [self.scoring.score(e, f, name).float().cpu() for e, f in self.outputs(inputs, layer, batch_size)]
        return torch.cat([torch.empty(0), *parts]).numpy()

    def calibrate(self, inputs: Array, alpha: float = 0.05, delta: float | None = None) -> Self:
        """Sets the threshold from held-out in-distribution inputs, so that P(false alarm) ≤ alpha; see `ConformalThreshold`."""
        self.threshold = ConformalThreshold(self.score(inputs), alpha, delta)
        return self

    def predict(self, inputs: Array, batch_size: int = 512) -> Predictions:
        """Label, probabilities, score, p-value and decision for each raw input.

        Raises:
            NotReadyError: the detector is not calibrated.
        """
        if self.threshold is None:
            raise NotReadyError("the detector is not calibrated: call calibrate(inputs, alpha) with held-out inputs first")
        layer = self.layer_for(self.scoring.name)
        log_probabilities, scores = [torch.empty(0, len(self.class_names))], [torch.empty(0)]
        opinions = [torch.empty(self.model.members, 0)]
        choices = [torch.empty(self.model.members, 0, dtype=torch.int64)]
        for evidence, features in self.outputs(inputs, layer, batch_size):
            log_probabilities.append(self.model.log_probabilities(evidence).float().cpu())
            scores.append(self.scoring.score(evidence, features).float().cpu())
            best = torch.stack([self.model.log_probabilities(member[None]) for member in evidence]).max(dim=-1)
            opinions.append(best.values.float().cpu())
            choices.append(best.indices.cpu())
        by_class, score = torch.cat(log_probabilities).exp(), torch.cat(scores)
        indices = by_class.argmax(dim=1).numpy()
        return Predictions(
            labels=np.asarray(self.class_names)[indices],
            indices=indices,
            probabilities=by_class.numpy(),
            score=score.numpy(),
            p_value=self.threshold.p_values(score.double()).numpy(),
            is_ood=self.threshold.is_ood(score).numpy(),
            member_labels=torch.cat(choices, dim=1).numpy(),
            member_probabilities=torch.cat(opinions, dim=1).exp().numpy(),
        )

    def layer_for(self, score: str) -> str | None:
        """The inner layer or layers that a score looks at; None where it needs none, or Φ's output."""
        return None if score in self.scoring.evidence_scores else self.layer

    def _raw(self, inputs: Array) -> Tensor:
        raw = _as_tensor(inputs)
        wants = list(self.input_shape)
        if list(raw.shape[1:]) != wants or not raw.ndim:
            raise InputError(f"inputs have shape {list(raw.shape)}: this model takes [n, {', '.join(map(str, wants))}]")
        is_image = len(wants) == 3
        if is_image and raw.dtype != torch.uint8:
            raise InputError(f"images have dtype {raw.dtype}: pass pixels from 0 to 255 as uint8")
        if raw.is_complex() or raw.dtype == torch.bool:
            raise InputError(f"inputs have dtype {raw.dtype}: pass numbers")
        if raw.is_floating_point() and not bool(torch.isfinite(raw).all()):
            row = int((~torch.isfinite(raw)).flatten(1).any(dim=1).nonzero()[0])
            raise InputError(f"input {row} holds NaN or infinite values: remove the row or fill them in")
        # A number too large for float32 becomes infinite, and preprocessing brings it back to the farthest that it knows.
        return raw if is_image else raw.float()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes one safetensors file, atomically."""
        tensors = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {"preprocessing/mean": self.preprocessing.mean, "preprocessing/std": self.preprocessing.std}
        scoring_tensors, scoring = self.scoring.state()
        tensors |= scoring_tensors
        calibration = None
        if self.threshold is not None:
            tensors["calibration/scores"] = self.threshold.scores
            calibration = {"alpha": self.threshold.alpha, "delta": self.threshold.delta}
        header = {
            "recipe": None if self.recipe is None else self.recipe.model_dump(mode="json"),
            "input_shape": list(self.input_shape),
            "class_names": list(self.class_names),
            "feature_names": list(self.feature_names),
            "scoring": scoring,
            "layer": self.layer,
            "mirror": self.model.mirror,
            "calibration": calibration,
            "provenance": self.provenance,
        }
        write_model_file(Path(path), tensors, header)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: OODClassifier | None = None) -> Self:
        """Reads a file that `save` wrote; nothing in it is executed.

        Args:
            path: the file.
            model: for a detector around a network of your own: an untrained model of the same architecture.
        """
        path = Path(path)
        tensors, header = read_model_file(path)
        if model is None and header.get("recipe") is None:
            raise InputError(
                f"model file {path} holds a network of your own: pass an untrained model like it, Detector.load(path, model)"
            )
        try:
            return cls._from_parts(tensors, header, model)
        except (LookupError, TypeError, RuntimeError, ValueError) as error:
            reason = one_line(error)[:300]
            raise DataError(f"model file {path} does not fit its own description ({reason}): train the model again") from None

    @classmethod
    def _from_parts(cls, tensors: dict[str, Tensor], header: dict[str, Any], model: OODClassifier | None) -> Self:
        recipe = None if header["recipe"] is None else parse_recipe(header["recipe"])
        if model is None:
            assert recipe is not None
            with torch.device("meta"), _float32():  # nothing is allocated before the file's tensors are known to fit
                model, _ = build_method(recipe, tuple(header["input_shape"]), len(header["class_names"]))
        weights = {name.removeprefix("model/"): value for name, value in tensors.items() if name.startswith("model/")}
        for name, own in model.state_dict().items():
            if name in weights and weights[name].dtype != own.dtype:
                raise TypeError(f"{name} is of {weights[name].dtype}, not {own.dtype}")
        model.eval()
        model.load_state_dict(weights, assign=True)
        mirror = header.get("mirror", model.mirror)  # no recipe tells it of a network of the user's own
        if not isinstance(mirror, bool):
            raise TypeError(f"mirror is {mirror!r}, not true or false")
        model.mirror = mirror
        preprocessing = Preprocessing(tuple(header["input_shape"]), tensors["preprocessing/mean"], tensors["preprocessing/std"])
        layer = header["layer"]
        if not isinstance(layer, str | None) or not all(isinstance(name, str) for name in header["feature_names"]):
            raise TypeError("layer and feature_names are not text")
        detector = cls(
            model,
            preprocessing,
            header["class_names"],
            recipe,
            Scoring.from_state(model.evidence_kind, tensors, header["scoring"]),
            layer,
            header["provenance"],
            header["feature_names"],
        )
        if (calibration := header["calibration"]) is not None:
            detector.threshold = ConformalThreshold(tensors["calibration/scores"], calibration["alpha"], calibration["delta"])
        return detector


@contextmanager
def _float32() -> Iterator[None]:
    """Torch's default for new tensors meanwhile, as model files have them, whatever the process has set."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _as_tensor(inputs: Array) -> Tensor:
    """Anything like an array as a tensor, without a copy where that can be."""
    if isinstance(inputs, Tensor):
        return inputs
    try:
        return torch.from_numpy(np.require(inputs, requirements=["C", "W"]))  # torch warns of arrays that it may not write to
    except (TypeError, ValueError) as error:
        raise InputError(
            f"inputs are no array of numbers ({one_line(error)}): pass one number for each column or pixel"
        ) from None
