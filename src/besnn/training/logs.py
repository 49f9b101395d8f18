"""The logs a run leaves: a CSV file, and scalars for TensorBoard."""

import csv
from pathlib import Path

from besnn.storage.files import atomic_path
from besnn.training.reporting import Row

CSV_NAME = "log.csv"


class RunLog:
    """One row an epoch, in `log.csv` and in TensorBoard's event file.

    Both start from the rows that a checkpoint knows of: what an interrupted run logged beyond it will be logged again.

    Args:
        folder: the run's own.
        history: the rows so far.
    """

    def __init__(self, folder: Path, history: list[Row]) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import

        for left_over in folder.glob("events.out.tfevents.*"):
            left_over.unlink()
        self.folder = folder
        # A TensorBoard that is already watching forgets what it has seen from step 0 on.
        self.events = SummaryWriter(str(folder), purge_step=0)
        for row in history:
            self._add_scalars(row)
        write_csv_log(folder / CSV_NAME, history)

    def add(self, history: list[Row]) -> None:
        """Logs the last row; the others are known."""
        self._add_scalars(history[-1])
        self.events.flush()
        write_csv_log(self.folder / CSV_NAME, history)

    def close(self) -> None:
        """Closes the event file."""
        self.events.close()

    def _add_scalars(self, row: Row) -> None:
        for name, value in row.items():
            if name != "epoch":
                self.events.add_scalar(name, value, int(row["epoch"]))


def write_csv_log(path: Path, history: list[Row]) -> None:
    """One line an epoch. The file is rewritten whole: a run that goes on from a checkpoint drops what came after it."""
    names = list(dict.fromkeys(name for row in history for name in row))
    with atomic_path(path) as partial, partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(history)
