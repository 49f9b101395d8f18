import base64
import io

import httpx
import numpy as np
import pytest
from PIL import Image

from besnn import Detector
from besnn.data import Dataset, two_moons
from besnn.serve.examples import Example, choose_examples, encode_input, unknown_examples


def inputs_of(examples: list[Example], kind: str) -> np.ndarray:
    chosen = [example.input for example in examples if example.kind == kind]
    if isinstance(chosen[0], list):
        return np.array(chosen)
    return np.stack([np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))[None] for text in chosen])


def test_examples_of_images_are_what_they_are_called(digits_detector: Detector, digit_data: Dataset):
    examples = choose_examples(digits_detector, digit_data.inputs)
    known = digits_detector.predict(inputs_of(examples, "known"))
    ambiguous = digits_detector.predict(inputs_of(examples, "ambiguous"))
    assert len(set(known.labels)) == len(known) == 6  # a class each
    assert not known.is_ood.any()
    assert not ambiguous.is_ood.any()
    assert known.p_value.min() > 0.5
    assert ambiguous.probabilities.max(axis=1).max() <= 0.5
    assert digits_detector.predict(inputs_of(examples, "unknown")).score.mean() > known.score.mean()


def test_examples_of_a_table(moons_detector: Detector):
    examples = choose_examples(moons_detector, two_moons(300, seed=7).inputs)
    assert [example.kind for example in examples] == ["known"] * 6 + ["ambiguous"] * 6 + ["unknown"] * 6
    assert not moons_detector.predict(inputs_of(examples, "known").astype(np.float32)).is_ood.any()
    assert moons_detector.predict(inputs_of(examples, "unknown").astype(np.float32)).is_ood.all()


@pytest.mark.parametrize("count", [0, 1, 3])
def test_few_inputs_give_few_examples(digits_detector: Detector, digit_data: Dataset, count: int):
    examples = choose_examples(digits_detector, digit_data.inputs[:count])
    assert sum(example.kind != "unknown" for example in examples) <= count
    assert sum(example.kind == "unknown" for example in examples) == 6


def test_without_data_there_are_unknown_examples(digits_detector: Detector):
    assert digits_detector.predict(inputs_of(unknown_examples(digits_detector), "unknown")).is_ood.all()


def test_an_example_can_be_sent_as_it_is(digits_client: httpx.Client):
    examples = digits_client.get("/v1/examples").json()["examples"]
    answer = digits_client.post("/v1/predict", json={"inputs": [example["input"] for example in examples]})
    assert len(answer.json()["predictions"]) == len(examples) == 6


def test_colour_images_keep_their_colours():
    red = np.zeros((3, 4, 5), np.uint8)
    red[0] = 255
    decoded = Image.open(io.BytesIO(base64.b64decode(str(encode_input(red)))))
    assert decoded.size == (5, 4)
    assert decoded.getpixel((0, 0)) == (255, 0, 0)
