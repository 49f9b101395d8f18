"""What `/v2` is asked and answers, by the Open Inference Protocol."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, create_model

from besnn.serve.fields import Number, Pixel, Scalars, Strict, list_of
from besnn.serve.inputs import InputReader

INPUT = "input"
OUTPUTS = {"label": "BYTES", "probabilities": "FP32", "score": "FP32", "p_value": "FP64", "is_ood": "BOOL"}
"""The names of outputs, and their datatypes."""


class ServerMetadata(BaseModel):
    """What answers."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(BaseModel):
    """A tensor's name, type and shape; −1 stands for the number of inputs."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    """What the model takes and gives."""

    name: str
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class Live(BaseModel):
    """The service runs."""

    live: Literal[True] = True


class Ready(BaseModel):
    """The service, or its model, can be asked."""

    ready: Literal[True] = True


class InferOutput(TensorMetadata):
    """A tensor of the answer, its data flat; with the binary extension the data follows the JSON instead."""

    parameters: dict[str, int] | None = None
    data: list[float] | list[bool] | list[str] | None = None


class InferResponse(BaseModel):
    """The outputs for all inputs."""

    model_name: str
    id: str | None = None
    outputs: list[InferOutput]


class RequestedOutput(Strict):
    """An output that is asked for."""

    name: Literal["label", "probabilities", "score", "p_value", "is_ood"]
    parameters: Scalars = Field(default_factory=dict)


def input_datatypes(reader: InputReader) -> tuple[str, ...]:
    """The datatypes that a model takes; the first is the usual one."""
    return ("UINT8",) if reader.is_image else ("FP32", "FP64")


def model_metadata(name: str, method: str, reader: InputReader, classes: int) -> ModelMetadata:
    """What a model takes and gives."""
    return ModelMetadata(
        name=name,
        platform=f"besnn_{method}",
        inputs=[TensorMetadata(name=INPUT, datatype=input_datatypes(reader)[0], shape=[-1, *reader.input_shape])],
        outputs=[
            TensorMetadata(name=output, datatype=datatype, shape=[-1, classes] if output == "probabilities" else [-1])
            for output, datatype in OUTPUTS.items()
        ],
    )


def infer_request_model(reader: InputReader) -> type[BaseModel]:
    """The JSON of an inference request for a model; its tensor's data may be flat, or nested as its shape says."""
    flat, nested = list_of(Pixel if reader.is_image else Number), list_of(reader.array)
    data: Any = Annotated[flat | nested | None, Field(union_mode="left_to_right")]
    name: Any = Literal[INPUT]
    datatype: Any = Literal[input_datatypes(reader)]
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
