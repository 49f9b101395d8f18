"""A service with two workers under a mix of requests at 70 % of its capacity, with a fault at regular intervals.

Every answer is compared with the detector's own. An answer counts as lost if its connection breaks; only those that a killed
worker had in hand may be. Memory is that of all processes of the service, without pages that they share.
"""

import asyncio
import io
import itertools
import json
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from benchmarks.documents import Table, bench_record
from benchmarks.serve_fuzz import QUICK
from benchmarks.serve_load import REQUEST_KINDS, http_post, read_answer, service
from besnn import Detector, fit_detector
from besnn.data import digits
from besnn.training import load_recipe

CLIENTS, POOL, SHARE = 16, 128, 0.7
KILL_WINDOW = 2.0  # seconds after the end of a worker in which its answers may be missed
TOLERANCE = 1e-4


@dataclass
class Soak:
    """What the clients saw."""

    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: int = 0
    lost: list[float] = field(default_factory=list)  # when
    kills: list[float] = field(default_factory=list)  # when
    faults: Counter[str] = field(default_factory=Counter)
    memory: list[int] = field(default_factory=list)

    def lost_otherwise(self) -> int:
        """Return how many answers were lost that no killed worker had in hand."""
        return sum(not any(0 <= moment - kill < KILL_WINDOW for kill in self.kills) for moment in self.lost)


Request = tuple[bytes, list[float], Callable[[bytes], list[float]]]


def requests_of(detector: Detector, images: np.ndarray[Any, Any]) -> list[Request]:
    """Return requests of all kinds, each with the scores that it should get and how to read them from the answer."""
    scores = detector.predict(images).score
    found: list[Request] = []
    for start, kind in zip(range(0, len(images) - 4, 4), itertools.cycle([*REQUEST_KINDS, None]), strict=False):
        if kind is not None:
            rows = slice(start, start + kind.rows)
            found.append((kind.encode(images[rows]), scores[rows].tolist(), kind.scores))
            continue
        file = io.BytesIO()
        Image.fromarray(images[start, 0]).save(file, "PNG")
        found.append((upload_of(file.getvalue()), scores[start : start + 1].tolist(), REQUEST_KINDS[0].scores))
    return found


def upload_of(file: bytes) -> bytes:
    """Return the HTTP request that uploads an image file."""
    part = b'--b\r\nContent-Disposition: form-data; name="a"; filename="a"\r\n\r\n' + file + b"\r\n--b--\r\n"
    return http_post("/v1/predict", part, {"Content-Type": "multipart/form-data; boundary=b"})


async def load(address: tuple[str, int], requests: list[Request], seconds: float, rate: float | None, soak: Soak) -> float:
    """Send requests for some seconds, as fast as they are answered or at a rate; return how many per second were answered."""
    turns, began = itertools.cycle(requests), time.monotonic()

    async def client(number: int) -> None:
        due = began + number / (rate or 1)
        while time.monotonic() - began < seconds:
            with suppress(ConnectionRefusedError):
                await ask_over_one_connection(due)
            due = time.monotonic()

    async def ask_over_one_connection(due: float) -> None:
        reader, writer = await asyncio.open_connection(*address)
        try:
            while time.monotonic() - began < seconds:
                if rate is not None:
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
                    due = max(due + CLIENTS / rate, time.monotonic() - 1)
                request, expected, scores = next(turns)
                sent = time.monotonic()
                writer.write(request)
                status, body = await read_answer(reader)
                soak.latencies.append(time.monotonic() - sent)
                soak.statuses[status] += 1
                soak.wrong += status == 200 and not np.allclose(scores(body), expected, rtol=TOLERANCE, atol=TOLERANCE)
        except (OSError, EOFError):
            soak.lost.append(time.monotonic())
        finally:
            writer.close()

    before = sum(soak.statuses.values())
    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    return (sum(soak.statuses.values()) - before) / (time.monotonic() - began)


