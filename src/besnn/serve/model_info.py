"""What `/v1/model` tells of the detector."""

from typing import Literal

import numpy as np
from pydantic import BaseModel, Field

from besnn.serve.service import Service
from besnn.version import __version__


class Calibration(BaseModel):
    """How the detector decides."""

    score: str = Field(description="The name of the score.")
    threshold: float = Field(description="τ: an input with a higher score is declared unknown.")
    alpha: float = Field(description="At most this share of known inputs is declared unknown.")
    delta: float | None = Field(description="That holds with probability 1 − delta over calibration data; on average if null.")
    inputs: int = Field(description="How many held-out inputs the threshold is from.")
    quantiles: list[float] = Field(description="0 %, 5 %, ..., 100 % quantiles of their scores.")


class ModelInfo(BaseModel):
    """What is being served."""

    name: str
    besnn: str = Field(description="The version of besnn.")
    method: str
    members: int
    mirror: bool = Field(description="Whether every second member looks at mirror images.")
    kind: Literal["images", "table"]
    input_shape: list[int] = Field(description="Of one input: channels, height and width, or the number of columns.")
    feature_names: list[str] = Field(description="Of table columns; may be empty.")
    class_names: list[str]
    mean: list[float] = Field(description="Of each channel or column in training.")
    std: list[float] = Field(description="Of each channel or column in training.")
    calibration: Calibration
    max_rows: int = Field(description="Most inputs in one request.")


def model_info(service: Service) -> ModelInfo:
    """The description of a service's detector."""
    detector, threshold = service.detector, service.threshold
    scores = threshold.scores.double().cpu().numpy()
    return ModelInfo(
        name=service.settings.model_name,
        besnn=__version__,
        method=detector.model.method,
        members=detector.model.members,
        mirror=detector.model.mirror,
        kind="images" if service.reader.is_image else "table",
        input_shape=list(detector.input_shape),
        feature_names=list(detector.feature_names),
        class_names=list(detector.class_names),
        mean=detector.preprocessing.mean.tolist(),
        std=detector.preprocessing.std.tolist(),
        calibration=Calibration(
            score=detector.scoring.name,
            threshold=threshold.threshold,
            alpha=threshold.alpha,
            delta=threshold.delta,
            inputs=len(scores),
            quantiles=np.quantile(scores, np.linspace(0, 1, 21)).tolist(),
        ),
        max_rows=service.settings.max_rows,
    )
