"""Decoding unchecked image files, in processes with limits of their own that are killed if they take too long.

A process of decoders imports this module, so it imports no web framework.
"""

import io
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from besnn.data.images import ImageSpec, Pixels, decode_image
from besnn.errors import DataError
from besnn.serve.problems import Problem

FORMATS = ("PNG", "JPEG", "WEBP")
MAX_SCANS = 100
"""Most scans of a progressive JPEG file; libjpeg decodes the whole image again for each, and writes about ten."""

CPU_SECONDS = 5
"""Most processor time that decoding the images of one request may take."""

MEMORY_BYTES = 768 * 2**20
"""Most memory that decoding may take, besides the decoder itself."""

HAS_LIMITS = sys.platform != "win32"
"""Whether the system can limit a process; elsewhere the service decodes images itself."""

_START = "from besnn.serve.decoding import answer_parent; answer_parent(int(__import__('sys').argv[1]))"


@dataclass(frozen=True)
class Limits:
    """Most pixels of an image's longer side, of an image, and of all images of a request; and the seconds to decode these."""

    side: int
    image: int
    request: int
    seconds: int = CPU_SECONDS


def decode_uploads(files: Mapping[str, bytes], spec: ImageSpec, limits: Limits) -> NDArray[np.uint8]:
    """Decode a request's image files, by name, as `uint8 [n, c, h, w]`; check all sizes before decoding any pixels."""
    total = sum(_declared_pixels(data, name, limits) for name, data in files.items())
    if total > limits.request:
        detail = f"the images have more than {limits.request:,} pixels: send fewer or smaller ones"
        raise Problem(413, "images-too-large", detail)
    decoded = np.empty((len(files), *spec.shape), np.uint8)
    for place, (name, data) in enumerate(files.items()):
        decoded[place] = _decode(data, spec, name)
    return decoded


def _declared_pixels(data: bytes, name: str, limits: Limits) -> int:
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        width = height = limits.side + 1
    except Exception:  # decoders raise nearly anything on a malformed file
        raise _unreadable(name) from None
    if max(width, height) > limits.side or width * height > limits.image:
        detail = f"{name} has more than {limits.image:,} pixels, or a side of more than {limits.side:,}: scale it down first"
        raise Problem(422, "image-too-large", detail)
    if data.startswith(b"\xff\xd8") and data.count(b"\xff\xda") > MAX_SCANS:
        raise Problem(422, "image-too-slow", f"{name} is a JPEG file of more than {MAX_SCANS} scans: save it again")
    return width * height


def _decode(data: bytes, spec: ImageSpec, name: str) -> Pixels:
    try:
        return decode_image(data, spec, name)
    except DataError as error:
        if isinstance(error.__cause__, MemoryError):
            detail = f"{name} needs too much memory to decode: scale it down first"
            raise Problem(422, "image-too-large", detail) from None
        raise _unreadable(name) from None


def _unreadable(name: str) -> Problem:
    return Problem(422, "image-unreadable", f"{name} is not a complete PNG, JPEG or WebP image: save it again")


class Decoders:
    """A few processes that decode images; one that had to be killed is replaced at once."""

    def __init__(self, count: int) -> None:
        self._all, self._is_closed = [_Decoder() for _ in range(count)], False
        self._idle: SimpleQueue[_Decoder] = SimpleQueue()
        for decoder in self._all:
            self._idle.put(decoder)

    def start(self) -> None:
        """Start all processes; without this, each is started when it is first needed."""
        for decoder in self._all if HAS_LIMITS else ():
            decoder.start()

    def decode(self, files: Mapping[str, bytes], spec: ImageSpec, limits: Limits, until: float) -> NDArray[np.uint8]:
        """Do the same as `decode_uploads` in a process; kill it with a TimeoutError at a time of `time.monotonic`."""
        if not HAS_LIMITS:
            return decode_uploads(files, spec, limits)
        decoder = self._idle.get()
        try:
            return decoder.decode(files, spec, limits, until)
        finally:
            with suppress(OSError):  # the next images try again
                if not self._is_closed:
                    decoder.start()
            self._idle.put(decoder)

    def close(self) -> None:
        """End all processes; decoding that is still under way fails."""
        self._is_closed = True
        for decoder in self._all:
            decoder.kill()


