"""A besnn score as a postprocessor of OpenOOD 1.5: `Evaluator(net, ..., postprocessor=Postprocessor())`."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from besnn.detection.score_set import COMBINED
from besnn.detector import Detector
from besnn.errors import InputError, NotReadyError
from besnn.wrapping.loaders import optional_class, wrap_loader

Base = optional_class("openood.postprocessors", "BasePostprocessor")  # its evaluator takes nothing else


class Postprocessor(Base):  # type: ignore[misc,valid-type]  # it is known at run time
    """An OpenOOD `BasePostprocessor`, or, where OpenOOD is not installed, a class with its methods and attributes.

    Its confidence is high for known inputs. `setup` fits the score to the training loader, with the validation loader as
    held-out inputs. Nothing is searched for, so `APS_mode` is off and `hyperparam_search_done` is set.
    """

    def __init__(self, config: object = None, score: str = COMBINED) -> None:
        self.config, self.score = config, score
        self.APS_mode, self.hyperparam_search_done = False, True
        self.detector: Detector | None = None

    def setup(
        self, net: nn.Module, id_loader_dict: Mapping[str, Any], ood_loader_dict: Mapping[str, Any] | None = None
    ) -> None:
        """Fit the score; OOD loaders are not looked at."""
        loaders = [id_loader_dict[name] for name in ("main_train_loader", "train") if name in id_loader_dict]
        if not loaders:
            raise InputError(f"the loaders are {', '.join(id_loader_dict)}: pass the training data as 'train'")
        if self.detector is None:
            net.eval()  # as the evaluator does, after this
            self.detector = wrap_loader(net, loaders[0], id_loader_dict.get("val"), self.score)

    @torch.no_grad()
    def postprocess(self, net: nn.Module, data: Tensor) -> tuple[Tensor, Tensor]:
        """Return the predicted classes and confidences of a batch, `[batch]` each."""
        if self.detector is None:
            raise NotReadyError("the postprocessor is not set up: call setup(net, id_loader_dict, ood_loader_dict) first")
        detector = self.detector
        outputs = list(detector.outputs(data, detector.layer, batch_size=len(data)))
        ((evidence, features),) = outputs
        return evidence[0].argmax(dim=1), -detector.scoring.score(evidence, features)

    def inference(
        self, net: nn.Module, data_loader: Iterable[Mapping[str, Tensor]], progress: bool = True
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return predictions, confidences and labels of a loader as arrays."""
        rows = [(*self.postprocess(net, batch["data"]), batch["label"]) for batch in data_loader]
        predictions, confidences, labels = (
            torch.cat([each.cpu() for each in column]).numpy() for column in zip(*rows, strict=True)
        )
        return predictions.astype(np.int64), confidences, labels.astype(np.int64)
