"""Tensors of the Open Inference Protocol: in JSON, or as raw bytes behind it (Triton's binary extension)."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_json

from besnn.predictions import Predictions
from besnn.serve.batching import Inputs
from besnn.serve.problems import Problem
from besnn.serve.protocol import OUTPUTS, RequestedOutput

HEADER_LENGTH = "Inference-Header-Content-Length"
"""The HTTP header that says how much of a body is JSON, where tensors follow it."""

_DTYPES = {"FP32": "<f4", "FP64": "<f8", "UINT8": "u1", "BOOL": "?"}


def divide_body(body: bytes, header_length: str | None) -> tuple[bytes, bytes]:
    """A body's JSON, and the raw tensor behind it.

    >>> divide_body(b'{}abc', "2")
    (b'{}', b'abc')
    """
    if header_length is None:
        return body, b""
    if not (header_length.isascii() and header_length.isdigit() and len(header_length) < 10):
        raise Problem(400, "header-invalid", f"{HEADER_LENGTH} is not a number of bytes")
    length = int(header_length)
    return body[:length], body[length:]


def read_tensor(tensor: Any, raw: bytes, input_shape: tuple[int, ...], max_rows: int) -> Inputs:
    """Inputs `[n, ...]` from the tensor of an `InferRequest`, or from the bytes behind it."""
    shape = tuple(tensor.shape)
    if shape[1:] != input_shape or not 1 <= shape[0] <= max_rows:
        wanted = ", ".join(map(str, input_shape))
        raise Problem(422, "input-invalid", f"shape {list(shape)} does not fit: send [n, {wanted}], n from 1 to {max_rows}")
    dtype = np.dtype(_DTYPES[tensor.datatype])
    is_binary = "binary_data_size" in tensor.parameters
    given = len(raw) // dtype.itemsize if is_binary else np.size(tensor.data or [])
    if is_binary == (tensor.data is not None) or tensor.parameters.get("binary_data_size", 0) != len(raw):
        raise Problem(422, "input-invalid", "send data, or binary_data_size and as many bytes behind the JSON")
    if given != math.prod(shape) or len(raw) % dtype.itemsize:
        raise Problem(422, "input-invalid", f"the data holds {given} numbers, where the shape wants {math.prod(shape)}")
    with np.errstate(over="ignore"):  # too large for the datatype: infinite, and refused as such
        values = np.frombuffer(raw, dtype) if is_binary else np.array(tensor.data, dtype)
    if not np.isfinite(values).all():
        raise Problem(422, "input-invalid", f"the tensor holds NaN or values beyond {tensor.datatype}: remove or replace them")
    return values.reshape(shape)


def write_response(predictions: Predictions, request: Any, model_name: str) -> tuple[bytes, int | None]:
    """The answer to an `InferRequest`, and the length of its JSON where tensors follow that as bytes."""
    outputs, blobs = [], []
    for output in request.outputs or _ALL:
        values: NDArray[Any] = getattr(predictions, _FIELDS.get(output.name, output.name))
        described = {"name": output.name, "datatype": OUTPUTS[output.name], "shape": list(values.shape)}
        if output.parameters.get("binary_data", request.parameters.get("binary_data_output", False)):
            blobs.append(_raw(values, OUTPUTS[output.name]))
            described["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            described["data"] = values.ravel().tolist()
        outputs.append(described)
    answer = {"model_name": model_name, "outputs": outputs} | ({} if request.id is None else {"id": request.id})
    header = to_json(answer)
    return (b"".join([header, *blobs]), len(header)) if blobs else (header, None)


_FIELDS = {"label": "labels"}
_ALL = [RequestedOutput.model_validate({"name": name}) for name in OUTPUTS]


def _raw(values: NDArray[Any], datatype: str) -> bytes:
    if datatype != "BYTES":
        return values.astype(_DTYPES[datatype]).tobytes()
    texts = [text.encode() for text in values.tolist()]
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)
