"""Networks of other libraries, with random weights, from end to end; the tests skip where a library is not installed."""

import numpy as np
import pytest
import torch

from besnn import Detector, wrap
from besnn.export import export_program

N, CLASSES = 120, 4


def check_end_to_end(network, inputs, labels, expected_layers, logits, **arguments):
    detector = wrap(network, inputs, labels, alpha=0.2, **arguments)
    assert detector.scoring.name in detector.provenance["score_choice"]
    ((evidence, _),) = detector.outputs(inputs[:8], detector.layer)
    with torch.no_grad():
        assert torch.equal(evidence[0], logits(detector.preprocessing(torch.from_numpy(inputs[:8]))))
    again = Detector.from_bytes(detector.to_bytes(), network)
    np.testing.assert_array_equal(again.score(inputs[:8]), detector.score(inputs[:8]))
    combined = wrap(network, inputs, labels, alpha=0.2, score="combined", **arguments)
    assert combined.layer == expected_layers
    raw = torch.from_numpy(inputs[:5]).to(combined.preprocessing.dtype)
    with torch.no_grad():
        found = export_program(combined).module()(raw)
    np.testing.assert_allclose(found[2], combined.score(inputs[:5]), rtol=1e-2, atol=1e-2)


@pytest.fixture
def images():
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (N, 3, 40, 40), dtype=np.uint8), rng.integers(0, CLASSES, N)


def test_torchvision_resnet50(images):
    torchvision = pytest.importorskip("torchvision", reason="needs torchvision")
    network = torchvision.models.resnet50(num_classes=CLASSES).eval()
    transforms = torchvision.transforms.Compose(
        [
            torchvision.transforms.Resize(36),
            torchvision.transforms.CenterCrop(32),
            torchvision.transforms.ToTensor(),
            torchvision.transforms.Normalize([0.5] * 3, [0.25] * 3),
        ]
    )
    layers = "layer1,layer2,layer3,fc:input"
    # at 32×32 the last stage has one place, and is what goes into the classifier
    check_end_to_end(network, *images, f"relu,{layers}", network, preprocessing=transforms)


def test_timm_vit_small(images):
    timm = pytest.importorskip("timm", reason="needs timm")
    network = timm.create_model("vit_small_patch16_224", img_size=32, num_classes=CLASSES).eval()
    config = {**network.pretrained_cfg, "input_size": (3, 32, 32)}
    check_end_to_end(network, *images, "patch_embed,blocks,head:input", network, preprocessing=config)


def test_transformers_text_classifier():
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 50}
    network = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes, num_labels=CLASSES)).eval()
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 50, (N, 12))
    tokens[:, 9:] = 0  # padding
    labels = rng.integers(0, CLASSES, N)

    def logits(ids):
        return network(ids, attention_mask=(ids != 0).long()).logits

    check_end_to_end(network, tokens, labels, "network.bert,network.classifier:input", logits)
