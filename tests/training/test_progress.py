import csv
import io

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from besnn.errors import DataError
from besnn.training.progress import ProgressBar, RunLog

ROW = {"epoch": 2, "loss": 0.51234, "classification": 0.4, "validation_accuracy": 0.925}


@pytest.mark.parametrize(
    ("verbose", "rest"), [(True, "classification 0.4  validation_accuracy 0.925"), (False, "92.5 % of held-out inputs right")]
)
def test_every_epoch_is_a_line_with_all_terms_only_if_verbose(verbose, rest):
    text = io.StringIO()
    bar = ProgressBar(Console(file=text, width=40), verbose)
    bar.start(3, 10)
    bar.step()
    bar.epoch(ROW)
    bar.finish()
    assert text.getvalue() == f"epoch 2  loss 0.5123  {rest}\n"


def test_what_is_said_is_printed_as_it_is():
    text = io.StringIO()
    ProgressBar(Console(file=text, width=20)).say("no row of class '[red]' is left to train on")
    assert text.getvalue() == "no row of class '[red]' is left to train on\n"


def test_a_terminal_shows_steps_and_time_left():
    text = io.StringIO()
    bar = ProgressBar(Console(file=text, width=100, force_terminal=True))
    bar.start(3, 10)
    bar.step()
    bar.bar.refresh()
    bar.finish()
    assert "4/10" in text.getvalue()
    assert "-:--:--" in text.getvalue()  # not known yet after one step


def test_the_trainer_reports_every_step_and_epoch(train, tiny_recipe, moons, tmp_path):
    text = io.StringIO()

    class Counting(ProgressBar):
        steps = 0

        def step(self) -> None:
            self.steps += 1
            super().step()

    reporter = Counting(Console(file=text))
    outcome = train(tiny_recipe(), moons, reporter=reporter)
    assert reporter.steps == outcome.trainer.total_steps == 30
    assert text.getvalue().count("epoch ") == 3


ROWS = [{"epoch": epoch, "loss": 1 / epoch, "validation_accuracy": epoch / 20} for epoch in range(1, 15)]


def read_csv(folder):
    with (folder / "log.csv").open(newline="") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def read_events(folder):
    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def check(folder, rows):
    assert read_csv(folder) == rows
    scalars = read_events(folder)
    assert set(scalars) == set(rows[0]) - {"epoch"}
    for name, found in scalars.items():
        assert [step for step, _ in found] == [row["epoch"] for row in rows]
        assert [value for _, value in found] == pytest.approx([row[name] for row in rows])


def test_both_logs_hold_every_epoch_at_any_time(tmp_path):
    log = RunLog(tmp_path, [])
    for count in range(1, len(ROWS) + 1):
        log.add(ROWS[:count])
        check(tmp_path, ROWS[:count])
    log.close()


def test_logs_that_cannot_be_written_are_one_line(tmp_path):
    (tmp_path / "run").write_text("a file in the place of the folder")
    with pytest.raises(DataError, match=r"cannot write .*run: "):
        RunLog(tmp_path / "run", [])


def test_after_an_interruption_the_logs_go_on_from_the_checkpoint(tmp_path):
    log = RunLog(tmp_path, [])
    for count in range(1, 9):
        log.add(ROWS[:count])
    # killed here: the log was not closed; the checkpoint knows of five epochs
    continued = RunLog(tmp_path, ROWS[:5])
    for count in range(6, len(ROWS) + 1):
        continued.add(ROWS[:count])
    continued.close()
    check(tmp_path, ROWS)
    assert len(list(tmp_path.glob("events.*"))) == 1
    log.close()


@pytest.mark.parametrize("stop", [6, 17])
def test_the_trainers_logs_agree_with_its_history_also_after_an_interruption(stop, train, tiny_recipe, moons, tmp_path):
    train(tiny_recipe(), moons, folder=tmp_path, stop_after=stop)
    continued = train(tiny_recipe(), moons, folder=tmp_path, resume=True)
    assert len(continued.history) == 3
    check(tmp_path, continued.history)


def test_terms_that_begin_later_get_a_column(tmp_path):
    rows = [{"epoch": 1, "loss": 1.0}, {"epoch": 2, "loss": 2.0, "entropy": 0.5}]
    log = RunLog(tmp_path, rows[:1])
    log.add(rows)
    log.close()
    assert (tmp_path / "log.csv").read_text().split() == ["epoch,loss,entropy", "1,1.0,", "2,2.0,0.5"]
