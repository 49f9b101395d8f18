"""OpenOOD's and pytorch-ood's protocols: with the real classes where they are installed, and as published where not."""

import numpy as np
import pytest
import torch
from sklearn.metrics import auc, precision_recall_curve, roc_auc_score

from besnn.data import made_up_outliers
from besnn.detection import ScoreSet
from besnn.errors import InputError, NotReadyError
from besnn.evaluation import openood_metrics
from besnn.wrapping.openood import Postprocessor
from besnn.wrapping.pytorch_ood import AsDetector, FeatureDensity, score_of


def loader(images, labels, as_dict):
    x, y = torch.from_numpy(images) / 255, torch.as_tensor(labels)
    pairs = zip(x.split(128), y.split(128), strict=True)
    return [{"data": a, "label": b} if as_dict else (a, b) for a, b in pairs]


@pytest.fixture(scope="module")
def strange(unseen):
    return made_up_outliers(unseen.inputs, kinds=["mosaics"])["mosaics"]


@pytest.mark.parametrize("score", ["combined", "vim", "energy"])
def test_openood(score, network, digits, unseen, strange):
    processor = Postprocessor(None, score)
    assert (processor.APS_mode, processor.hyperparam_search_done) == (False, True)
    with pytest.raises(NotReadyError, match="call setup"):
        processor.postprocess(network, torch.zeros(2, 1, 8, 8))
    loaders = {"train": loader(digits.inputs, digits.labels, True), "val": loader(unseen.inputs, unseen.labels, True)}
    processor.setup(network, loaders, {})
    with torch.no_grad():
        prediction, confidence = processor.postprocess(network, torch.from_numpy(unseen.inputs[:50]) / 255)
        assert torch.equal(prediction, network(torch.from_numpy(unseen.inputs[:50]) / 255).argmax(1))
    assert confidence.shape == (50,)
    known = processor.inference(network, loaders["val"], progress=False)
    unknown = processor.inference(network, loader(strange, -np.ones(len(strange), int), True))
    np.testing.assert_array_equal(known[2], unseen.labels)
    labels = np.repeat([1, 0], [len(unseen), len(strange)])
    assert roc_auc_score(labels, np.concatenate([known[1], unknown[1]])) > 0.8
    with pytest.raises(InputError, match="pass the training data as 'train'"):
        Postprocessor().setup(network, {"test": []})


def test_openoods_own_evaluator(network, digits, unseen, strange, monkeypatch):
    api = pytest.importorskip("openood.evaluation_api.evaluator", reason="needs OpenOOD")
    known = {
        name: loader(data.inputs, data.labels, True) for name, data in (("train", digits), ("val", unseen), ("test", unseen))
    }
    unknown = {"mosaics": loader(strange, -np.ones(len(strange), int), True)}
    loaders = {"id": known, "csid": {}, "ood": {"val": unknown["mosaics"], "near": unknown, "far": unknown}}
    monkeypatch.setattr(api, "data_setup", lambda *_: None)  # it would download CIFAR-10
    monkeypatch.setattr(api, "get_id_ood_dataloader", lambda *_, **__: loaders)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    evaluator = api.Evaluator(network, "cifar10", preprocessor=len, postprocessor=Postprocessor(), config_root=".")
    found = evaluator.eval_ood(progress=False).loc["mosaics"].iloc[0]
    scores = [-processed[1] for processed in (evaluator.scores["id"]["test"], evaluator.scores["ood"]["near"]["mosaics"])]
    ours = openood_metrics(*(each.astype(float) for each in scores))
    assert {name: found[name] for name in ours} == pytest.approx(ours)
    assert found["ACC"] > 95


def test_openoods_conventions():
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(size=300).round(1), rng.normal(1.5, 1, 200).round(1)
    found = openood_metrics(inside, outside)
    # as in OpenOOD's compute_all_metrics: confidences, labels of -1 for OOD
    conf, label = -np.concatenate([inside, outside]), np.repeat([0, -1], [300, 200])
    indicator = (label == -1).astype(int)
    precision, recall, _ = precision_recall_curve(indicator, -conf)
    assert found["AUPR_OUT"] == pytest.approx(100 * auc(recall, precision))
    assert found["AUROC"] == pytest.approx(100 * roc_auc_score(indicator, -conf))
    threshold = np.sort(outside)[::-1][int(np.ceil(0.95 * 200)) - 1]
    assert found["FPR@95"] == pytest.approx(100 * (inside >= threshold).mean())


def test_a_shuffled_loader_that_leaves_inputs_out(network, digits, unseen):
    labels = torch.from_numpy(digits.labels).clone()
    labels[::10] = -1  # outliers
    data = torch.utils.data.TensorDataset(torch.from_numpy(digits.inputs) / 255, labels)
    shuffled = torch.utils.data.DataLoader(data, 100, shuffle=True, drop_last=True)
    detector = AsDetector(network, "combined").fit(shuffled).detector
    tails = detector.scoring.combined.tails
    assert {len(tail.reference) for tail in tails.values()} == {len(digits) // 2}
    for name, tail in tails.items():  # none of them is among the inputs that it is compared with
        if "neighbour" in name:
            assert (tail.reference < 1e-6).double().mean() < 0.02
    (density, *_) = detector.scoring.densities.values()
    assert density.density.state()["codes"].shape[1] <= 1400 - len(digits) // 2


def test_as_one_of_pytorch_oods_detectors(network, digits, unseen, strange):
    detector = AsDetector(network, "combined")
    with pytest.raises(NotReadyError, match="not fitted"):
        detector.predict(torch.zeros(2, 1, 8, 8))
    detector.fit(loader(digits.inputs, digits.labels, False))
    known, unknown = (detector(torch.from_numpy(images) / 255) for images in (unseen.inputs, strange))
    assert roc_auc_score(np.repeat([0, 1], [len(known), len(unknown)]), torch.cat([known, unknown])) > 0.8


def test_pytorch_oods_own(network, digits, unseen, strange):
    theirs = pytest.importorskip("pytorch_ood.detector", reason="needs pytorch-ood")
    from pytorch_ood.api import Detector

    ours = AsDetector(network).fit(loader(digits.inputs, digits.labels, False))
    assert isinstance(ours, Detector)
    assert ours.to("cpu")(torch.from_numpy(strange) / 255).shape == (len(strange),)
    logits = torch.randn(1, 20, 5)
    torch.testing.assert_close(score_of(theirs.EnergyBased(None))(logits), ScoreSet("logits", "energy").score(logits, logits))
    rows, labels = torch.randn(1, 300, 4), torch.arange(300) % 3
    density = FeatureDensity(theirs.Mahalanobis(None).to("cpu")).fit(rows, labels)
    assert density.score(rows[:, :7]).shape == (7,)
    with pytest.raises(InputError, match="cannot be saved"):
        density.state()
    with pytest.raises(InputError, match="does not score logits"):
        score_of(theirs.Mahalanobis(None))
