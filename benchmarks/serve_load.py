"""How much of the in-process scorer's speed the service keeps, on the same cores, with 64 clients in a second process.

The service runs as a process of its own on loopback, on as many cores as PyTorch takes by itself; the clients run in this one,
so they take their share of the same cores. In every round the scorer is timed here, in batches of the best of three sizes, just
before and just after the service; `ratio` is to the mean of the two, and the median of all rounds is reported. `cpu_ratio` is
the same of rows per second of processor time, the service's and the clients' together; it says more where others use the
machine too. Every answer is compared with the scorer's for the same inputs, when the clock has stopped.

    python benchmarks/serve_load.py [--model MODEL] [--workers 1] [--rounds 3] [--seconds 8] [--json RECORD]

The records in results/ are `serve_load_1_worker.json` and `serve_load_2_workers.json`; `serving_tables.py` shows both.

Without --model it is the paper's FashionMNIST network (4 members), untrained: as fast as a trained one.
"""

import argparse
import asyncio
import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]  # has no types
import torch
from numpy.typing import NDArray

from besnn import Detector
from besnn.model import Preprocessing
from besnn.recipe.build import build_method, resolve_backbone
from besnn.storage.files import atomic_path
from besnn.training import load_recipe
from besnn.training.record import provenance

CLIENTS = 64
POOL = 1024
SCORER_BATCHES = (16, 64, 256)
TOLERANCE = 1e-4
LINE = (
    "{request:<16} {rows_per_second:>8} rows/s, {ratio} of in-process ({cpu_ratio} by processor time); "
    "p50 {p50_ms} ms, p99 {p99_ms} ms; {answers} answers, {lost} lost, {wrong} wrong"
)


@dataclass(frozen=True)
class Ask:
    """One kind of request.

    Attributes:
        name: for the table.
        rows: inputs a request.
        binary: whether tensors travel as bytes, by the Open Inference Protocol, rather than as JSON numbers.
    """

    name: str
    rows: int
    binary: bool

    def encode(self, inputs: NDArray[Any]) -> bytes:
        """The whole HTTP request for some inputs."""
        if not self.binary:
            return http_post(
                "/v1/predict", json.dumps({"inputs": inputs.tolist()}).encode(), {"Content-Type": "application/json"}
            )
        datatype = "UINT8" if inputs.dtype == np.uint8 else "FP32"
        size = {"binary_data_size": inputs.nbytes}
        tensor = {"name": "input", "datatype": datatype, "shape": list(inputs.shape), "parameters": size}
        header = json.dumps({"inputs": [tensor], "outputs": [{"name": "score"}]}).encode()
        headers = {"Inference-Header-Content-Length": str(len(header)), "Content-Type": "application/octet-stream"}
        return http_post("/v2/models/served/infer", header + inputs.tobytes(), headers)

    def scores(self, body: bytes) -> list[float]:
        """The scores in an answer."""
        answer = json.loads(body)
        if self.binary:
            return list(answer["outputs"][0]["data"])
        return [row["score"] for row in answer["predictions"]]


ASKS = [Ask("1 input, JSON", 1, False), Ask("4 inputs, JSON", 4, False), Ask("4 inputs, binary", 4, True)]


@dataclass
class Load:
    """What a run of clients saw."""

    answers: list[tuple[int, bytes]] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    lost: int = 0
    seconds: float = 0.0


def http_post(path: str, body: bytes, headers: dict[str, str]) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    assert length, head
    return int(head.split(b" ", 2)[1]), await reader.readexactly(int(length.group(1)))


async def ask_for(address: tuple[str, int], requests: list[bytes], seconds: float) -> Load:
    """Sends the requests in turn from 64 clients, one at a time each, for some seconds; then waits for the last answers."""
    load, turns = Load(), itertools.cycle(range(len(requests)))
    began = time.perf_counter()

    async def client() -> None:
        reader, writer = await asyncio.open_connection(*address, limit=2**24)
        while time.perf_counter() - began < seconds:
            turn = next(turns)
            sent = time.perf_counter()
            writer.write(requests[turn])
            status, body = await read_answer(reader)
            load.latencies.append(time.perf_counter() - sent)
            if status == 200:
                load.answers.append((turn, body))
            else:
                load.lost += 1
        writer.close()

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    load.seconds = time.perf_counter() - began
    return load


@dataclass(frozen=True)
class Rate:
    """Inputs a second, of the clock and of processor time."""

    wall: float
    cpu: float


def scorer_rate(detector: Detector, inputs: NDArray[Any], seconds: float) -> Rate:
    """How fast `Detector.predict` is in this process, at the size of batch that is best by each clock."""
    rates = []
    for batch in SCORER_BATCHES:
        rows, began, began_cpu = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - began < seconds / len(SCORER_BATCHES):
            detector.predict(inputs[rows % POOL : rows % POOL + batch])
            rows += batch
        rates.append(Rate(rows / (time.perf_counter() - began), rows / (time.process_time() - began_cpu)))
    return Rate(max(rate.wall for rate in rates), max(rate.cpu for rate in rates))


def cpu_seconds(process: psutil.Process) -> float:
    """Processor time of a process, its workers and this process."""
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return float(sum(each.user + each.system for each in times)) + time.process_time()


