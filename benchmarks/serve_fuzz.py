"""Mutated request bodies, straight to the service's application: never a 5xx, never a hang, no growing memory.

    python benchmarks/serve_fuzz.py [--bodies 100000] [--json results/serve_fuzz.json]

Half go to a model for tables, half to one for images. They start as requests that are right (JSON, tensors as bytes, images in
base64 and as multipart uploads) and are then mutated: as JSON, by a node that is replaced, removed or doubled; as bytes, by
bits that are flipped and spans that are cut, doubled or put in. Memory is compared with what it was after a fifth of them.
"""

import argparse
import asyncio
import base64
import gc
import io
import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]  # has no types
from fastapi import FastAPI
from numpy.typing import NDArray
from PIL import Image

from besnn import Detector, fit_detector
from besnn.data import digits, two_moons
from besnn.serve import create_app
from besnn.storage.files import atomic_path
from besnn.training import load_recipe
from besnn.training.record import provenance

SLOWEST = 10.0  # seconds; an answer that takes longer counts as a hang
QUICK = ["training.epochs=2", "training.gradient_every=1000", "method.members=2"]

Headers = dict[str, str]
Request = tuple[str, bytes, Headers]

NASTY: list[Any] = [
    None,
    True,
    -1,
    0.5,
    1e308,
    -1e308,
    10**30,
    2**63,
    "",
    "x",
    "é\x00",
    "a" * 1000,
    [],
    {},
    [[]],
    [{}],
    {"a": 1},
    256,
    "1",
]
TOKENS = [b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b"\\u0000", b"\xff", b"1e999", b"NaN", b"-", b"--", b"\r\n", b"null"]


def seeds_of(data: NDArray[Any], datatype: str) -> list[Request]:
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


def image_seeds(image: NDArray[Any]) -> list[Request]:
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

    await app(scope, receive, send)  # type: ignore[arg-type]  # plain dicts, as ASGI has them
    return status, answer


async def run(app: FastAPI, seeds: list[Request], bodies: int) -> dict[str, Any]:
    """Sends mutated bodies one after the other; how they were answered, and how memory fared."""
    rng = np.random.default_rng(0)
    statuses: Counter[int] = Counter()
    slowest, settled, process = 0.0, 0, psutil.Process()
    async with app.router.lifespan_context(app):
        for place in range(bodies):
            path, body, headers = mutate(seeds[rng.integers(len(seeds))], rng)
            began = time.process_time()
            status, answer = await asyncio.wait_for(post(app, path, body, headers), SLOWEST)
            slowest = max(slowest, time.process_time() - began)
            statuses[status] += 1
            if (status >= 400 and json.loads(answer)["status"] != status) or status >= 500:
                raise AssertionError(f"{status} for {path} {headers} {body!r}: {answer!r}")
            if place == bodies // 5:
                gc.collect()
                settled = process.memory_info().rss
        gc.collect()
        grown = process.memory_info().rss - settled
    return {
        "bodies": bodies,
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
        "slowest_cpu_seconds": round(slowest, 3),
        "memory_mib": round(settled / 2**20, 1),
        "memory_growth_mib": round(grown / 2**20, 1),
    }


def fuzz(detector: Detector, inputs: NDArray[Any], bodies: int) -> dict[str, Any]:
    """Mutates requests for some inputs `[n, ...]` of a detector."""
    app = create_app(detector)
    is_image = inputs.ndim == 4
    seeds = seeds_of(inputs, "UINT8" if is_image else "FP32") + (image_seeds(inputs[0, 0]) if is_image else [])
    for seed in seeds:
        assert asyncio.run(post(app, *seed))[0] == 200
    return {"inputs": "images" if is_image else "tables", **asyncio.run(run(app, seeds, bodies))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bodies", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    logging.disable()  # the multipart parser warns of every malformed body
    figures = []
    for recipe, data in (("two-moons", two_moons(600)), ("digits", digits())):
        detector = fit_detector(load_recipe(recipe, QUICK), data).detector
        figures.append(fuzz(detector, np.ascontiguousarray(data.inputs[:2]), arguments.bodies // 2))
        print(json.dumps(figures[-1]), flush=True)
    if arguments.json is not None:
        record = {"experiment": "serve-fuzz", "runs": figures, "provenance": provenance({})}
        with atomic_path(arguments.json) as partial:
            partial.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
