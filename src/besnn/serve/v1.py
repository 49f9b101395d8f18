"""`/v1`: predictions, the model, examples and drift, as JSON made for people and pages."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from besnn.detector import Explanation, Predictions
from besnn.serve.bodies import JSON, MULTIPART
from besnn.serve.drift import DriftReport
from besnn.serve.examples import Example, encode_input
from besnn.serve.inputs import InputReader
from besnn.serve.problems import Problem, problem_responses
from besnn.serve.service import Service
from besnn.version import __version__

MAX_EXPLAINED = 16
"""Most inputs in one request for explanations."""


class PredictQuery(BaseModel):
    """Parameters of a prediction."""

    model_config = ConfigDict(extra="forbid")

    members: bool = Field(default=False, description="Also return each member's own opinion.")
    fdr: float | None = Field(
        default=None, gt=0, lt=1, description="Flag so that on average at most this share of the request's flags is false."
    )
    observe: bool = Field(default=True, description="Count the inputs as traffic, in the metrics and for the drift alarm.")


class Opinion(BaseModel):
    """The prediction of one member."""

    label: str
    probability: float


class PredictionRow(BaseModel):
    """The prediction for one input."""

    label: str = Field(description="The most probable class.")
    probabilities: list[float] = Field(description="One per class, in the order of `/v1/model`'s class_names.")
    score: float = Field(description="Higher is stranger.")
    p_value: float = Field(description="The share of known inputs that are at least as strange.")
    is_ood: bool = Field(description="Whether the input is declared unknown.")
    decision: Literal["known", "unsure", "unknown"] = Field(description="Unsure: accepted, but its label is not clear.")
    label_set: list[str] = Field(description="The labels that the input may have, the most probable first; none if unknown.")
    members: list[Opinion] | None = Field(default=None, description="Each member's own opinion, if requested.")


class PredictResponse(BaseModel):
    """One prediction per input, in order."""

    predictions: list[PredictionRow]


class ExplainQuery(BaseModel):
    """Parameters of an explanation."""

    model_config = ConfigDict(extra="forbid")

    heat_map: bool = Field(default=False, description="Also return a heat map of each image; it takes about 170 predictions.")


class Neighbour(BaseModel):
    """A training example near an input."""

    label: str
    distance: float = Field(description="1 − cos of the features, averaged over the members.")
    input: str | list[float] = Field(description="A PNG file in base64, or the row's numbers.")


class Reason(BaseModel):
    """Why one input was decided as it was."""

    prediction: PredictionRow
    neighbours: list[Neighbour] = Field(description="The nearest training examples that the model keeps, nearest first.")
    surprise: dict[str, float] = Field(description="−log p by part of the score: how strange each found it.")
    heat_map: list[list[float]] | None = Field(default=None, description="How much each place of an image adds to the score.")


class ExplainResponse(BaseModel):
    """One explanation per input, in order."""

    explanations: list[Reason]


class ExamplesResponse(BaseModel):
    """Inputs to try."""

    examples: list[Example]


class ClassThreshold(BaseModel):
    """The threshold for inputs that are predicted as one class."""

    threshold: float
    inputs: int = Field(description="How many held-out inputs it is computed from.")


class LabelPromises(BaseModel):
    """What holds for inputs that are not declared unknown."""

    alpha: float = Field(description="At most this share of label sets misses the true class.")
    form: Literal["least-ambiguous", "adaptive"]
    max_error: float | None = Field(description="At most this share of labels of known inputs is wrong; null: not promised.")
    delta: float | None = Field(description="That holds with probability 1 − delta over calibration data.")
    temperature: float = Field(description="Of the probabilities.")
    inputs: int = Field(description="How many held-out inputs this is computed from.")


class Calibration(BaseModel):
    """How the detector decides."""

    score: str = Field(description="The name of the score.")
    threshold: float = Field(description="τ: an input with a higher score is declared unknown.")
    alpha: float = Field(description="At most this share of known inputs is declared unknown.")
    delta: float | None = Field(description="That holds with probability 1 − delta over calibration data; on average if null.")
    inputs: int = Field(description="How many held-out inputs the threshold is computed from.")
    quantiles: list[float] = Field(description="0 %, 5 %, ..., 100 % quantiles of their scores.")
    by_class: list[ClassThreshold] | None = Field(description="One per class, if the label decides which threshold applies.")
    labels: LabelPromises | None = Field(
        description="What is promised about labels; null if there were none to calibrate with."
    )


class ModelInfo(BaseModel):
    """The served model."""

    name: str
    besnn: str = Field(description="The version of besnn.")
    method: str
    members: int
    mirror: bool = Field(description="Whether every second member sees mirror images.")
    kind: Literal["images", "table"]
    input_shape: list[int] = Field(description="Of one input: channels, height and width, or the number of columns.")
    feature_names: list[str] = Field(description="Names of table columns; may be empty.")
    class_names: list[str]
    mean: list[float] = Field(description="Of each channel or column in training.")
    std: list[float] = Field(description="Of each channel or column in training.")
    calibration: Calibration
    max_rows: int = Field(description="Most inputs in one request.")


def model_info(service: Service) -> ModelInfo:
    """Describe a service's model."""
    detector, decision, threshold = service.detector, service.detector.decision, service.threshold
    assert decision is not None
    by_class = decision.by_class.thresholds.values() if decision.by_class is not None else None
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
            by_class=by_class and [ClassThreshold(threshold=each.threshold, inputs=len(each.scores)) for each in by_class],
            labels=None if decision.labels.alpha is None else LabelPromises(**decision.labels.state()[1]),
        ),
        max_rows=service.settings.max_rows,
    )


