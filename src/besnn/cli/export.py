"""`besnn export`: a model as one file that other runtimes run."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from besnn.cli.options import Json, Model, Quiet


class Format(StrEnum):
    """What to write."""

    ONNX = "onnx"
    TORCH = "torch"


_SUFFIXES = {Format.ONNX: ".onnx", Format.TORCH: ".pt2"}


def export(
    model: Model,
    form: Annotated[Format, typer.Option("--format", help="For ONNX Runtime, or a torch.export program.")] = Format.ONNX,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write. (default: MODEL with .onnx or .pt2)", show_default=False),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a model as one graph, from raw inputs to label, probabilities, score, p-value and flag, for a batch of any size."""
    from besnn.cli.loading import load_detector, refuse_to_overwrite
    from besnn.cli.output import announce
    from besnn.export.write import OPSET
    from besnn.export.write import export as export_detector

    output = output or Path(model).with_suffix(_SUFFIXES[form])
    refuse_to_overwrite("--output", output, model)
    detector = load_detector(model, calibrated=True)
    export_detector(detector, output, form.value)
    facts = {"output": str(output), "format": form.value, "bytes": output.stat().st_size}
    facts |= {"opset": OPSET} if form is Format.ONNX else {}
    opset = f", opset {OPSET}" if form is Format.ONNX else ""
    announce(facts, [f"wrote {output} ({facts['bytes']:,} bytes{opset})"], as_json=json, quiet=quiet)
