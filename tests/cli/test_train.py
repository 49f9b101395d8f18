import json
import shutil

import numpy as np
import pytest
import yaml
from PIL import Image, ImageDraw
from scipy.stats import betabinom
from sklearn import datasets

from besnn.cli.loading import choose_recipe
from besnn.detection.conformal import conformal_rank
from besnn.detector import Detector
from besnn.training import load_recipe

ALPHA = 0.1


def table(folder, write_csv):
    """Split a table of scikit-learn's at random into CSVs for training and testing; add one of rows far away."""
    bunch = datasets.load_breast_cancer()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    rows = [[*bunch.data[row], bunch.target_names[bunch.target[row]]] for row in order]
    header, middle = [*bunch.feature_names, "diagnosis"], round(0.6 * len(rows))
    train = write_csv(folder / "train.csv", header, rows[:middle])
    test = write_csv(folder / "test.csv", header, rows[middle:])
    far = write_csv(folder / "far.csv", header[:-1], bunch.data[:50] * 20)
    return train, test, far, ["--epochs=30", "--label=diagnosis"]


def draw_shapes(folder, count, seed):
    """Draw shapes of many sizes, colours and file formats, one sub-folder per shape."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        size = int(rng.integers(24, 48))
        background, ink = (tuple(int(value) for value in rng.integers(low, low + 60, 3)) for low in (0, 190))
        low, high = size * rng.uniform(0.1, 0.25), size * rng.uniform(0.75, 0.9)
        image = Image.new("RGB", (size, size), background)
        pen, shape = ImageDraw.Draw(image), ("disc", "square", "cross")[number % 3]
        if shape == "disc":
            pen.ellipse([low, low, high, high], fill=ink)
        elif shape == "square":
            pen.rectangle([low, low, high, high], fill=ink)
        else:
            pen.line([low, low, high, high], fill=ink, width=max(2, size // 10))
            pen.line([low, high, high, low], fill=ink, width=max(2, size // 10))
        (folder / shape).mkdir(parents=True, exist_ok=True)
        image.save(folder / shape / f"{number:03}.{('png', 'jpg', 'bmp')[number // 3 % 3]}")
    return folder


def image_folder(folder, write_csv):
    train, test = draw_shapes(folder / "train", 240, seed=0), draw_shapes(folder / "test", 150, seed=1)
    noise = np.random.default_rng(2).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
    np.savez(folder / "noise.npz", images=noise)
    return train, test, folder / "noise.npz", ["--epochs=8", "--set=pretraining.epochs=8", "--set=data.image.size=[12, 12]"]


def npz_of_images(folder, write_csv):
    images, labels = datasets.load_digits(n_class=4, return_X_y=True)
    images = images.reshape(-1, 8, 8) / 16
    np.savez(folder / "train.npz", images=images[:400], labels=labels[:400])
    np.savez(folder / "test.npz", images=images[400:], labels=labels[400:])
    np.savez(folder / "noise.npz", images=np.random.default_rng(0).random((50, 8, 8)))
    return folder / "train.npz", folder / "test.npz", folder / "noise.npz", ["--epochs=8", "--set=pretraining.epochs=5"]


@pytest.mark.parametrize("make", [table, image_folder, npz_of_images], ids=lambda make: make.__name__)
def test_your_own_data_is_calibrated_to_its_alpha(besnn, tmp_path, write_csv, tiny, make):
    train, test, strange, options = make(tmp_path, write_csv)
    model = tmp_path / "model.safetensors"
    trained = besnn("train", train, "-o", model, f"--alpha={ALPHA}", "--json", "-q", *tiny, *options)
    assert (trained.code, trained.err) == (0, "")
    calibration = json.loads(trained.out)["calibration"]
    record = json.loads(besnn("evaluate", model, "--in", test, "--out", strange, "--json", "-").out)
    observed = record["false_alarm_rate"]
    n = calibration["inputs"]
    rank = conformal_rank(n, ALPHA)
    # Exchangeable rows: the number of false alarms in a test set of m rows is beta-binomial, whatever the model is like.
    low, high = betabinom.interval(0.999, observed["n"], n + 1 - rank, rank)
    assert low <= observed["flagged"] <= high
    assert record["detection_rate"][str(strange)]["rate"] > 0.8
    assert record["accuracy"] > 0.6


@pytest.fixture(scope="module")
def quick(tiny):
    return ["train", "two-moons", "--epochs=2", "--json", *tiny]


def test_outcome_in_words_and_as_json(besnn, tmp_path, quick):
    model = tmp_path / "deep" / "model.safetensors"
    outcome = besnn(*quick, "-o", model)
    facts = json.loads(outcome.out)
    assert facts["model"] == str(model)
    assert (facts["method"], facts["members"], facts["epochs"]) == ("be-snn", 2, 2)
    assert facts["class_names"] == ["upper", "lower"]
    detector = Detector.load(model)
    assert facts["calibration"]["threshold"] == detector.threshold.threshold
    assert facts["parameters"] == sum(p.numel() for p in detector.model.parameters())
    assert [line.split()[:2] for line in outcome.err.splitlines()] == [["epoch", "1"], ["epoch", "2"]]

    words = besnn(*quick[:3], *quick[4:], "-o", model)
    assert f"wrote {model}" in words.out
    assert "false alarms on at most 5 % of known inputs" in words.out
    silent = besnn(*quick[:3], *quick[4:], "-o", model, "--quiet")
    assert silent == (0, "", "")


def test_every_model_has_its_own_run_folder_with_logs_and_no_checkpoint(besnn, tmp_path, quick):
    folders = {"model.run": "model.run.run", "net.v1": "net.v1.run", "net.v2": "elsewhere"}
    for name, folder in folders.items():
        more = ["--run-folder", tmp_path / folder] if folder == "elsewhere" else ["--resume"]  # there is nothing to resume
        assert besnn(*quick, "-o", tmp_path / name, *more).code == 0
        assert Detector.load(tmp_path / name).threshold is not None
        assert (tmp_path / folder / "log.csv").exists()
        assert not (tmp_path / folder / "checkpoint.safetensors").exists()
    assert {path.name for path in tmp_path.iterdir()} == {*folders, *folders.values()}


@pytest.mark.parametrize("method", ["be-snn", "softmax", "duq", "gaussian", "deep-ensemble", "batch-ensemble"])
def test_every_method_trains_with_its_own_defaults(besnn, tmp_path, method, stripe_folder):
    model = tmp_path / "model.safetensors"
    sizes = ["--set=backbone.hidden=[4]", "--set=backbone.feature_dim=4", "--set=data.calibration=0.4"]
    outcome = besnn("train", stripe_folder, "-o", model, f"--method={method}", "--epochs=1", "--json", "-q", *sizes)
    assert (outcome.code, outcome.err) == (0, "")
    assert json.loads(outcome.out)["method"] == method


def test_set_wins_over_options_and_options_over_the_recipe(besnn, tmp_path, tiny):
    own = yaml.safe_load(besnn("recipes", "two-moons").out)
    own["training"] = {"epochs": 1, "seed": 5, "batch_size": 50}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(own))
    model = tmp_path / "model.safetensors"
    besnn("train", tmp_path / "own.yaml", "-o", model, *tiny, "--seed=6", "--set=training.seed=7", "--alpha=0.2", "-q")
    recipe = Detector.load(model).recipe
    assert (recipe.training.epochs, recipe.training.batch_size, recipe.training.seed) == (1, 50, 7)
    assert recipe.calibration.alpha == 0.2


def test_the_recipe_follows_from_the_data(besnn, tmp_path, stripe_folder, write_csv):
    rows = [[row, row % 3, "ab"[row % 2]] for row in range(60)]
    table = write_csv(tmp_path / "my: table.csv", ["x", "y", "label"], rows)
    np.savez(tmp_path / "rows.npz", X=np.zeros((9, 4)), y=np.arange(9) % 2)
    np.savez(tmp_path / "pictures.npz", images=np.zeros((9, 6, 6), np.uint8), labels=np.arange(9) % 2)
    table_recipe = choose_recipe(str(table))
    assert (table_recipe.data.source, table_recipe.data.image) == (str(table), None)
    assert table_recipe.method == load_recipe("table").method
    assert choose_recipe(str(tmp_path / "rows.npz")).backbone == load_recipe("table").backbone
    pictures = choose_recipe(str(tmp_path / "pictures.npz"))
    assert (pictures.backbone, pictures.data.image) == (load_recipe("images").backbone, None)
    assert choose_recipe(str(stripe_folder)).data.image == load_recipe("images").data.image
    assert choose_recipe("digits:test", ["data.source=digits"]) == load_recipe("digits", ["data.source=digits"])


@pytest.mark.parametrize("name", ["images", "digits", "svhn"])
def test_a_folder_called_like_a_recipe_or_a_built_in_set_is_data(tmp_path, monkeypatch, stripe_folder, name):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(stripe_folder, name)
    recipe = choose_recipe(name)
    assert (recipe.data.source, recipe.backbone) == (name, load_recipe("images").backbone)
    assert choose_recipe("digits:train").backbone == load_recipe("digits").backbone


@pytest.fixture
def stopped(besnn, tmp_path, quick, monkeypatch):
    """A model file that was not written, as Ctrl-C was pressed after the last epoch, and the checkpoint of its run."""
    model = tmp_path / "stopped.safetensors"

    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("besnn.training.fit.fit_scoring", interrupted)
        outcome = besnn(*quick, "-o", model)
    assert (outcome.code, outcome.out) == (130, "")
    assert outcome.err.splitlines()[-1] == "stopped: the same command with --resume continues"
    assert not model.exists()
    return model, tmp_path / "stopped.safetensors.run" / "checkpoint.safetensors"


def test_a_stopped_run_resumes_to_the_same_model_and_is_never_overwritten(besnn, tmp_path, quick, stopped):
    model, checkpoint = stopped
    assert besnn(*quick, "-o", model).code == 2
    assert checkpoint.exists()
    assert besnn(*quick, "-o", model, "--resume", "--seed=9").code == 2  # another recipe
    assert besnn(*quick, "-o", model, "--resume").code == 0
    assert not checkpoint.exists()
    besnn(*quick, "-o", tmp_path / "whole.safetensors")
    first, second = (Detector.load(path).model.state_dict() for path in (tmp_path / "whole.safetensors", model))
    assert all((first[name] == second[name]).all() for name in first)


def test_a_stopped_run_can_be_dropped(besnn, quick, stopped):
    model, checkpoint = stopped
    outcome = besnn(*quick, "-o", model, "--restart", "--seed=3")  # --resume would refuse another seed
    assert outcome.code == 0
    assert not checkpoint.exists()
    assert Detector.load(model).recipe.training.seed == 3
    nothing = besnn(*quick, "-o", model, "--resume")
    assert nothing.code == 0
    assert "holds nothing to resume: starting from the beginning" in nothing.err.splitlines()[0]


def test_unreadable_images_are_listed_or_left_out(besnn, tmp_path, stripe_folder, tiny):
    folder, model = tmp_path / "photos", tmp_path / "model.safetensors"
    shutil.copytree(stripe_folder, folder)
    bad = [sorted((folder / name).iterdir())[3] for name in ("flat", "upright")]
    for path in bad:
        path.write_bytes(path.read_bytes()[:50])
    command = ["train", folder, "-o", model, "--epochs=1", *tiny, "--set=data.calibration=0.4", "--set=pretraining=null"]
    refused = besnn(*command)
    listed = ", ".join(path.relative_to(folder).as_posix() for path in bad)
    assert refused.code == 1
    assert f"2 of 64 images cannot be read: {listed}" in refused.err
    assert "--skip-bad" in refused.err
    outcome = besnn(*command, "--skip-bad")
    assert outcome.code == 0
    assert listed in outcome.err
    assert listed in Detector.load(model).provenance["data_note"]


def test_what_is_left_out_of_a_table_is_said(besnn, tmp_path, write_csv, tiny):
    rows = [[row, *point, "ab"[row % 2]] for row, point in enumerate(np.random.default_rng(0).normal(size=(120, 2)))]
    table = write_csv(tmp_path / "my table.csv", ["", "x", "y", "label"], rows)
    model = tmp_path / "my model.safetensors"
    outcome = besnn("train", table, "-o", model, "--epochs=1", *tiny)
    assert "column '' is the row index that pandas wrote, and is left out" in outcome.err
    assert Detector.load(model).feature_names == ("x", "y")
    assert f"besnn score '{model}' INPUT -o scores.csv" in outcome.out  # ready to copy
    assert "only 24 inputs set the threshold" in outcome.out
    assert besnn("train", table, "-o", model, "--epochs=1", "-q", *tiny) == (0, "", "")


def test_one_class_is_trained_and_evaluated(besnn, tmp_path, stripe_folder, tiny):
    model = tmp_path / "model.safetensors"
    known = [tmp_path / part for part in ("train", "test")]
    for number, path in enumerate(sorted((stripe_folder / "flat").iterdir())):
        target = known[number % 4 == 0] / "product" / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    grey = ["--set=data.image={size: [8, 8], channels: 1}", "--alpha=0.2"]
    trained = besnn("train", known[0], "-o", model, *tiny, *grey)
    assert trained.code == 0, trained.err
    assert "one class: a single epoch" in trained.err
    assert "accuracy" not in trained.out
    outcome = besnn("evaluate", model, "--in", known[1], "--out", stripe_folder / "upright", "--report", tmp_path / "page.html")
    assert outcome.code == 0, outcome.err
    assert "knows one class, product, and raises an alarm" in outcome.out
    assert "right class" not in outcome.out


def test_a_folder_that_hides_a_built_in_set_is_mentioned(besnn, tmp_path, monkeypatch, stripe_folder, stripes_model):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(stripe_folder, "digits")
    outcome = besnn("score", stripes_model, "digits", "-o", "scores.csv", "--json")
    assert json.loads(outcome.out)["inputs"] == 64
    assert outcome.err == "digits: reading your folder, not the built-in set (digits:test names that)\n"


def test_a_quick_look(besnn, stripe_folder, tmp_path):
    few = ["--set=data.calibration=0.35", "--set=pretraining=null", "--set=backbone.channels=2", "--set=data.image.size=[8,8]"]
    outcome = besnn("train", str(stripe_folder), "-o", str(tmp_path / "m"), "--quick", "--json", *few)
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["epochs"] == max(1, round(0.25 * load_recipe("images").training.epochs))
    assert "training images are shifted by up to 1 pixel, and" in outcome.err
    refused = besnn("train", str(stripe_folder), "-o", str(tmp_path / "m"), "--quick", "--thorough")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "give only one of them" in refused.err
