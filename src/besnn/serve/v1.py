"""`/v1`: predictions, the model, examples, drift."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic_core import to_json

from besnn.serve.examples import Example, ExamplesResponse
from besnn.serve.inputs import JSON, MULTIPART, media_type
from besnn.serve.model_info import ModelInfo, model_info
from besnn.serve.openapi import predict_body, problems
from besnn.serve.problems import Problem
from besnn.serve.schemas import PredictQuery, PredictResponse, prediction_rows
from besnn.serve.service import Service
from besnn.serve.traffic import DriftReport


def v1_router(service: Service, examples: Sequence[Example]) -> APIRouter:
    """The routes under `/v1`."""
    router = APIRouter(prefix="/v1", tags=["besnn"])
    info = model_info(service)
    reader = service.reader

    @router.post(
        "/predict",
        summary="Label, probabilities, score, p-value and decision for each input",
        response_model=PredictResponse,
        response_model_exclude_none=True,
        responses=problems(400, 408, 413, 415, 429, 504),
        openapi_extra=predict_body(reader),
    )
    async def predict(request: Request, query: Annotated[PredictQuery, Query()]) -> Response:
        async with service.bodies.limited(request) as limited:
            kind, quick = media_type(limited), False
            if kind == JSON:
                body = await limited.body()
                read, quick = partial(reader.from_json, body), reader.is_quick(body)
            elif kind == MULTIPART and reader.is_image:
                read = partial(reader.from_multipart, await limited.body(), request.headers["content-type"])
            else:
                wanted = f"{JSON} or {MULTIPART}" if reader.is_image else JSON
                raise Problem(415, "media-type-unsupported", f"send the body as {wanted}, and say so in Content-Type")
            async with service.deadline() as over:
                inputs = await service.read(partial(read, over), quick=quick)
                predictions = await service.predict(inputs, observe=query.observe)
        rows = prediction_rows(predictions, info.class_names, members=query.members)
        return Response(to_json({"predictions": rows}), media_type=JSON)

    @router.get("/model", summary="What is being served")
    async def describe_model() -> ModelInfo:
        return info

    @router.get("/examples", summary="Inputs to try")
    async def show_examples() -> ExamplesResponse:
        return ExamplesResponse(examples=list(examples))

    @router.get("/drift", summary="Recent traffic and the drift alarm")
    def report_drift() -> DriftReport:
        return service.traffic.report()

    return router
