"""`besnn export`: a model as one file for other runtimes."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from besnn.cli.options import Json, Model, Quiet, option
from besnn.cli.output import announce


class Format(StrEnum):
    """The format to write."""

    ONNX = "onnx"
    TORCH = "torch"


def export(
    model: Model,
    form: Annotated[Format, typer.Option("--format", help="A file for ONNX Runtime, or a torch.export program.")] = Format.ONNX,
    output: Annotated[
        Path | None, option("FILE", "The file to write. (default: MODEL.onnx or MODEL.pt2)", "--output", "-o")
    ] = None,
    fdr: Annotated[
        float | None,
        option("RATE", "Flag so that on average at most this share of a batch's flags is false. (default: alpha)"),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a model as one graph for ONNX Runtime or torch.

    The graph goes from raw inputs to label, probabilities, score, p-value, flag, decision and label set, for any batch size.
    """
    from besnn.cli.loading import check_output, load_detector, require_model

    output = output or Path(model).with_suffix(".onnx" if form is Format.ONNX else ".pt2")
    require_model(model)
    check_output("--output", output, model)
    from besnn.export import OPSET
    from besnn.export import export as export_detector

    detector = load_detector(model, calibrated=True)
    export_detector(detector, output, form.value, fdr)
    facts = {"output": str(output), "format": form.value, "bytes": output.stat().st_size}
    facts |= {"opset": OPSET} if form is Format.ONNX else {}
    opset = f", opset {OPSET}" if form is Format.ONNX else ""
    announce(facts, [f"wrote {output} ({facts['bytes']:,} bytes{opset})"], as_json=json, quiet=quiet)
