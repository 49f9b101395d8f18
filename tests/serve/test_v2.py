"""The Open Inference Protocol: by JSON, and by Triton's binary extension."""

import json
import struct

import httpx
import numpy as np
import pytest

from besnn import Detector
from besnn.data import Dataset, two_moons
from besnn.detector import Predictions

POINTS = two_moons(5, seed=4).inputs
INFER = "/v2/models/model/infer"
NUMPY = {"FP32": np.float32, "FP64": np.float64, "BOOL": np.bool_}


def tensor(array: np.ndarray, datatype: str, **more: object) -> dict:
    return {"name": "input", "datatype": datatype, "shape": list(array.shape), **more}


def by_name(outputs: list[dict]) -> dict[str, np.ndarray]:
    return {output["name"]: np.array(output["data"]).reshape(output["shape"]) for output in outputs}


def check(outputs: dict[str, np.ndarray], expected: Predictions) -> None:
    assert outputs["label"].tolist() == expected.labels.tolist()
    assert outputs["is_ood"].tolist() == expected.is_ood.tolist()
    for name in ("probabilities", "score", "p_value"):
        np.testing.assert_allclose(outputs[name], getattr(expected, name), rtol=1e-5, atol=1e-6)


def decode(response: httpx.Response) -> dict[str, np.ndarray]:
    """Binary outputs, decoded by the letter of the extension."""
    length = int(response.headers["Inference-Header-Content-Length"])
    rest, outputs = response.content[length:], {}
    for output in json.loads(response.content[:length])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        blob, rest = rest[:size], rest[size:]
        if output["datatype"] == "BYTES":
            texts = []
            while blob:
                (count,) = struct.unpack("<I", blob[:4])
                texts.append(blob[4 : 4 + count].decode())
                blob = blob[4 + count :]
            outputs[output["name"]] = np.array(texts).reshape(output["shape"])
        else:
            outputs[output["name"]] = np.frombuffer(blob, NUMPY[output["datatype"]]).reshape(output["shape"])
    assert not rest
    return outputs


