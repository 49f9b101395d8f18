"""Mutated files of every format that besnn reads: each gives a result or one line, in little time.

Model files are mutated by their structure: a node of the header is replaced, removed or duplicated, or a tensor gets another
shape, type or name, and the file is signed again, so that the digest does not hide what follows it. So are `.npz` files, by the
header of their array. All formats are also mutated as bytes: flipped bits, and spans cut, repeated or inserted.
"""

import io
import json
import struct
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet
import torch
from PIL import Image

from benchmarks.documents import Table, bench_record
from benchmarks.serve_fuzz import MUTATIONS, QUICK, mutate_json
from besnn import Detector, fit_detector
from besnn.data import ImageSpec, decode_image, load, stream, two_moons
from besnn.errors import BesnnError
from besnn.storage.tensor_file import MODEL_FILE, parse_tensor_file, tensor_file_bytes
from besnn.training import load_recipe

SLOWEST = 10.0  # seconds of processor time; a file that takes longer counts as a hang
SIZES = [-1, 0, 1, 2, 3, 7, 1000, 100_000, 2**31, 2**40, 2**63]
KINDS = ["<f4", ">f8", "|O", "|S0", "<U3", "<c8", "|V5", "<M8[s]", "?", "bogus"]
DTYPES = [torch.int64, torch.float64, torch.float16, torch.bool, torch.uint8]

Mutate = Callable[[np.random.Generator], bytes]
Read = Callable[[bytes], object]


def mutated_bytes(whole: bytes, rng: np.random.Generator) -> bytes:
    """Return a file with some bytes mutated."""
    mutation = MUTATIONS[rng.integers(len(MUTATIONS))]
    for _ in range(int(rng.integers(1, 4))):
        whole = mutation(whole, rng)
    return whole


def mutated_model(whole: bytes, parts: tuple[dict[str, torch.Tensor], dict[str, Any]], rng: np.random.Generator) -> bytes:
    """Return a model file, made of a dictionary of tensors and a header, with one of them mutated, signed again."""
    if rng.random() < 0.1:
        return mutated_bytes(whole, rng)
    tensors, header = dict(parts[0]), parts[1]
    if rng.random() < 0.7:
        changed = mutate_json(header, rng)
        return tensor_file_bytes(MODEL_FILE, tensors, changed if isinstance(changed, dict) else {"recipe": changed})
    name = list(tensors)[rng.integers(len(tensors))]
    value = tensors.pop(name)
    choice = rng.integers(5)
    if choice == 0:
        tensors[f"{name}x"] = value
    elif choice == 1:
        tensors[name] = value.to(DTYPES[rng.integers(len(DTYPES))])
    elif choice == 2:
        tensors[name] = value.reshape(-1)[: int(rng.integers(value.numel() + 1))]
    elif choice == 3:
        tensors[name] = value[None]
    return tensor_file_bytes(MODEL_FILE, tensors, header)


def mutated_npz(whole: bytes, rng: np.random.Generator) -> bytes:
    """Return an archive whose array has a mutated header, or one that is mutated as bytes."""
    if rng.random() < 0.4:
        return mutated_bytes(whole, rng)
    numbers = rng.normal(size=(5, 2)).astype(np.float32).tobytes()
    shape = tuple(int(rng.choice(SIZES)) for _ in range(rng.integers(0, 5))) if rng.random() < 0.7 else (5, 2)
    kind = str(rng.choice(KINDS)) if rng.random() < 0.5 else "<f4"
    fields: Any = {"descr": kind, "fortran_order": bool(rng.integers(2)), "shape": shape}
    text = repr(mutate_json(fields, rng) if rng.random() < 0.3 else fields).encode("utf-8", "replace")
    version = int(rng.integers(1, 4))
    length = len(text) if rng.random() < 0.8 else int(rng.integers(2**16))
    start = (
        b"\x93NUMPY" + bytes([version, 0]) + (struct.pack("<H", length % 2**16) if version == 1 else struct.pack("<I", length))
    )
    file = io.BytesIO()
    methods = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
    method = int(rng.choice(methods, p=[0.4, 0.4, 0.15, 0.05]))  # to start LZMA takes longer than all the rest
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("X.npy", start + text + numbers)
    return mutated_bytes(file.getvalue(), rng) if rng.random() < 0.3 else file.getvalue()


