"""How much of the in-process scorer's speed the service keeps on the same cores, with 64 clients.

The service runs as a process of its own on loopback, with as many threads as PyTorch takes by itself. The clients run in this
process and take their share of the same cores. In every round the scorer is timed here, in batches of the best of three sizes,
just before and just after the service; `ratio` is the service's rate over the mean of the two, and the median over rounds is
reported. `cpu_ratio` is the same for rows per second of processor time, the service's and the clients' together; it says more
where other programs use the machine too. Every answer is compared with the scorer's for the same inputs after the clock stops.
"""

import asyncio
import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from benchmarks.documents import Table, bench_record
from besnn import Detector
from besnn.model import Preprocessing
from besnn.recipe.build import build_method, resolve_backbone
from besnn.training import load_recipe

CLIENTS = 64
POOL = 1024
SCORER_BATCHES = (16, 64, 256)
TOLERANCE = 1e-4
LINE = (
    "{request:<16} {rows_per_second:>8} rows/s, {ratio} of in-process ({cpu_ratio} by processor time); "
    "p50 {p50_ms} ms, p99 {p99_ms} ms; {answers} answers, {lost} lost, {wrong} wrong"
)


@dataclass(frozen=True)
class RequestKind:
    """One kind of request: its name in the table, inputs per request, and how they travel."""

    name: str
    rows: int
    binary: bool  # as bytes, by the Open Inference Protocol, rather than as JSON numbers

    def encode(self, inputs: NDArray[Any]) -> bytes:
        """Return the whole HTTP request for some inputs."""
        if not self.binary:
            body = json.dumps({"inputs": inputs.tolist()}).encode()
            return http_post("/v1/predict", body, {"Content-Type": "application/json"})
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


REQUEST_KINDS = [
    RequestKind("1 input, JSON", 1, False),
    RequestKind("4 inputs, JSON", 4, False),
    RequestKind("4 inputs, binary", 4, True),
]


@dataclass
class Load:
    """The answers that the clients got, and how long they took."""

    answers: list[tuple[int, bytes]] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    lost: int = 0
    seconds: float = 0.0


def http_post(path: str, body: bytes, headers: dict[str, str]) -> bytes:
    """Return a POST request as bytes."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read one response; return its status and body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    assert length, head
    return int(head.split(b" ", 2)[1]), await reader.readexactly(int(length.group(1)))


async def send_requests(address: tuple[str, int], requests: list[bytes], seconds: float) -> Load:
    """Send requests in turn from 64 clients, each one at a time, for some seconds; then wait for the last answers."""
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
    """Inputs per second of wall-clock time and of processor time."""

    wall: float
    cpu: float


def scorer_rate(detector: Detector, inputs: NDArray[Any], seconds: float) -> Rate:
    """Measure `Detector.predict` in this process, at the batch size that is best by each clock."""
    rates = []
    for batch in SCORER_BATCHES:
        rows, began, began_cpu = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - began < seconds / len(SCORER_BATCHES):
            detector.predict(inputs[rows % POOL : rows % POOL + batch])
            rows += batch
        rates.append(Rate(rows / (time.perf_counter() - began), rows / (time.process_time() - began_cpu)))
    return Rate(max(rate.wall for rate in rates), max(rate.cpu for rate in rates))


def cpu_seconds(process: psutil.Process) -> float:
    """Return the processor time of a process, its workers and this process."""
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return float(sum(each.user + each.system for each in times)) + time.process_time()


def count_wrong(load: Load, kind: RequestKind, expected: NDArray[np.float32]) -> int:
    """Count the answers that are not those for their inputs."""
    by_request = expected.reshape(-1, kind.rows)
    return sum(
        not np.allclose(kind.scores(body), by_request[turn], rtol=TOLERANCE, atol=TOLERANCE) for turn, body in load.answers
    )


def untrained_detector() -> Detector:
    """Return the paper's FashionMNIST network, untrained (which is as fast) and calibrated on noise."""
    recipe = load_recipe("fashion-mnist")
    shape = (1, 28, 28)
    recipe = recipe.model_copy(update={"backbone": resolve_backbone(recipe.backbone, shape)})
    torch.manual_seed(0)
    images = torch.randint(0, 256, (512, *shape), dtype=torch.uint8)
    model, _ = build_method(recipe, shape, 10)
    return Detector(model, Preprocessing.fit(images), [str(label) for label in range(10)], recipe).calibrate(images)


@contextmanager
def service(
    model: Path, workers: int, more: Sequence[str] = ("--set", "deadline_seconds=600")
) -> Iterator[tuple[tuple[str, int], psutil.Process]]:
    """Start the service as a process of its own; yield its address and the process."""
    command = [sys.executable, "-m", "besnn", "serve", str(model), "--port", "0", "--workers", str(workers)]
    command += ["--set", "model_name=served", *more]
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
    """One round: the scorer, the service, and the scorer again."""

    load: Load
    scorer: tuple[Rate, Rate]
    service: Rate

    def ratio(self, clock: str) -> float:
        """Return the service's rate by `wall` or `cpu` time, relative to the scorer's."""
        before, after = (getattr(rate, clock) for rate in self.scorer)
        return float(2 * getattr(self.service, clock) / (before + after))