class _Decoder:
    """A process that decodes images, once it is started, and the pipe to it."""

    def __init__(self) -> None:
        self._running: tuple[subprocess.Popen[bytes], Connection] | None = None

    def start(self) -> Connection:
        """Return the pipe to the process, which is started unless it runs."""
        if self._running is None:
            own, its = socket.socketpair()
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
            with its:
                command = [sys.executable, "-c", _START, str(its.fileno())]
                process = subprocess.Popen(command, env=environment, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)
            self._running = process, Connection(own.detach())
        return self._running[1]

    def decode(self, files: Mapping[str, bytes], spec: ImageSpec, limits: Limits, until: float) -> NDArray[np.uint8]:
        if time.monotonic() >= until:
            raise TimeoutError("the client no longer waits for these images")
        header = {"names": list(files), "spec": asdict(spec), "limits": asdict(limits)}
        try:
            pipe = self.start()
            for part in (json.dumps(header).encode(), *files.values()):
                pipe.send_bytes(part)
            if not pipe.poll(max(0.0, until - time.monotonic())):
                self.kill()
                raise TimeoutError("the client no longer waits for these images")
            refusal = json.loads(pipe.recv_bytes())
            pixels = b"" if refusal else pipe.recv_bytes()
        except TimeoutError:
            raise
        except (OSError, EOFError):  # it has ended, by its limits or otherwise
            raise _killed(self.kill(), limits) from None
        if refusal:
            raise Problem(*refusal)
        return np.frombuffer(pixels, np.uint8).reshape(len(files), *spec.shape)

    def kill(self) -> int:
        """End the process and return its exit status; 0 if none is running."""
        running, self._running = self._running, None
        if running is None:
            return 0
        process, pipe = running
        process.kill()  # without effect on the status of a process that was about to end
        pipe.close()
        return process.wait()


def _killed(status: int, limits: Limits) -> Problem:
    if status == -signal.SIGXCPU:
        detail = f"the images take more than {limits.seconds} s to decode: send fewer, or save them again"
        return Problem(422, "image-too-slow", detail)
    return Problem(422, "image-unreadable", "an image cannot be decoded: send the images one by one to find out which")


def answer_parent(descriptor: int) -> None:
    """Decode what arrives on a pipe until the other end is closed (the main function of a decoder process)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the service decides when this one ends
    _limit_memory()
    pipe = Connection(descriptor)
    with suppress(EOFError, OSError):
        while True:
            header = json.loads(pipe.recv_bytes())
            files = {name: pipe.recv_bytes() for name in header["names"]}
            _limit_processor_time(header["limits"]["seconds"])
            for answer in _answer(files, header):
                pipe.send_bytes(answer)


def _answer(files: Mapping[str, bytes], header: Mapping[str, Any]) -> Sequence[bytes | memoryview]:
    spec = ImageSpec(**{**header["spec"], "size": tuple(header["spec"]["size"])})
    try:
        return b"null", decode_uploads(files, spec, Limits(**header["limits"])).reshape(-1).data
    except Problem as refused:
        return (json.dumps([refused.status, refused.code, refused.detail]).encode(),)
    except MemoryError:
        refusal = 413, "images-too-large", "the images need too much memory to decode: send fewer or smaller ones"
        return (json.dumps(refusal).encode(),)


def _limit_memory() -> None:
    """Limit this process's address space to what it has and `MEMORY_BYTES`; write no core dumps, which would hold images."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # only Linux says how much it has
        with open("/proc/self/statm") as file:
            limit = int(file.read().split()[0]) * resource.getpagesize() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _limit_processor_time(seconds: int) -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time()) + seconds, hard))
