"""Mutated bodies: never a 5xx, never a hang, no growing memory. `BESNN_FUZZ=100000` sends that many."""

import asyncio
import base64
import gc
import io
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
from fastapi import FastAPI
from PIL import Image

from besnn import Detector
from besnn.data import Dataset, two_moons
from besnn.deployment.server import create_app

COUNT = int(os.environ.get("BESNN_FUZZ", "2500"))
SLOWEST = 10.0  # seconds
GROWTH = 96 * 2**20

Headers = dict[str, str]
Request = tuple[str, bytes, Headers]

NASTY = [None, True, -1, 0.5, 1e308, -1e308, 10**30, 2**63, "", "x", "é\x00", "a" * 1000, [], {}, [[]], [{}], {"a": 1}, 256, "1"]
TOKENS = [b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b"\\u0000", b"\xff", b"1e999", b"NaN", b"-", b"--", b"\r\n", b"null"]


def seeds_of(data: np.ndarray, datatype: str) -> list[Request]:
    """Requests that are right."""
    is_json = {"Content-Type": "application/json"}
    tensor = {"name": "input", "datatype": datatype, "shape": list(data.shape)}
    infer = "/v2/models/model/infer"
    binary = {**tensor, "parameters": {"binary_data_size": data.nbytes}}
    head = json.dumps({"inputs": [binary], "parameters": {"binary_data_output": True}}).encode()
    whole = {"id": "x", "inputs": [{**tensor, "data": data.ravel().tolist()}], "outputs": [{"name": "score"}]}
    return [
        ("/v1/predict", json.dumps({"inputs": data.tolist()}).encode(), is_json),
        (infer, json.dumps(whole).encode(), is_json),
        (infer, head + data.tobytes(), {"Inference-Header-Content-Length": str(len(head))}),
    ]


def image_seeds(image: np.ndarray) -> list[Request]:
    requests: list[Request] = []
    for format in ("PNG", "JPEG", "WEBP"):
        file = io.BytesIO()
        Image.fromarray(image).save(file, format)
        text = base64.b64encode(file.getvalue()).decode()
        requests.append(("/v1/predict", json.dumps({"inputs": [text]}).encode(), {"Content-Type": "application/json"}))
        part = b'--b\r\nContent-Disposition: form-data; name="a"; filename="a.png"\r\n\r\n' + file.getvalue() + b"\r\n"
        requests.append(("/v1/predict", part + part + b"--b--\r\n", {"Content-Type": "multipart/form-data; boundary=b"}))
    return requests


def mutate(request: Request, rng: np.random.Generator) -> Request:
    path, body, headers = request
    if headers.get("Content-Type") == "application/json" and rng.random() < 0.4:
        return path, json.dumps(mutate_json(json.loads(body), rng)).encode(), headers
    mutation = MUTATIONS[rng.integers(len(MUTATIONS))]
    for _ in range(int(rng.integers(1, 4))):
        body = mutation(body, rng)
    return path, body, headers


def mutate_json(value: Any, rng: np.random.Generator) -> Any:
    """The same with one node replaced, removed or doubled."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        name = list(value)[rng.integers(len(value))]
        if rng.random() < 0.15:
            return {key: item for key, item in value.items() if key != name}
        if rng.random() < 0.15:
            return {**value, f"{name}{rng.integers(3)}": value[name]}
        return {**value, name: mutate_json(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = int(rng.integers(len(value)))
        if rng.random() < 0.3:
            return value[:place] + value[place:] * int(rng.integers(0, 3))
        return [*value[:place], mutate_json(value[place], rng), *value[place + 1 :]]
    return NASTY[rng.integers(len(NASTY))]


def _places(body: bytes, rng: np.random.Generator) -> tuple[int, int]:
    first, second = sorted(rng.integers(0, len(body) + 1, 2))
    return int(first), int(second)


def flip(body: bytes, rng: np.random.Generator) -> bytes:
    if not body:
        return b"\x00"
    changed = bytearray(body)
    changed[rng.integers(len(body))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def cut(body: bytes, rng: np.random.Generator) -> bytes:
    start, stop = _places(body, rng)
    return body[:start] + body[stop:]


def truncate(body: bytes, rng: np.random.Generator) -> bytes:
    return body[: _places(body, rng)[0]]


def double(body: bytes, rng: np.random.Generator) -> bytes:
    start, stop = _places(body, rng)
    return body[:stop] + body[start:stop] + body[stop:]


def insert(body: bytes, rng: np.random.Generator) -> bytes:
    place, _ = _places(body, rng)
    return body[:place] + TOKENS[rng.integers(len(TOKENS))] * int(rng.integers(1, 20)) + body[place:]


MUTATIONS: list[Callable[[bytes, np.random.Generator], bytes]] = [flip, cut, truncate, double, insert]


async def post(app: FastAPI, path: str, body: bytes, headers: Headers) -> tuple[int, bytes]:
    """One request straight to the application."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
    }
    status, answer = 0, b""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status, answer
        status = message.get("status", status)
        answer += message.get("body", b"")

    await app(scope, receive, send)  # type: ignore[arg-type]
    return status, answer


async def run(app: FastAPI, seeds: list[Request], count: int) -> tuple[Counter[int], float, int]:
    """Statuses, the slowest answer in seconds, and by how many bytes memory has grown since a fifth of the way."""
    rng = np.random.default_rng(0)
    statuses: Counter[int] = Counter()
    slowest, settled, process = 0.0, 0, psutil.Process()
    async with app.router.lifespan_context(app):
        for place in range(count):
            path, body, headers = mutate(seeds[rng.integers(len(seeds))], rng)
            began = time.monotonic()
            status, answer = await asyncio.wait_for(post(app, path, body, headers), SLOWEST)
            slowest = max(slowest, time.monotonic() - began)
            statuses[status] += 1
            if status >= 400:
                assert json.loads(answer)["status"] == status
            assert status < 500, (path, body, headers, answer)
            if place == count // 5:
                gc.collect()
                settled = process.memory_info().rss
        gc.collect()
        return statuses, slowest, process.memory_info().rss - settled


def check(app: FastAPI, seeds: list[Request], count: int) -> None:
    for seed in seeds:
        assert asyncio.run(post(app, *seed))[0] == 200
    statuses, slowest, growth = asyncio.run(run(app, seeds, count))
    print(f"{count} bodies: {dict(sorted(statuses.items()))}, slowest {slowest:.3f} s, memory {growth / 2**20:+.1f} MiB")
    assert {200, 400, 422} <= set(statuses)  # some are still right, and some are wrong in different ways
    assert growth < GROWTH


def test_mutated_tables(moons_detector: Detector):
    check(create_app(moons_detector), seeds_of(two_moons(3).inputs, "FP32"), COUNT // 2)


def test_mutated_images(digits_detector: Detector, digit_data: Dataset):
    images = np.ascontiguousarray(digit_data.inputs[:2])
    check(create_app(digits_detector), seeds_of(images, "UINT8") + image_seeds(images[0, 0]), COUNT - COUNT // 2)
