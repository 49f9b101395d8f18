"""Reading a `torch.export` program, a network in one file, without executing anything that is in the file.

torch's own reader unpickles what the file says is pickled, evaluates text as Python and looks up any function by its name. So
the archive is checked and rewritten first: only tensors, and a graph of torch's own operators, remain.
"""

import io
import json
import logging
import re
import warnings
import zipfile
from typing import Any

import torch
from torch import nn

from besnn.errors import DataError, one_line

_TENSORS = re.compile(r"data/(weights/weight|constants/tensor)_\d+")
_CONFIGS = re.compile(r"data/(weights|constants)/\w+_config\.json")
_GRAPH = re.compile(r"models/\w+\.json")
_LEFT_OUT = re.compile(r"extra/.*|data/sample_inputs/\w+\.pt")
_FORMAT = re.compile(r"archive_format|archive_version|byteorder|version|\.data/\w+")
_OPERATORS = re.compile(r"torch\.ops\.(aten|prims|higher_order)\.\w+(\.\w+)?|_operator\.[a-z]+_?|math\.\w+|torch\.sym_\w+")
_SYMBOLS = re.compile(r"[suz]\d+|[A-Z]\w*|positive|nonnegative|integer|\d+|")
_CONTAINERS = re.compile(r"builtins\.(tuple|list|dict)")
ADVICE = "save the network with torch.export.save, from tensors and torch's own operators alone"


def load_program(content: bytes, name: str = "the program") -> tuple[nn.Module, tuple[int, ...], bytes]:
    """Return the network, the shape of one of its inputs, and the rewritten file; errors call the file `name`.

    The network has the layers of the one that was exported, by the same names.
    """
    safe = _rewritten(content, name)
    try:
        with warnings.catch_warnings(), torch.device("cpu"):
            warnings.simplefilter("ignore")
            logging.getLogger("torch.export").setLevel(logging.ERROR)
            program = torch.export.load(io.BytesIO(safe))
            network = torch.export.unflatten(program)
    except Exception as error:  # torch's reader raises nearly anything
        reason = one_line(error)[:200]
        raise DataError(f"{name} is not a torch.export program that this torch reads ({reason}): {ADVICE}") from None
    inputs = program.graph_signature.user_inputs
    if len(inputs) != 1 or len(program.graph_signature.user_outputs) != 1:
        found = f"{len(inputs)} inputs and returns {len(program.graph_signature.user_outputs)} values"
        raise DataError(f"{name} takes {found}: export a network from one tensor to logits")
    (shape,) = (node.meta["val"].shape for node in program.graph.nodes if node.op == "placeholder" and node.name == inputs[0])
    for module in network.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            node.meta.clear()  # only the export's own use, and it could not be copied
    return network.eval(), tuple(size if isinstance(size, int) else 0 for size in shape[1:]), safe


def save_program(network: nn.Module, example: torch.Tensor) -> bytes:
    """Return the file of a network for batches of any size like the example."""
    file = io.BytesIO()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(network, (example,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
        torch.export.save(program, file)
    return file.getvalue()


def _rewritten(content: bytes, name: str) -> bytes:
    if not zipfile.is_zipfile(io.BytesIO(content)):
        kind = "a pickle, which besnn does not read" if content[:1] == b"\x80" else "not a torch.export program"
        raise DataError(f"{name} is {kind}: {ADVICE}")
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for entry in old.infolist():
            root, _, path = entry.filename.partition("/")
            if path.startswith("extra/"):
                continue
            undated = zipfile.ZipInfo(f"{root}/{path}")  # the same network, the same bytes
            new.writestr(undated, _checked_entry(path, old.read(entry), name))
    return target.getvalue()


def _checked_entry(path: str, content: bytes, name: str) -> bytes:
    """Return what of an archive's entry may be read; refuse an entry of any other kind."""
    if _TENSORS.fullmatch(path) or _FORMAT.fullmatch(path):
        return content
    if _LEFT_OUT.fullmatch(path):
        return b""
    try:
        if _CONFIGS.fullmatch(path):
            return _checked_config(json.loads(content), path)
        if _GRAPH.fullmatch(path):
            return _checked_graph(json.loads(content))
        raise ValueError(f"it holds {path}")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        pickled = "it is a pickle: " if path.endswith("data.pkl") else ""
        raise DataError(f"{name} is not a plain torch.export program ({pickled}{one_line(error)}): {ADVICE}") from None


def _checked_config(config: Any, path: str) -> bytes:
    kind = path.split("/")[1]
    for tensor, entry in config["config"].items():
        if entry["use_pickle"] or not _TENSORS.fullmatch(f"data/{kind}/{entry['path_name']}"):
            raise ValueError(f"{tensor!r} is pickled")
    return json.dumps(config).encode()


def _checked_graph(graph: Any) -> bytes:
    graph.pop("guards_code", None)  # Python code
    _check_part(graph)
    return json.dumps(graph).encode()


def _check_part(part: Any) -> None:
    """Refuse what the reader would evaluate or look up, anywhere in the graph's description."""
    if isinstance(part, list):
        for each in part:
            _check_part(each)
    if not isinstance(part, dict):
        return
    if isinstance(target := part.get("target"), str) and "metadata" in part and not _OPERATORS.fullmatch(target):
        raise ValueError(f"it calls {target!r}")
    if isinstance(expression := part.get("expr_str"), str) and not _is_arithmetic(expression):
        raise ValueError(f"it computes a size as {expression!r}")
    for spec in ("in_spec", "out_spec"):
        if not all(map(_CONTAINERS.fullmatch, re.findall(r'"type": "([^"]*)"', part.get(spec) or ""))):
            raise ValueError("its inputs or outputs are of types of its own")
    if isinstance(metadata := part.get("metadata"), dict):
        part["metadata"] = {key: value for key, value in metadata.items() if key == "nn_module_stack"}
    for each in part.values():
        _check_part(each)


def _is_arithmetic(expression: str) -> bool:
    """Return whether an expression consists of symbols, numbers and sympy's own classes.

    >>> _is_arithmetic("Add(Symbol('s77', positive=True, integer=True), Integer(1))"), _is_arithmetic("exec('import os')")
    (True, False)
    """
    words = re.split(r"[\s(),=+*/'-]+", expression)
    return all(map(_SYMBOLS.fullmatch, words))
