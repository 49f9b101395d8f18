"""`/v2`: the Open Inference Protocol of KServe and Triton, with Triton's extension for tensors as raw bytes."""

import math
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Depends, Path, Request, Response
from numpy.typing import NDArray
from pydantic import BaseModel, Field, create_model
from pydantic_core import to_json

from besnn.detector import Predictions
from besnn.serve.bodies import BINARY, JSON, Number, Pixel, Scalars, Strict, list_of, parse_json
from besnn.serve.inputs import Allowance, InputReader, Inputs
from besnn.serve.problems import Problem, problem_responses
from besnn.serve.service import Service
from besnn.version import __version__

INPUT = "input"
OUTPUTS = {
    "label": "BYTES",
    "probabilities": "FP32",
    "score": "FP32",
    "p_value": "FP64",
    "is_ood": "BOOL",
    "decision": "BYTES",
    "label_set": "BOOL",
}
"""The names of outputs, and their datatypes."""

HEADER_LENGTH = "Inference-Header-Content-Length"
"""The HTTP header with the length of a body's JSON, if tensors follow it."""

_DTYPES = {"FP32": "<f4", "FP64": "<f8", "UINT8": "u1", "BOOL": "?"}
_LONGEST_EXAMPLE = 1024  # numbers
_BY_CLASS = ("probabilities", "label_set")


class ServerMetadata(BaseModel):
    """The server."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(BaseModel):
    """A tensor's name, type and shape; −1 stands for the number of inputs."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    """The inputs and outputs of the model."""

    name: str
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class InferOutput(TensorMetadata):
    """A tensor of the answer with flat data; with the binary extension the data follows the JSON instead."""

    parameters: dict[str, int] | None = None
    data: list[float] | list[bool] | list[str] | None = None


class InferResponse(BaseModel):
    """The outputs for all inputs."""

    model_name: str
    id: str | None = None
    outputs: list[InferOutput]


class RequestedOutput(Strict):
    """A requested output."""

    name: Literal["label", "probabilities", "score", "p_value", "is_ood", "decision", "label_set"]
    parameters: Scalars = Field(default_factory=dict)


def _datatypes(reader: InputReader) -> tuple[str, ...]:
    """Return the datatypes that a model accepts; the first is the usual one."""
    return ("UINT8",) if reader.is_image else ("FP32", "FP64")


def infer_request_model(reader: InputReader) -> type[BaseModel]:
    """Make the type of an inference request's JSON for a model; the data may be flat, or nested as the shape says."""
    flat, nested = list_of(Pixel if reader.is_image else Number), list_of(reader.array)
    data: Any = Annotated[flat | nested | None, Field(union_mode="left_to_right")]
    name: Any = Literal[INPUT]
    datatype: Any = Literal[_datatypes(reader)]
    rank = len(reader.input_shape) + 1
    tensor = create_model(
        "InferInput",
        __base__=Strict,
        name=(name, ...),
        datatype=(datatype, ...),
        shape=(list_of(Annotated[int, Field(ge=0, le=2**31)], rank, rank), ...),
        parameters=(Scalars, Field(default_factory=dict)),
        data=(data, None),
    )
    return create_model(
        "InferRequest",
        __base__=Strict,
        id=(Annotated[str, Field(max_length=256)] | None, None),
        parameters=(Scalars, Field(default_factory=dict)),
        inputs=(list_of(tensor, 1, 1), ...),
        outputs=(list_of(RequestedOutput, 1, len(OUTPUTS)) | None, None),
    )


def health_router(service: Service) -> APIRouter:
    """Make the health checks, which need no token: live if there is an answer at all, ready if nothing is known to fail."""
    router = APIRouter(prefix="/v2/health", tags=["Open Inference Protocol"])

    @router.get("/live", summary="Whether the service is running")
    async def live() -> dict[str, bool]:
        return {"live": True}

    @router.get("/ready", summary="Whether the service is ready")
    async def ready() -> dict[str, bool]:
        await service.require_ready()
        return {"ready": True}

    return router


def server_router() -> APIRouter:
    """Make the route that describes the server."""
    router = APIRouter(prefix="/v2", tags=["Open Inference Protocol"])

    @router.get("", summary="The server")
    async def describe_server() -> ServerMetadata:
        return ServerMetadata(name="besnn", version=__version__, extensions=["binary_tensor_data"])

    return router


def model_router(service: Service, request_model: type[BaseModel]) -> APIRouter:
    """Make the routes of the model; `request_model` is the type of `/infer`'s JSON."""
    reader, settings = service.reader, service.settings
    metadata = _model_metadata(service)
    expected = f"what /v2/models/{settings.model_name} describes"

    async def require_model(model_name: Annotated[str, Path(examples=[settings.model_name])]) -> None:
        if model_name != settings.model_name:
            raise Problem(404, "model-unknown", f"the only model here is {settings.model_name!r}")

    router = APIRouter(
        prefix="/v2/models/{model_name}",
        tags=["Open Inference Protocol"],
        dependencies=[Depends(require_model)],
        responses=problem_responses(404),
    )

    @router.get("", summary="The model's inputs and outputs")
    async def describe_model() -> ModelMetadata:
        return metadata

    @router.get("/ready", summary="Whether the model is ready", responses=problem_responses(503))
    async def model_ready() -> dict[str, bool]:
        await service.require_ready()
        return {"ready": True}

    @router.post(
        "/infer",
        summary="Label, probabilities, score, p-value and decision as tensors",
        response_model=InferResponse,
        responses=problem_responses(400, 408, 413, 415, 429, 504),
        openapi_extra=_describe_body(request_model, metadata.inputs[0]),
    )
    async def infer(request: Request) -> Response:
        def read(body: bytes, content_type: str, allowance: Allowance) -> tuple[Any, Inputs]:
            header, raw = split_body(body, request.headers.get(HEADER_LENGTH))
            asked: Any = parse_json(request_model, header, expected, reader.max_lists)
            return asked, read_tensor(asked.inputs[0], raw, reader.input_shape, settings.max_rows)

        async with service.parsed(request, (JSON, BINARY, ""), read) as (asked, inputs):  # Triton's client names no media type
            predictions = await service.predict(inputs)
        answer, header_length = write_response(predictions, asked, settings.model_name)
        if header_length is None:
            return Response(answer, media_type=JSON)
        return Response(answer, media_type=BINARY, headers={HEADER_LENGTH: str(header_length)})

    return router


