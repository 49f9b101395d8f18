"""What a run reports while it trains, and the logs that it leaves: a CSV file and TensorBoard's scalars."""

import csv
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from besnn.storage.files import whole_file, writing

Row = dict[str, float]


class Reporter:
    """A listener to training that reports nothing: subclass it to show progress."""

    def say(self, text: str) -> None:
        """Take a message to the user."""

    def start(self, done: int, total: int) -> None:
        """Training starts, or continues, with `done` of `total` steps taken."""

    def step(self) -> None:
        """One more step is done."""

    def epoch(self, row: Row) -> None:
        """An epoch is over: its loss terms, accuracy and learning rate."""

    def finish(self) -> None:
        """Training is over."""


class ProgressBar(Reporter):
    """Prints one line per epoch, with all terms of the loss if verbose; on a terminal, shows a bar with the time left."""

    def __init__(self, console: Console, verbose: bool = False) -> None:
        self.console, self.verbose = console, verbose
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        self.bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.task: TaskID | None = None

    def say(self, text: str) -> None:
        """Print the message as it is: it may contain class names that look like markup."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def start(self, done: int, total: int) -> None:
        """Show the bar."""
        self.bar.start()
        self.task = self.bar.add_task("training", total=total, completed=done)

    def step(self) -> None:
        """Advance the bar."""
        if self.task is not None:
            self.bar.advance(self.task)

    def epoch(self, row: Row) -> None:
        """Print the epoch's line."""
        numbers = [f"{name} {value:.4g}" for name, value in row.items() if name != "epoch"]
        if not self.verbose:
            accuracy = row.get("validation_accuracy")
            numbers = [f"loss {row['loss']:.4g}"]
            numbers += [] if accuracy is None else [f"{100 * accuracy:.1f} % of held-out inputs right"]
        self.bar.console.print(f"epoch {row['epoch']:.0f}  {'  '.join(numbers)}", highlight=False, soft_wrap=True)

    def finish(self) -> None:
        """Remove the bar."""
        if not self.bar.disable:  # rich before 14.3 ends a bar that it did not show with an empty line
            self.bar.stop()


class RunLog:
    """One row per epoch, in `log.csv` and in TensorBoard's event file.

    Both start from the rows that a checkpoint holds: what an interrupted run logged after its checkpoint is logged again.
    """

    def __init__(self, folder: Path, history: list[Row]) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import

        self.folder = folder
        with writing(folder):
            for events in folder.glob("events.out.tfevents.*"):
                events.unlink()
            # A TensorBoard that is already watching drops what it has read from step 0 on.
            self.events = SummaryWriter(str(folder), purge_step=0)
            for row in history:
                self._add_scalars(row)
        self._write_csv(history)

    def add(self, history: list[Row]) -> None:
        """Log the last row of the history."""
        with writing(self.folder):
            self._add_scalars(history[-1])
            self.events.flush()
        self._write_csv(history)

    def close(self) -> None:
        """Close the event file."""
        with writing(self.folder):
            self.events.close()

    def _add_scalars(self, row: Row) -> None:
        for name, value in row.items():
            if name != "epoch":
                self.events.add_scalar(name, value, int(row["epoch"]))

    def _write_csv(self, history: list[Row]) -> None:
        names = list(dict.fromkeys(name for row in history for name in row))
        with whole_file(self.folder / "log.csv") as partial, partial.open("w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(history)
