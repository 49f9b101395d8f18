"""`/v2`: the Open Inference Protocol, for clients of KServe and Triton."""

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel

from besnn.serve import protocol, tensors
from besnn.serve.batching import Inputs
from besnn.serve.fields import parse
from besnn.serve.inputs import JSON, QUICK_BYTES, media_type
from besnn.serve.openapi import infer_body, problems
from besnn.serve.problems import Problem
from besnn.serve.service import Service
from besnn.version import __version__

BINARY = "application/octet-stream"


def health_router() -> APIRouter:
    """Whether the service runs. Nobody needs a token to ask; the model is there before the first request is."""
    router = APIRouter(prefix="/v2/health", tags=["Open Inference Protocol"])

    @router.get("/live", summary="Whether the service runs")
    async def live() -> protocol.Live:
        return protocol.Live()

    @router.get("/ready", summary="Whether the service can be asked")
    async def ready() -> protocol.Ready:
        return protocol.Ready()

    return router


def v2_router(service: Service, request_model: type[BaseModel]) -> APIRouter:
    """The other routes under `/v2`; `request_model` is what `/infer` takes."""
    router = APIRouter(prefix="/v2", tags=["Open Inference Protocol"])
    detector, reader, settings = service.detector, service.reader, service.settings
    metadata = protocol.model_metadata(settings.model_name, detector.model.method, reader, len(detector.class_names))

    ModelName = Annotated[str, Path(examples=[settings.model_name])]

    def require_model(model_name: str) -> None:
        if model_name != settings.model_name:
            raise Problem(404, "model-unknown", f"the only model here is {settings.model_name!r}")

    def read(header: bytes, raw: bytes) -> tuple[Any, Inputs]:
        asked: Any = parse(request_model, header, f"what /v2/models/{settings.model_name} describes", reader.most_lists)
        return asked, tensors.read_tensor(asked.inputs[0], raw, reader.input_shape, settings.max_rows)

    @router.get("", summary="What answers")
    async def describe_server() -> protocol.ServerMetadata:
        return protocol.ServerMetadata(name="besnn", version=__version__, extensions=["binary_tensor_data"])

    @router.get("/models/{model_name}", summary="What the model takes and gives", responses=problems(404))
    async def describe_model(model_name: ModelName) -> protocol.ModelMetadata:
        require_model(model_name)
        return metadata

    @router.get("/models/{model_name}/ready", summary="Whether the model can be asked", responses=problems(404))
    async def model_ready(model_name: ModelName) -> protocol.Ready:
        require_model(model_name)
        return protocol.Ready()

    @router.post(
        "/models/{model_name}/infer",
        summary="Label, probabilities, score, p-value and decision as tensors",
        response_model=protocol.InferResponse,
        responses=problems(400, 404, 408, 413, 415, 429, 504),
        openapi_extra=infer_body(request_model, metadata),
    )
    async def infer(model_name: ModelName, request: Request) -> Response:
        require_model(model_name)
        if media_type(request) not in ("", JSON, BINARY):  # Triton's client says nothing of it
            raise Problem(415, "media-type-unsupported", f"send the body as {JSON} or {BINARY}, and say so in Content-Type")
        async with service.bodies.limited(request) as limited:
            body = await limited.body()
            header, raw = tensors.divide_body(body, request.headers.get(tensors.HEADER_LENGTH))
            async with service.deadline():
                asked, inputs = await service.read(partial(read, header, raw), quick=len(body) <= QUICK_BYTES)
                predictions = await service.predict(inputs)
        answer, header_length = tensors.write_response(predictions, asked, settings.model_name)
        if header_length is None:
            return Response(answer, media_type=JSON)
        return Response(answer, media_type=BINARY, headers={tensors.HEADER_LENGTH: str(header_length)})

    return router
