"""What the OpenAPI description says beyond what the framework finds out itself: bodies, examples, problems."""

import math
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from besnn.serve.examples import blank_input
from besnn.serve.inputs import JSON, MULTIPART, InputReader
from besnn.serve.problems import ProblemBody
from besnn.serve.protocol import ModelMetadata

_REASONS = {
    400: "The body, or a header, cannot be read.",
    401: "The token is missing or wrong.",
    403: "A page of another site asks.",
    404: "There is no such model.",
    408: "The body did not arrive in time.",
    413: "The body is too long, or its images unpack to too many pixels.",
    415: "The body is of a media type that is not taken.",
    421: "The service does not go by the name in the Host header.",
    422: "The inputs or parameters are wrong.",
    429: "The service is busy; Retry-After says for how many seconds.",
    500: "The service failed.",
    504: "There was no answer within the deadline.",
}
_LONGEST_EXAMPLE = 1024  # numbers


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The description of answers that are problems.

    >>> list(problems(404, 429))
    [404, 429]
    """
    content = {"application/problem+json": {"schema": _reference(ProblemBody)}}
    return {status: {"description": _REASONS[status], "content": content} for status in statuses}


def predict_body(reader: InputReader) -> dict[str, Any]:
    """The bodies that `/v1/predict` takes; the example is blank, for anybody may read the description."""
    example = {"inputs": [blank_input(reader.input_shape)]}
    content: dict[str, Any] = {JSON: {"schema": _reference(reader.request), "example": example}}
    if reader.is_image:
        file = {"type": "string", "format": "binary", "description": "A PNG, JPEG or WebP file."}
        parts = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "array", "items": file}}
        content[MULTIPART] = {"schema": parts, "example": {"images": ["(a file)", "(another)"]}}
    return {"requestBody": {"required": True, "content": content}}


def infer_body(request_model: type[BaseModel], metadata: ModelMetadata) -> dict[str, Any]:
    """The body of an inference request."""
    described: dict[str, Any] = {"schema": _reference(request_model)}
    tensor = metadata.inputs[0]
    numbers = math.prod(tensor.shape[1:])
    if numbers <= _LONGEST_EXAMPLE:
        one = {"name": tensor.name, "datatype": tensor.datatype, "shape": [1, *tensor.shape[1:]], "data": [0] * numbers}
        described["example"] = {"inputs": [one]}
    return {"requestBody": {"required": True, "content": {JSON: described}}}


def describe_components(app: FastAPI, *models: type[BaseModel]) -> None:
    """Adds to an app's finished description the models that bodies and problems refer to."""
    schemas = app.openapi()["components"]["schemas"]  # the app keeps what it returns
    described: list[type[BaseModel]] = [ProblemBody, *models]
    for model in described:
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= {**schema.pop("$defs", {}), model.__name__: schema}


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}