def test_health_and_metadata(moons_client: httpx.Client):
    assert moons_client.get("/v2/health/live").json() == {"live": True}
    assert moons_client.get("/v2/health/ready").json() == {"ready": True}
    assert moons_client.get("/v2/models/model/ready").json() == {"ready": True}
    assert moons_client.get("/v2").json()["name"] == "besnn"
    metadata = moons_client.get("/v2/models/model").json()
    assert metadata["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, 2]}]
    outputs = {output["name"]: (output["datatype"], output["shape"]) for output in metadata["outputs"]}
    assert outputs == {
        "label": ("BYTES", [-1]),
        "probabilities": ("FP32", [-1, 2]),
        "score": ("FP32", [-1]),
        "p_value": ("FP64", [-1]),
        "is_ood": ("BOOL", [-1]),
        "decision": ("BYTES", [-1]),
        "label_set": ("BOOL", [-1, 2]),
    }


@pytest.mark.parametrize(("datatype", "data"), [("FP32", POINTS.ravel().tolist()), ("FP64", POINTS.tolist())])
def test_numbers_as_json(moons_client: httpx.Client, moons_detector: Detector, datatype: str, data: list):
    response = moons_client.post(INFER, json={"id": "seven", "inputs": [tensor(POINTS, datatype, data=data)]})
    assert response.status_code == 200
    answer = response.json()
    assert (answer["model_name"], answer["id"]) == ("model", "seven")
    check(by_name(answer["outputs"]), moons_detector.predict(POINTS))


def test_pixels_as_json(digits_client: httpx.Client, digits_detector: Detector, digit_data: Dataset):
    images = digit_data.inputs[:3]
    response = digits_client.post(INFER, json={"inputs": [tensor(images, "UINT8", data=images.ravel().tolist())]})
    check(by_name(response.json()["outputs"]), digits_detector.predict(images))


@pytest.mark.parametrize("content_type", [None, "application/octet-stream"])
def test_binary_both_ways_as_tritons_client_sends_it(
    digits_client: httpx.Client, digits_detector: Detector, digit_data: Dataset, content_type: str | None
):
    images = np.ascontiguousarray(digit_data.inputs[:3])
    one = tensor(images, "UINT8", parameters={"binary_data_size": images.nbytes})
    header = json.dumps({"inputs": [one], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(header))}
    if content_type is not None:
        headers["Content-Type"] = content_type
    response = digits_client.post(INFER, content=header + images.tobytes(), headers=headers)
    assert response.status_code == 200, response.text
    check(decode(response), digits_detector.predict(images))


def test_single_outputs_as_bytes(moons_client: httpx.Client, moons_detector: Detector):
    wanted = [{"name": name, "parameters": {"binary_data": True}} for name in ("score", "label")]
    body = {"inputs": [tensor(POINTS, "FP32", data=POINTS.tolist())], "outputs": wanted}
    outputs = decode(moons_client.post(INFER, json=body))
    assert list(outputs) == ["score", "label"]
    np.testing.assert_allclose(outputs["score"], moons_detector.predict(POINTS).score, rtol=1e-5)


def binary(array: np.ndarray, datatype: str, size: int, *, data: object = None) -> tuple[bytes, dict[str, str]]:
    one = tensor(array, datatype, parameters={"binary_data_size": size})
    header = json.dumps({"inputs": [one if data is None else {**one, "data": data}]}).encode()
    return header + array.tobytes(), {"Inference-Header-Content-Length": str(len(header))}


@pytest.mark.parametrize(
    ("content", "headers"),
    [
        binary(POINTS, "FP32", POINTS.nbytes - 4),
        binary(POINTS, "FP64", POINTS.nbytes),
        binary(POINTS, "FP32", POINTS.nbytes, data=POINTS.tolist()),
        binary(np.full((1, 2), np.nan, np.float32), "FP32", 8),
        binary(np.full((1, 2), np.inf, np.float32), "FP32", 8),
    ],
)
def test_bytes_that_do_not_fit_are_refused(moons_client: httpx.Client, content: bytes, headers: dict[str, str]):
    response = moons_client.post(INFER, content=content, headers=headers)
    assert (response.status_code, response.json()["code"]) == (422, "input-invalid"), response.text


@pytest.mark.parametrize("length", ["x", "-1", "9" * 5000, "²"])
def test_a_length_that_is_no_number_is_refused(moons_client: httpx.Client, length: str):
    response = moons_client.post(INFER, content=b"{}", headers={"Inference-Header-Content-Length": length.encode()})
    assert (response.status_code, response.json()["code"]) == (400, "header-invalid")


ONE = {"name": "input", "datatype": "FP32", "shape": [1, 2], "data": [0, 0]}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"inputs": [ONE, ONE]},
        {"inputs": [{**ONE, "name": "x"}]},
        {"inputs": [{**ONE, "datatype": "UINT8"}]},
        {"inputs": [{**ONE, "shape": [2, 2]}]},
        {"inputs": [{**ONE, "shape": [0, 2], "data": []}]},
        {"inputs": [{**ONE, "shape": [2**31, 2]}]},
        {"inputs": [{**ONE, "data": [0]}]},
        {"inputs": [{**ONE, "data": [[0, 0], [1, 1]]}]},
        {"inputs": [{**ONE, "data": None}]},
        {"inputs": [{**ONE, "data": [0, 1e300]}]},
        {"inputs": [{**ONE, "colour": "red"}]},
        {"inputs": [ONE], "outputs": [{"name": "colour"}]},
        {"inputs": [ONE], "outputs": []},
        {"inputs": [ONE], "parameters": {"x": []}},
    ],
)
def test_requests_that_do_not_fit_are_refused(moons_client: httpx.Client, body: dict):
    response = moons_client.post(INFER, json=body)
    assert response.status_code == 422, response.text
    assert response.json()["error"] == response.json()["detail"]  # the protocol's own name for it


@pytest.mark.parametrize(("method", "route"), [("GET", ""), ("GET", "/ready"), ("POST", "/infer")])
def test_another_model_is_not_found(moons_client: httpx.Client, method: str, route: str):
    response = moons_client.request(method, f"/v2/models/other{route}", json={"inputs": [ONE]})
    assert (response.status_code, response.json()["code"]) == (404, "model-unknown")


def test_objects_of_many_fields_are_refused_at_once(moons_client: httpx.Client):
    many = {f"field {place}": [] for place in range(10_000)}
    for body in ({"inputs": [{**ONE, **many}]}, {"inputs": [ONE], "parameters": many}, many):
        response = moons_client.post(INFER, json=body)
        assert response.status_code == 422
        assert "too many fields" in response.json()["detail"]
