"""`besnn monitor`: the drift alarm over a file of scores."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from besnn.cli.options import Json, Quiet, option
from besnn.cli.output import announce, count

if TYPE_CHECKING:
    from besnn.serve.drift import MonitoredFile


def monitor(
    scores: Annotated[
        Path, typer.Argument(metavar="SCORES", help="A file that besnn score wrote, rows in the order of the stream.")
    ],
    model: Annotated[
        Path | None, option("MODEL", "The model that made the scores, to compare them with its calibration scores.")
    ] = None,
    alarm_level: Annotated[float, option("L", "A false alarm has a probability of at most 1/L.")] = 100.0,
    window: Annotated[int, option("N", "How many recent inputs the rate of unknown ones is measured over.")] = 1000,
    state: Annotated[Path | None, option("FILE", "A file that keeps the stream, to continue it; needs --model.")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Raise an alarm when a stream of inputs drifts.

    The probability of ever raising a false alarm is bounded. Without --model, only a change within SCORES is visible, not one
    before its first row.
    """
    from besnn.cli.loading import load_detector
    from besnn.errors import InputError
    from besnn.serve.drift import monitor_file

    if not scores.is_file():
        raise InputError(f"{scores} is not a file: make one with besnn score MODEL INPUT -o scores.parquet")
    decision = None if model is None else load_detector(model, calibrated=True).decision
    thresholds = (None, None) if decision is None else (decision.threshold, decision.by_class)
    monitored = monitor_file(scores, *thresholds, alarm_level=alarm_level, window=window, state=state)
    status = monitored.status
    counts = {"inputs": monitored.inputs, "skipped": monitored.skipped, "flagged": monitored.flagged}
    facts = {"file": str(scores), **counts, **asdict(status), "alarm": status.alarm}
    facts |= {"alarm_level": alarm_level, "window": window}
    announce(facts, _in_words(scores, monitored, alarm_level, window), as_json=json, quiet=quiet)


def _in_words(scores: Path, monitored: "MonitoredFile", alarm_level: float, window: int) -> list[str]:
    status = monitored.status
    left_out = f", {monitored.skipped:,} more without a score" if monitored.skipped else ""
    lines = [f"{scores}: {count(monitored.inputs, 'input')}, {monitored.flagged:,} flagged as out-of-distribution{left_out}"]
    if status.ood_rate is not None:
        low, high = (100 * bound for bound in status.ood_rate_interval)
        recent = count(min(status.steps, window), "input")
        interval = f"95 % interval {low:.2f} to {high:.2f} %"
        lines.append(f"rate         {100 * status.ood_rate:.2f} % of the last {recent} ({interval})")
    lines.append(f"martingale   10^{status.log_martingale / math.log(10):.2f} after {count(status.steps, 'input')}")
    false_alarm = f"the probability of ever raising a false alarm is at most {1 / alarm_level:g}"
    if status.alarm_step is None:
        lines.append(f"alarm        none: {alarm_level:g} was not reached ({false_alarm})")
    else:
        lines.append(f"alarm        at input {status.alarm_step:,}, where {alarm_level:g} was reached ({false_alarm})")
    return lines
