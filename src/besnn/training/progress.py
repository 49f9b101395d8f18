"""What a run says while it goes on."""

from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

Row = dict[str, float]


class Reporter(Protocol):
    """Told how training goes."""

    def say(self, text: str) -> None:
        """What is trained next, where more than one thing is, or what the user should know of it."""

    def start(self, done: int, total: int) -> None:
        """Training begins, or continues, with `done` of `total` steps taken."""

    def step(self) -> None:
        """One step more."""

    def epoch(self, row: Row) -> None:
        """An epoch is over: loss terms, accuracy, learning rate."""

    def finish(self) -> None:
        """Training is over."""


class Silent:
    """Says nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def start(self, done: int, total: int) -> None:
        """Nothing."""

    def step(self) -> None:
        """Nothing."""

    def epoch(self, row: Row) -> None:
        """Nothing."""

    def finish(self) -> None:
        """Nothing."""


class ProgressBar:
    """A line an epoch with loss terms and accuracy and, on a terminal, a moving bar with the time left."""

    def __init__(self, console: Console) -> None:
        self.console = console
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        self.bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.task: TaskID | None = None

    def say(self, text: str) -> None:
        """Prints it."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)  # names of classes are in it

    def start(self, done: int, total: int) -> None:
        """Shows the bar."""
        self.bar.start()
        self.task = self.bar.add_task("training", total=total, completed=done)

    def step(self) -> None:
        """Moves the bar."""
        if self.task is not None:
            self.bar.advance(self.task)

    def epoch(self, row: Row) -> None:
        """Prints the epoch's line."""
        numbers = "  ".join(f"{name} {value:.4g}" for name, value in row.items() if name != "epoch")
        self.bar.console.print(f"epoch {row['epoch']:.0f}  {numbers}", highlight=False, soft_wrap=True)

    def finish(self) -> None:
        """Takes the bar away."""
        self.bar.stop()