@dataclass(frozen=True)
class LoadOptions:
    """How long to measure: worker processes of the service, rounds, and seconds per round."""

    workers: int = 1
    rounds: int = 3
    seconds: float = 8.0


def measure_load(model: Path | None, options: LoadOptions, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure a service of a model, or of the paper's untrained FashionMNIST network; return the record."""
    with tempfile.TemporaryDirectory() as folder:
        if model is None:
            model = Path(folder) / "served.safetensors"
            untrained_detector().save(model)
        detector = Detector.load(model)
        figures = _measure_requests(detector, model, options, say)
    fields = {
        "method": detector.model.method,
        "members": detector.model.members,
        "input_shape": list(detector.input_shape),
        "workers": options.workers,
        "threads": torch.get_num_threads(),
        "cores": psutil.cpu_count(),
        "load_average": psutil.getloadavg()[1],  # over five minutes; above the cores, other programs ran too
        "figures": figures,
    }
    return bench_record("serve-load", fields, detector.device)


def _measure_requests(
    detector: Detector, model: Path, options: LoadOptions, say: Callable[[str], None]
) -> list[dict[str, object]]:
    rng = np.random.default_rng(0)
    shape = (POOL, *detector.input_shape)
    is_image = len(shape) == 4
    inputs = rng.integers(0, 256, shape, dtype=np.uint8) if is_image else rng.normal(size=shape).astype(np.float32)
    expected = detector.predict(inputs).score
    figures = []
    with service(model, options.workers) as (address, process):
        for kind in REQUEST_KINDS:
            requests = [kind.encode(part) for part in np.split(inputs, POOL // kind.rows)]
            asyncio.run(send_requests(address, requests, 1.0))  # warm
            runs = []
            for _ in range(options.rounds):
                before = scorer_rate(detector, inputs, options.seconds / 2)
                began_cpu = cpu_seconds(process)
                load = asyncio.run(send_requests(address, requests, options.seconds))
                rows, spent = len(load.answers) * kind.rows, cpu_seconds(process) - began_cpu
                after = scorer_rate(detector, inputs, options.seconds / 2)
                runs.append(Round(load, (before, after), Rate(rows / load.seconds, rows / spent)))
            figures.append(summary(kind, runs, expected))
            say(LINE.format(**figures[-1]))
    return figures


def summary(kind: RequestKind, runs: list[Round], expected: NDArray[np.float32]) -> dict[str, object]:
    """Summarise all rounds of one kind of request."""
    milliseconds = 1000 * np.concatenate([run.load.latencies for run in runs])

    def median(values: list[float], digits: int) -> float:
        return round(float(np.median(values)), digits)

    return {
        "request": kind.name,
        "rows_per_request": kind.rows,
        "clients": CLIENTS,
        "rounds": len(runs),
        "rows_per_second": median([run.service.wall for run in runs], 1),
        "in_process_rows_per_second": median([rate.wall for run in runs for rate in run.scorer], 1),
        "ratio": median([run.ratio("wall") for run in runs], 3),
        "cpu_ratio": median([run.ratio("cpu") for run in runs], 3),
        "p50_ms": round(float(np.percentile(milliseconds, 50)), 1),
        "p99_ms": round(float(np.percentile(milliseconds, 99)), 1),
        "answers": sum(len(run.load.answers) for run in runs),
        "lost": sum(run.load.lost for run in runs),
        "wrong": sum(count_wrong(run.load, kind, expected) for run in runs),
    }


def load_table(records: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table for docs/serving.md: the service beside the scorer in process, by number of workers."""
    rows = [
        (
            str(record["workers"]),
            figure["request"],
            f"{figure['rows_per_second']:,.0f}",
            f"{figure['in_process_rows_per_second']:,.0f}",
            f"{figure['ratio']:.0%}",
            f"{figure['cpu_ratio']:.0%}",
            f"{figure['p50_ms']:,.0f}",
            f"{figure['p99_ms']:,.0f}",
            f"{figure['answers']:,}",
            str(figure["lost"]),
            str(figure["wrong"]),
        )
        for record in records
        for figure in record["figures"]
    ]
    words = "Workers, Request, Inputs/s, In process, Share, Share by processor time, p50 ms, p99 ms, Answers, Lost, Wrong"
    record = max(records, key=lambda each: each["load_average"])
    shape = " × ".join(map(str, record["input_shape"]))
    note = (
        f"{record['figures'][0]['clients']} clients on the same {record['cores']} cores as the service; "
        f"{record['method']} of {record['members']} members, inputs of {shape}; median of {record['figures'][0]['rounds']} "
        f"rounds. Every answer was checked against its input. {_how_busy(record)}"
    )
    return Table("Load", tuple(words.split(", ")), rows, note)


def _how_busy(record: Mapping[str, Any]) -> str:
    load, cores = record["load_average"], record["cores"]
    if load <= cores + 1:
        return "Nothing else ran on the machine."
    return (
        f"Other programs ran on the machine (load average {load:.0f} on {cores} cores): only the numbers of lost and wrong "
        "answers count here; to measure speed, run it on a quiet machine."
    )
