"""What `/v1/predict` is asked and answers."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from besnn.predictions import Predictions


class PredictQuery(BaseModel):
    """What can be asked of a prediction."""

    model_config = ConfigDict(extra="forbid")

    members: bool = Field(default=False, description="Also tell each member's own opinion.")
    observe: bool = Field(default=True, description="Count the inputs as traffic, in the metrics and for the drift alarm.")


class Opinion(BaseModel):
    """What one member says."""

    label: str
    probability: float


class PredictionRow(BaseModel):
    """What the detector says of one input."""

    label: str = Field(description="The most probable class.")
    probabilities: list[float] = Field(description="Of each class, in the order of `/v1/model`'s class_names.")
    score: float = Field(description="Higher is stranger.")
    p_value: float = Field(description="The share of known inputs that are at least as strange.")
    is_ood: bool = Field(description="Whether the input is declared unknown.")
    members: list[Opinion] | None = Field(default=None, description="Each member's own opinion, if asked for.")


class PredictResponse(BaseModel):
    """One row an input, in their order."""

    predictions: list[PredictionRow]


def prediction_rows(predictions: Predictions, class_names: Sequence[str], *, members: bool) -> list[dict[str, Any]]:
    """Predictions as the rows of `PredictResponse`, without the cost of checking each."""
    columns = {
        "label": predictions.labels,
        "probabilities": predictions.probabilities,
        "score": predictions.score,
        "p_value": predictions.p_value,
        "is_ood": predictions.is_ood,
    }
    plain = [column.tolist() for column in columns.values()]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*plain, strict=True)]
    if members:
        labels, probabilities = predictions.member_labels.T.tolist(), predictions.member_probabilities.T.tolist()
        for row, chosen, sure in zip(rows, labels, probabilities, strict=True):
            own = zip(chosen, sure, strict=True)
            row["members"] = [{"label": class_names[label], "probability": probability} for label, probability in own]
    return rows