def read_data(path: Path) -> Read:
    """Return a function that loads a table file whole, and in batches."""

    def read(content: bytes) -> None:
        path.unlink(missing_ok=True)  # some file systems write a file that is cut short and filled again to the disk at once
        path.write_bytes(content)
        try:
            load(path)
        finally:
            for _ in stream(path, columns=2):
                pass

    return read


def read_model(content: bytes) -> None:
    """Load a detector and use it."""
    detector = Detector.from_bytes(content)
    detector.predict(np.zeros((1, *detector.input_shape), np.float32))
    detector.to_bytes()


def formats(folder: Path) -> dict[str, tuple[Mutate, Read]]:
    """Return how to mutate and read a file of each format."""
    detector = fit_detector(load_recipe("two-moons", [*QUICK, "backbone.hidden=[8]"]), two_moons(300)).detector
    model, npz, parquet = detector.to_bytes(), io.BytesIO(), io.BytesIO()
    points = two_moons(200).inputs
    np.savez(npz, X=points)
    pa.parquet.write_table(pa.table({"x": points[:, 0], "y": points[:, 1]}), parquet)
    csv = "\n".join(["x,y", *(f"{x},{y}" for x, y in points.tolist())]).encode()
    parts = parse_tensor_file(model, MODEL_FILE)
    found: dict[str, tuple[Mutate, Read]] = {
        "model": (lambda rng: mutated_model(model, parts, rng), read_model),
        "npz": (lambda rng: mutated_npz(npz.getvalue(), rng), read_data(folder / "a.npz")),
        "csv": (lambda rng: mutated_bytes(csv, rng), read_data(folder / "a.csv")),
        "parquet": (lambda rng: mutated_bytes(parquet.getvalue(), rng), read_data(folder / "a.parquet")),
    }
    pixels = np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)
    for name in ("PNG", "JPEG", "WEBP", "TIFF", "GIF"):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, name)

        def mutate(rng: np.random.Generator, whole: bytes = file.getvalue()) -> bytes:
            return mutated_bytes(whole, rng)

        found[name.lower()] = (mutate, lambda content: decode_image(content, ImageSpec(8, 3), "image"))
    return found


def fuzz_format(mutate: Mutate, read: Read, files: int, seed: int = 0) -> dict[str, Any]:
    """Read mutated files; count what became of them, and stop at the first that is not a result or one line."""
    rng = np.random.default_rng(seed)
    outcomes: Counter[str] = Counter()
    slowest, before = 0.0, psutil.Process().memory_info().rss
    for place in range(files):
        content = mutate(rng)
        began = time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # decoders warn about what they then refuse
                read(content)
            outcomes["read"] += 1
        except BesnnError as error:
            if "\n" in str(error):
                raise AssertionError(f"file {place}: more than one line: {error}") from error
            outcomes["refused"] += 1
        slowest = max(slowest, time.process_time() - began)
        if slowest > SLOWEST:
            raise AssertionError(f"file {place} took {slowest:.1f} s")
    grown = (psutil.Process().memory_info().rss - before) / 2**20
    return {"files": files, **outcomes, "slowest_cpu_seconds": round(slowest, 3), "memory_growth_mib": round(grown, 1)}


def measure_file_fuzz(files: int, seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Read some mutated files of every format; return the record."""
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (mutate, read) in formats(Path(folder)).items():
            runs.append({"format": name, **fuzz_format(mutate, read, files, seed)})
            say(json.dumps(runs[-1]))
    return bench_record("file-fuzz", {"runs": runs, "seed": seed})


def file_fuzz_table(record: Mapping[str, Any]) -> Table:
    """Return the record as a table."""
    rows = [
        (
            run["format"],
            f"{run['files']:,}",
            f"{run.get('read', 0):,}",
            f"{run.get('refused', 0):,}",
            f"{run['slowest_cpu_seconds']:.2f}",
            f"{run['memory_growth_mib']:+.1f}",
        )
        for run in record["runs"]
    ]
    head = ("Format", "Files", "Read", "Refused in one line", "Slowest, processor seconds", "Memory, MiB")
    return Table("Mutated files", head, rows, "Memory: what the process grew by.")