def v1_router(service: Service, examples: Sequence[Example]) -> APIRouter:
    """Make the routes under `/v1`."""
    router = APIRouter(prefix="/v1", tags=["besnn"])
    info = model_info(service)
    reader = service.reader

    post = partial(router.post, responses=problem_responses(400, 408, 413, 415, 429, 504), openapi_extra=_describe_body(reader))
    inputs_of = partial(service.parsed, media_types=reader.media_types, parse=reader.read, has_images=reader.holds_files)

    @post(
        "/predict",
        summary="Label, probabilities, score, p-value and decision for each input",
        response_model=PredictResponse,
    )
    async def predict(request: Request, query: Annotated[PredictQuery, Query()]) -> Response:
        async with inputs_of(request) as inputs:
            predictions = await service.predict(inputs, observe=query.observe)
            if query.fdr is not None:
                predictions = predictions.control_fdr(query.fdr)
        rows = prediction_rows(predictions, info.class_names, members=query.members)
        return Response(to_json({"predictions": rows}), media_type=JSON)

    @post("/explain", summary="Why inputs are known, unsure or unknown", response_model=ExplainResponse)
    async def explain(request: Request, query: Annotated[ExplainQuery, Query()]) -> Response:
        async with inputs_of(request) as inputs:
            if len(inputs) > MAX_EXPLAINED:
                raise Problem(422, "input-invalid", f"too many inputs to explain: send {MAX_EXPLAINED} or fewer")
            found = await service.explain(inputs, heat_map=query.heat_map)
        return Response(to_json({"explanations": explanation_rows(found, service)}), media_type=JSON)

    @router.get("/model", summary="The served model")
    async def describe_model() -> ModelInfo:
        return info

    @router.get("/examples", summary="Inputs to try")
    async def show_examples() -> ExamplesResponse:
        return ExamplesResponse(examples=list(examples))

    @router.get("/drift", summary="Recent traffic and the drift alarm")
    def report_drift() -> DriftReport:
        return service.traffic.report()

    return router


def explanation_rows(found: Explanation, service: Service) -> list[dict[str, Any]]:
    """Return explanations as rows of `ExplainResponse`."""
    names, examples = service.detector.class_names, service.detector.examples
    rows: list[dict[str, Any]] = []
    for place, prediction in enumerate(prediction_rows(found.predictions, names, members=True)):
        row: dict[str, Any] = {"prediction": prediction, "neighbours": []}
        row["surprise"] = {part: float(values[place]) for part, values in found.surprise.items()}
        if examples is not None:
            nearest = zip(found.neighbours[place].tolist(), found.distances[place].tolist(), strict=True)
            row["neighbours"] = [
                {"label": names[examples.labels[i]], "distance": far, "input": encode_input(examples.inputs[i])}
                for i, far in nearest
            ]
        if found.heat_maps is not None:
            row["heat_map"] = found.heat_maps[place].tolist()
        rows.append(row)
    return rows


def prediction_rows(predictions: Predictions, class_names: Sequence[str], *, members: bool) -> list[dict[str, Any]]:
    """Return predictions as rows of `PredictResponse`, without the cost of validating each."""
    names = "probabilities", "score", "p_value", "is_ood", "decision"
    columns = {"label": predictions.labels.astype(str), **{name: getattr(predictions, name) for name in names}}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*(each.tolist() for each in columns.values()), strict=True)]
    for row, names_in_set in zip(rows, predictions.named_label_sets(class_names), strict=True):
        row["label_set"] = names_in_set
    if members:
        labels, probabilities = predictions.member_labels.T.tolist(), predictions.member_probabilities.T.tolist()
        for row, chosen, sure in zip(rows, labels, probabilities, strict=True):
            own = zip(chosen, sure, strict=True)
            row["members"] = [{"label": class_names[label], "probability": probability} for label, probability in own]
    return rows


def _describe_body(reader: InputReader) -> dict[str, Any]:
    """Describe the bodies of `/predict`; the example is blank, because anyone may read the description."""
    example = {"inputs": [encode_input(np.zeros(reader.input_shape, np.uint8))]}
    schema = {"$ref": f"#/components/schemas/{reader.request.__name__}"}
    content: dict[str, Any] = {JSON: {"schema": schema, "example": example}}
    if reader.is_image:
        file = {"type": "string", "format": "binary", "description": "A PNG, JPEG or WebP file."}
        parts = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "array", "items": file}}
        content[MULTIPART] = {"schema": parts, "example": {"images": ["(a file)", "(another)"]}}
    return {"requestBody": {"required": True, "content": content}}