def _model_metadata(service: Service) -> ModelMetadata:
    reader, classes = service.reader, len(service.detector.class_names)
    return ModelMetadata(
        name=service.settings.model_name,
        platform=f"besnn_{service.detector.model.method}",
        inputs=[TensorMetadata(name=INPUT, datatype=_datatypes(reader)[0], shape=[-1, *reader.input_shape])],
        outputs=[
            TensorMetadata(name=output, datatype=datatype, shape=[-1, classes] if output in _BY_CLASS else [-1])
            for output, datatype in OUTPUTS.items()
        ],
    )


def _describe_body(request_model: type[BaseModel], tensor: TensorMetadata) -> dict[str, Any]:
    """Describe the body of `/infer`, with a blank example unless it would be long."""
    described: dict[str, Any] = {"schema": {"$ref": f"#/components/schemas/{request_model.__name__}"}}
    numbers = math.prod(tensor.shape[1:])
    if numbers <= _LONGEST_EXAMPLE:
        one = {"name": tensor.name, "datatype": tensor.datatype, "shape": [1, *tensor.shape[1:]], "data": [0] * numbers}
        described["example"] = {"inputs": [one]}
    return {"requestBody": {"required": True, "content": {JSON: described}}}


def split_body(body: bytes, header_length: str | None) -> tuple[bytes, bytes]:
    """Split a body into its JSON and the raw tensor behind it."""
    if header_length is None:
        return body, b""
    if not header_length.isdecimal() or len(header_length) > 9:
        raise Problem(400, "header-invalid", f"{HEADER_LENGTH} is not a number of bytes")
    length = int(header_length)
    return body[:length], body[length:]


def read_tensor(tensor: Any, raw: bytes, input_shape: tuple[int, ...], max_rows: int) -> Inputs:
    """Return inputs `[n, ...]` from the tensor of an `InferRequest`, or from the bytes behind it."""
    shape = tuple(tensor.shape)
    if shape[1:] != input_shape or not 1 <= shape[0] <= max_rows:
        expected = ", ".join(map(str, input_shape))
        raise Problem(422, "input-invalid", f"shape {list(shape)} does not fit: send [n, {expected}], n from 1 to {max_rows}")
    dtype = np.dtype(_DTYPES[tensor.datatype])
    is_binary = "binary_data_size" in tensor.parameters
    given = len(raw) // dtype.itemsize if is_binary else np.size(tensor.data or [])
    if is_binary == (tensor.data is not None) or tensor.parameters.get("binary_data_size", 0) != len(raw):
        raise Problem(422, "input-invalid", "send either data, or binary_data_size and that many bytes after the JSON")
    if given != math.prod(shape) or len(raw) % dtype.itemsize:
        raise Problem(422, "input-invalid", f"the data has {given} numbers, but the shape needs {math.prod(shape)}")
    with np.errstate(over="ignore"):  # a number too large for the datatype becomes infinite, and is refused below
        values = np.frombuffer(raw, dtype) if is_binary else np.array(tensor.data, dtype)
    if not np.isfinite(values).all():
        raise Problem(422, "input-invalid", f"the tensor has NaN or values beyond {tensor.datatype}: remove or replace them")
    return values.reshape(shape)


def write_response(predictions: Predictions, request: Any, model_name: str) -> tuple[bytes, int | None]:
    """Return the answer to an `InferRequest`, and the length of its JSON if tensors follow as bytes."""
    outputs, blobs = [], []
    for output in request.outputs or [RequestedOutput.model_validate({"name": name}) for name in OUTPUTS]:
        own = {"label": "labels", "label_set": "label_sets"}.get(output.name, output.name)
        values: NDArray[Any] = getattr(predictions, own)
        values = values.astype(str) if output.name == "label" else values
        described = {"name": output.name, "datatype": OUTPUTS[output.name], "shape": list(values.shape)}
        if output.parameters.get("binary_data", request.parameters.get("binary_data_output", False)):
            blobs.append(_to_bytes(values, OUTPUTS[output.name]))
            described["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            described["data"] = values.ravel().tolist()
        outputs.append(described)
    answer = {"model_name": model_name, "outputs": outputs} | ({} if request.id is None else {"id": request.id})
    header = to_json(answer)
    return (b"".join([header, *blobs]), len(header)) if blobs else (header, None)


def _to_bytes(values: NDArray[Any], datatype: str) -> bytes:
    if datatype != "BYTES":
        return values.astype(_DTYPES[datatype]).tobytes()
    texts = [text.encode() for text in values.tolist()]
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)
