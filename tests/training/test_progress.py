import io

from rich.console import Console

from besnn.training.reporting import ProgressBar, Silent

ROW = {"epoch": 2, "loss": 0.51234, "classification": 0.4, "validation_accuracy": 0.925}


def test_every_epoch_is_a_line_with_terms_and_accuracy():
    text = io.StringIO()
    bar = ProgressBar(Console(file=text, width=40))
    bar.start(3, 10)
    bar.step()
    bar.epoch(ROW)
    bar.finish()
    assert text.getvalue() == "epoch 2  loss 0.5123  classification 0.4  validation_accuracy 0.925\n"


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


def test_silence(capsys):
    reporter = Silent()
    reporter.start(0, 10)
    reporter.step()
    reporter.epoch(ROW)
    reporter.finish()
    assert capsys.readouterr() == ("", "")


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
