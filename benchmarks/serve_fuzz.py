"""Mutated request bodies, sent straight to the service's application: never a 5xx, never a hang, no growing memory.

Half of them go to a model for tables, half to one for images. They start as valid requests (JSON, tensors as bytes, images in
base64 and as multipart uploads) and are then mutated: JSON by replacing, removing or duplicating a node; bytes by flipping bits
and by cutting, duplicating or inserting spans. Memory is compared with its size after a fifth of them.
"""

import asyncio
import base64
import gc
import io
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import psutil
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient
from numpy.typing import NDArray
from PIL import Image

from benchmarks.documents import Table, bench_record
from besnn import Detector, fit_detector
from besnn.data import digits, two_moons
from besnn.serve import create_app
from besnn.training import load_recipe

SLOWEST = 10.0  # seconds; an answer that takes longer counts as a hang
QUICK = ["training.epochs=2", "training.gradient_every=1000", "method.members=2"]

Headers = dict[str, str]
Request = tuple[str, bytes, Headers]

NUMBERS = [None, True, -1, 0.5, 1e308, -1e308, 10**30, 2**63, 256]
NASTY: list[Any] = [*NUMBERS, "", "x", "é\x00", "a" * 1000, "1", [], {}, [[]], [{}], {"a": 1}]
TOKENS = [b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b"\\u0000", b"\xff", b"1e999", b"NaN", b"-", b"--", b"\r\n", b"null"]


def seeds_of(data: NDArray[Any], datatype: str) -> list[Request]:
    """Return valid requests for some inputs."""
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
    """Return valid requests that hold an image file."""
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
    """Return a request with its body mutated, as JSON or as bytes."""
    path, body, headers = request
    if headers.get("Content-Type") == "application/json" and rng.random() < 0.4:
        return path, json.dumps(mutate_json(json.loads(body), rng)).encode(), headers
    mutation = MUTATIONS[rng.integers(len(MUTATIONS))]
    for _ in range(int(rng.integers(1, 4))):
        body = mutation(body, rng)
    return path, body, headers


def mutate_json(value: Any, rng: np.random.Generator) -> Any:
    """Return a JSON value with one node replaced, removed or duplicated."""
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
    """Flip one bit."""
    if not body:
        return b"\x00"
    changed = bytearray(body)
    changed[rng.integers(len(body))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def cut(body: bytes, rng: np.random.Generator) -> bytes:
    """Remove a span."""
    start, stop = _places(body, rng)
    return body[:start] + body[stop:]


def truncate(body: bytes, rng: np.random.Generator) -> bytes:
    """Remove the end."""
    return body[: _places(body, rng)[0]]


def duplicate(body: bytes, rng: np.random.Generator) -> bytes:
    """Repeat a span."""
    start, stop = _places(body, rng)
    return body[:stop] + body[start:stop] + body[stop:]


def insert(body: bytes, rng: np.random.Generator) -> bytes:
    """Insert a token that parsers care about, several times."""
    place, _ = _places(body, rng)
    return body[:place] + TOKENS[rng.integers(len(TOKENS))] * int(rng.integers(1, 20)) + body[place:]


MUTATIONS: list[Callable[[bytes, np.random.Generator], bytes]] = [flip, cut, truncate, duplicate, insert]


async def run(app: FastAPI, seeds: list[Request], bodies: int) -> dict[str, Any]:
    """Send valid requests, then mutated ones, one after the other; count the answers by status and watch the memory."""
    rng = np.random.default_rng(0)
    statuses: Counter[int] = Counter()
    slowest, settled, process = 0.0, 0, psutil.Process()
    client = AsyncClient(transport=ASGITransport(app), base_url="http://localhost")
    async with app.router.lifespan_context(app), client:
        for path, body, headers in seeds:
            assert (await client.post(path, content=body, headers=headers)).status_code == 200
        for place in range(bodies):
            path, body, headers = mutate(seeds[rng.integers(len(seeds))], rng)
            began = time.process_time()
            answer = await asyncio.wait_for(client.post(path, content=body, headers=headers), SLOWEST)
            slowest = max(slowest, time.process_time() - began)
            status = answer.status_code
            statuses[status] += 1
            if (status >= 400 and answer.json()["status"] != status) or status >= 500:
                raise AssertionError(f"{status} for {path} {headers} {body!r}: {answer.text}")
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
    """Mutate requests for some inputs `[n, ...]` of a detector."""
    app = create_app(detector)
    is_image = inputs.ndim == 4
    seeds = seeds_of(inputs, "UINT8" if is_image else "FP32") + (image_seeds(inputs[0, 0]) if is_image else [])
    return {"inputs": "images" if is_image else "tables", **asyncio.run(run(app, seeds, bodies))}


def measure_fuzz(bodies: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Train a detector for tables and one for images, and fuzz both; return the record."""
    logging.disable()  # the multipart parser warns of every malformed body
    runs = []
    for recipe, data in (("two-moons", two_moons(600)), ("digits", digits())):
        detector = fit_detector(load_recipe(recipe, QUICK), data).detector
        runs.append(fuzz(detector, np.ascontiguousarray(data.inputs[:2]), bodies // 2))
        say(json.dumps(runs[-1]))
    return bench_record("serve-fuzz", {"runs": runs})


def fuzz_table(record: Mapping[str, Any]) -> Table:
    """Return the table of answers for docs/serving.md."""
    statuses = sorted({status for run in record["runs"] for status in run["statuses"]})
    rows = [
        (
            run["inputs"],
            f"{run['bodies']:,}",
            *(f"{run['statuses'].get(status, 0):,}" for status in statuses),
            f"{run['slowest_cpu_seconds']:.2f}",
            f"{run['memory_growth_mib']:+.1f}",
        )
        for run in record["runs"]
    ]
    header = ("Model for", "Bodies", *statuses, "Slowest, processor seconds", "Memory, MiB")
    note = "Answers by status. Memory: what the process grew by after the first fifth of the bodies."
    return Table("Mutated bodies", header, rows, note)