class Faults:
    """What goes wrong, in turn."""

    def __init__(self, address: tuple[str, int], process: psutil.Process, model: Path, state: Path, soak: Soak) -> None:
        self._address, self._process, self._model, self._state, self._soak = address, process, model, state, soak
        self.all: list[Callable[[], Awaitable[None]]] = [
            self.worker_killed,
            self.disk_away,
            self.slow_clients,
            self.endless_trailers,
            self.hostile_image,
            self.model_replaced,
        ]

    async def worker_killed(self) -> None:
        """Kill a worker."""
        workers = [each for each in self._process.children() if any("spawn_main" in word for word in each.cmdline())]
        self._soak.kills.append(time.monotonic())
        workers[0].kill()

    async def disk_away(self) -> None:
        """Take the folder with the drift state away for a while."""
        away = self._state.parent.with_name("away")
        self._state.parent.rename(away)
        await asyncio.sleep(3)
        away.rename(self._state.parent)

    async def slow_clients(self) -> None:
        """Open many connections that never finish their request."""
        opened = []
        for _ in range(200):
            with suppress(OSError):
                opened.append(socket.create_connection(self._address, timeout=5))
                opened[-1].sendall(b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nX: ")
        await asyncio.sleep(3)
        for connection in opened:
            connection.close()

    async def endless_trailers(self) -> None:
        """Send trailers without an end."""
        _, writer = await asyncio.open_connection(*self._address)
        writer.write(b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")
        with suppress(OSError):
            for _ in range(1000):
                writer.write(b"X: a\r\n" * 5000)
                await writer.drain()
        writer.close()

    async def hostile_image(self) -> None:
        """Send a JPEG file with a million markers, which takes long to read."""
        file = io.BytesIO()
        Image.new("L", (8, 8)).save(file, "JPEG")
        whole = file.getvalue()
        slow = whole[:2] + b"\xff\xfe\x00\x02" * 3_000_000 + whole[2:]
        reader, writer = await asyncio.open_connection(*self._address)
        writer.write(upload_of(slow))
        await read_answer(reader)
        writer.close()

    async def model_replaced(self) -> None:
        """Put another file in the place of the model for a moment."""
        whole = self._model.read_bytes()
        self._model.write_bytes(b"another")
        await asyncio.sleep(1)
        self._model.write_bytes(whole)


async def inject(faults: Faults, every: float, process: psutil.Process, soak: Soak) -> None:
    """Cause the faults in turn, and note the memory before each, until cancelled."""
    for fault in itertools.cycle(faults.all):
        await asyncio.sleep(every)
        soak.memory.append(_memory(process))
        with suppress(psutil.Error, IndexError):
            await fault()
            soak.faults[fault.__name__] += 1


def _memory(process: psutil.Process) -> int:
    total = 0
    for each in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):
            total += each.memory_full_info().uss
    return total


async def run(detector: Detector, folder: Path, minutes: float, every: float) -> dict[str, Any]:
    """Measure the capacity for some seconds, then soak."""
    images = np.ascontiguousarray(digits().inputs[:POOL])
    model, state = folder / "model.safetensors", folder / "state" / "drift.sqlite"
    state.parent.mkdir()
    detector.save(model)
    requests = requests_of(detector, images)
    with service(model, 2, ["--drift-state", str(state), "--set", "deadline_seconds=10"]) as (address, process):
        await load(address, requests, 5, None, Soak())  # both workers are up and warm
        capacity = await load(address, requests, 10, None, Soak())
        soak = Soak()
        faults = asyncio.create_task(inject(Faults(address, process, model, state, soak), every, process, soak))
        rate = await load(address, requests, 60 * minutes, SHARE * capacity, soak)
        faults.cancel()
        soak.memory.append(_memory(process))
    p50, p99 = np.quantile(soak.latencies, [0.5, 0.99]) * 1000
    return {
        "minutes": minutes,
        "capacity_per_second": round(capacity, 1),
        "rate_per_second": round(rate, 1),
        "answers": sum(soak.statuses.values()),
        "statuses": {str(status): count for status, count in sorted(soak.statuses.items())},
        "wrong": soak.wrong,
        "lost": len(soak.lost),
        "lost_otherwise": soak.lost_otherwise(),
        "faults": dict(soak.faults),
        "p50_ms": round(float(p50), 1),
        "p99_ms": round(float(p99), 1),
        "memory_mib": [round(size / 2**20) for size in soak.memory],
    }


def measure_soak(minutes: float, every: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Run the service for some minutes, with a fault every few seconds; return the record."""
    detector = fit_detector(load_recipe("digits", QUICK), digits()).detector
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(run(detector, Path(folder), minutes, every))
    say(json.dumps(found))
    return bench_record("soak", found)


def soak_table(record: Mapping[str, Any]) -> Table:
    """Return the record as a table."""
    memory = record["memory_mib"]
    head = (
        "Minutes",
        "Requests/s",
        "Answers",
        "Other than 200",
        "Wrong",
        "Lost",
        "Not a killed worker's",
        "p50 ms",
        "p99 ms",
        "MiB",
    )
    row = (
        f"{record['minutes']:g}",
        f"{record['rate_per_second']:.0f} of {record['capacity_per_second']:.0f}",
        f"{record['answers']:,}",
        f"{record['answers'] - record['statuses'].get('200', 0):,}",
        f"{record['wrong']}",
        f"{record['lost']}",
        f"{record['lost_otherwise']}",
        f"{record['p50_ms']:.0f}",
        f"{record['p99_ms']:.0f}",
        f"{memory[0]} to {memory[-1]}",
    )
    faults = ", ".join(f"{name.replace('_', ' ')} {count}×" for name, count in record["faults"].items())
    where = f"Two workers and their clients on {record['provenance']['hardware']}"
    rates = "Requests per second: sent, of what the service reached before"
    return Table("Soak", head, [row], f"{where}. {rates}. Faults: {faults}.")