def count_wrong(load: Load, ask: Ask, expected: NDArray[np.float32]) -> int:
    """How many answers are not those to their inputs."""
    wrong = 0
    for turn, body in load.answers:
        own = expected[turn * ask.rows : (turn + 1) * ask.rows]
        wrong += not np.allclose(ask.scores(body), own, rtol=TOLERANCE, atol=TOLERANCE)
    return wrong


def untrained_detector() -> Detector:
    """The paper's FashionMNIST network, calibrated on noise."""
    recipe = load_recipe("fashion-mnist")
    shape = (1, 28, 28)
    recipe = recipe.model_copy(update={"backbone": resolve_backbone(recipe.backbone, shape)})
    torch.manual_seed(0)
    images = torch.randint(0, 256, (512, *shape), dtype=torch.uint8)
    model, _ = build_method(recipe, shape, 10)
    return Detector(model, Preprocessing.fit(images), [str(label) for label in range(10)], recipe).calibrate(images)


@contextmanager
def service(model: Path, workers: int) -> Iterator[tuple[tuple[str, int], psutil.Process]]:
    """The service as a process of its own, and its address."""
    command = [
        sys.executable,
        "-c",
        "from besnn.cli import main; main()",
        "serve",
        str(model),
        "--port",
        "0",
        "--workers",
        str(workers),
    ]
    command += ["--set", "model_name=served", "--set", "deadline_seconds=600"]
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            while not (found := re.search(r"http://([\d.]+):(\d+)", Path(f"/proc/self/fd/{log.fileno()}").read_text())):
                assert process.poll() is None, "the service did not start"
                time.sleep(0.1)
            yield (found.group(1), int(found.group(2))), psutil.Process(process.pid)
        finally:
            process.terminate()


@dataclass(frozen=True)
class Round:
    """One turn of the scorer, the service, and the scorer again."""

    load: Load
    scorer: tuple[Rate, Rate]
    service: Rate

    def ratio(self, clock: str) -> float:
        """The service's rate by `wall` or `cpu` time, relative to the scorer's."""
        before, after = (getattr(rate, clock) for rate in self.scorer)
        return float(2 * getattr(self.service, clock) / (before + after))


def measure(detector: Detector, model: Path, workers: int, rounds: int, seconds: float) -> list[dict[str, object]]:
    rng = np.random.default_rng(0)
    shape = (POOL, *detector.input_shape)
    is_image = len(shape) == 4
    inputs = rng.integers(0, 256, shape, dtype=np.uint8) if is_image else rng.normal(size=shape).astype(np.float32)
    expected = detector.predict(inputs).score
    figures = []
    with service(model, workers) as (address, process):
        for ask in ASKS:
            requests = [ask.encode(part) for part in np.split(inputs, POOL // ask.rows)]
            asyncio.run(ask_for(address, requests, 1.0))  # warm
            runs = []
            for _ in range(rounds):
                before = scorer_rate(detector, inputs, seconds / 2)
                began_cpu = cpu_seconds(process)
                load = asyncio.run(ask_for(address, requests, seconds))
                rows, spent = len(load.answers) * ask.rows, cpu_seconds(process) - began_cpu
                after = scorer_rate(detector, inputs, seconds / 2)
                runs.append(Round(load, (before, after), Rate(rows / load.seconds, rows / spent)))
            figures.append(summary(ask, runs, expected))
            print(LINE.format(**figures[-1]), flush=True)
    return figures


def summary(ask: Ask, runs: list[Round], expected: NDArray[np.float32]) -> dict[str, object]:
    """All rounds of one kind of request."""
    milliseconds = 1000 * np.concatenate([run.load.latencies for run in runs])
    return {
        "request": ask.name,
        "rows_per_request": ask.rows,
        "clients": CLIENTS,
        "rounds": len(runs),
        "rows_per_second": round(float(np.median([run.service.wall for run in runs])), 1),
        "in_process_rows_per_second": round(float(np.median([rate.wall for run in runs for rate in run.scorer])), 1),
        "ratio": round(float(np.median([run.ratio("wall") for run in runs])), 3),
        "cpu_ratio": round(float(np.median([run.ratio("cpu") for run in runs])), 3),
        "p50_ms": round(float(np.percentile(milliseconds, 50)), 1),
        "p99_ms": round(float(np.percentile(milliseconds, 99)), 1),
        "answers": sum(len(run.load.answers) for run in runs),
        "lost": sum(run.load.lost for run in runs),
        "wrong": sum(count_wrong(run.load, ask, expected) for run in runs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model or Path(folder) / "served.safetensors"
        if arguments.model is None:
            untrained_detector().save(model)
        detector = Detector.load(model)
        figures = measure(detector, model, arguments.workers, arguments.rounds, arguments.seconds)
        if arguments.json is not None:
            record = {
                "experiment": "serve-load",
                "method": detector.model.method,
                "members": detector.model.members,
                "input_shape": list(detector.input_shape),
                "workers": arguments.workers,
                "threads": torch.get_num_threads(),
                "cores": psutil.cpu_count(),
                "load_average": psutil.getloadavg()[1],  # of five minutes; above the cores, others were at work too
                "figures": figures,
                "provenance": provenance({}, detector.device),
            }
            with atomic_path(arguments.json) as partial:
                partial.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
