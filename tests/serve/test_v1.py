import base64
import copy
import io
import json

import httpx
import numpy as np
import pytest
from PIL import Image

from besnn import Detector
from besnn.data import Dataset, two_moons
from besnn.detector import Predictions
from besnn.serve.service import QUICK_BYTES

JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "multipart/form-data; boundary=x"}
POINTS = two_moons(7, seed=3).inputs


def png(pixels: np.ndarray, format: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format)
    return file.getvalue()


def check(answer: list[dict], expected: Predictions) -> None:
    """Checks an answer against the detector's own predictions."""
    assert [row["label"] for row in answer] == expected.labels.tolist()
    assert [row["is_ood"] for row in answer] == expected.is_ood.tolist()
    assert [row["decision"] for row in answer] == expected.decision.tolist()
    assert [len(row["label_set"]) for row in answer] == expected.label_sets.sum(axis=1).tolist()
    for name in ("probabilities", "score", "p_value"):
        np.testing.assert_allclose([row[name] for row in answer], getattr(expected, name), rtol=1e-5, atol=1e-6)


def test_rows_of_a_table(moons_client: httpx.Client, moons_detector: Detector):
    response = moons_client.post("/v1/predict", json={"inputs": POINTS.tolist()})
    assert response.status_code == 200
    rows = response.json()["predictions"]
    assert set(rows[0]) == {"label", "probabilities", "score", "p_value", "is_ood", "decision", "label_set"}
    check(rows, moons_detector.predict(POINTS))


def test_false_discoveries_are_controlled_over_a_request(moons_client: httpx.Client, moons_detector: Detector):
    points = np.concatenate([POINTS, POINTS + 50])
    rows = moons_client.post("/v1/predict?fdr=0.3", json={"inputs": points.tolist()}).json()["predictions"]
    check(rows, moons_detector.predict(points).control_fdr(0.3))
    assert any(row["is_ood"] for row in rows)
    assert moons_client.post("/v1/predict?fdr=1", json={"inputs": POINTS.tolist()}).status_code == 422


def test_thresholds_and_promises_of_classes_are_described(moons_detector: Detector, start):
    own, moons = copy.copy(moons_detector), two_moons(600, seed=4)
    own.calibrate(moons.inputs, labels=moons.labels, per_class=True, max_error=0.3)
    with start(own) as client:
        calibration = client.get("/v1/model").json()["calibration"]
        check(client.post("/v1/predict", json={"inputs": POINTS.tolist()}).json()["predictions"], own.predict(POINTS))
    assert [each["threshold"] for each in calibration["by_class"]] == own.decision.limits().tolist()
    assert sum(each["inputs"] for each in calibration["by_class"]) == 600
    assert (calibration["labels"]["alpha"], calibration["labels"]["max_error"]) == (0.05, 0.3)


def test_members_are_returned_on_request(moons_client: httpx.Client, moons_detector: Detector):
    rows = moons_client.post("/v1/predict?members=true", json={"inputs": POINTS.tolist()}).json()["predictions"]
    expected = moons_detector.predict(POINTS)
    for place, row in enumerate(rows):
        labels = [moons_detector.class_names[index] for index in expected.member_labels[:, place]]
        assert [member["label"] for member in row["members"]] == labels
        probabilities = [member["probability"] for member in row["members"]]
        np.testing.assert_allclose(probabilities, expected.member_probabilities[:, place], rtol=1e-5)


def test_pixels_files_and_base64_are_answered_alike(
    digits_client: httpx.Client, digits_detector: Detector, digit_data: Dataset
):
    images = digit_data.inputs[:4]
    expected = digits_detector.predict(images)
    files = [png(image[0]) for image in images]
    as_pixels = digits_client.post("/v1/predict", json={"inputs": images.tolist()})
    as_text = digits_client.post("/v1/predict", json={"inputs": [base64.b64encode(file).decode() for file in files]})
    as_files = digits_client.post("/v1/predict", files=[("images", ("x.png", file)) for file in files])
    mixed = [images[0].tolist(), *(base64.b64encode(file).decode() for file in files[1:])]
    as_both = digits_client.post("/v1/predict", json={"inputs": mixed})
    padded = json.dumps({"inputs": images.tolist()}) + " " * QUICK_BYTES  # long enough to be read in a thread
    as_long = digits_client.post("/v1/predict", content=padded, headers=JSON)
    for response in (as_pixels, as_text, as_files, as_both, as_long):
        assert response.status_code == 200, response.text
        check(response.json()["predictions"], expected)


def test_images_of_any_size_and_format_are_resized(digits_client: httpx.Client):
    photograph = np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8)
    files = [("image", ("photo", png(photograph, format))) for format in ("PNG", "JPEG", "WEBP")]
    response = digits_client.post("/v1/predict", files=files)
    assert response.status_code == 200
    assert len(response.json()["predictions"]) == 3


def test_inputs_that_are_not_observed_do_not_count_as_traffic(moons_client: httpx.Client):
    before = moons_client.get("/v1/drift").json()["steps"]
    moons_client.post("/v1/predict?observe=false", json={"inputs": POINTS.tolist()})
    assert moons_client.get("/v1/drift").json()["steps"] == before
    moons_client.post("/v1/predict", json={"inputs": POINTS.tolist()})
    assert moons_client.get("/v1/drift").json()["steps"] == before + len(POINTS)


def test_a_huge_number_is_answered(moons_client: httpx.Client):
    row = moons_client.post("/v1/predict", json={"inputs": [[1e308, -1e308]]}).json()["predictions"][0]
    assert row["is_ood"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ("", 400, "json-invalid"),
        ('{"inputs": [[1, 2]', 400, "json-invalid"),
        ("[" * 10_000, 422, "input-invalid"),
        ('{"inputs": [[1, NaN]]}', 422, "input-invalid"),
        ("{}", 422, "input-invalid"),
        ('{"inputs": []}', 422, "input-invalid"),
        ('{"inputs": [[1, 2, 3]]}', 422, "input-invalid"),
        ('{"inputs": [[1, "2"]]}', 422, "input-invalid"),
        ('{"inputs": [[1, true]]}', 422, "input-invalid"),
        ('{"inputs": [[1, 1e400]]}', 422, "input-invalid"),
        (f'{{"inputs": [[1, 1{"0" * 400}]]}}', 422, "input-invalid"),
        ('{"inputs": [[1, 2]], "colour": "red"}', 422, "input-invalid"),
        ('{"inputs": ["aGVsbG8="]}', 422, "input-invalid"),
        ('{"inputs": [[1, Infinity]]}', 422, "input-invalid"),
        ('{"inputs": [[1, 2], [3]]}', 422, "input-invalid"),
        ('{"inputs": [[]]}', 422, "input-invalid"),
        (f'{{"inputs": {"[" * 900}{"]" * 900}}}', 400, "json-invalid"),
        ('{"inputs": [[1, 2]]} {}', 400, "json-invalid"),
        (b'{"inputs": [[1, 2]], "\xff": 0}', 400, "json-invalid"),
        ('{"inputs": [[1, 2]]}'.encode("utf-16"), 400, "json-invalid"),
    ],
)
def test_a_wrong_body_is_refused(moons_client: httpx.Client, body: str | bytes, status: int, code: str):
    body = body.encode() if isinstance(body, str) else body
    for padding in (b"", b" " * QUICK_BYTES):  # a long one is read in a thread
        response = moons_client.post("/v1/predict", content=body + padding, headers=JSON)
        assert (response.status_code, response.json()["code"]) == (status, code)


def test_the_last_of_duplicate_fields_counts(moons_client: httpx.Client, moons_detector: Detector):
    body = f'{{"inputs": [[9, 9]], "inputs": {POINTS.tolist()}}}'
    response = moons_client.post("/v1/predict", content=body, headers=JSON)
    check(response.json()["predictions"], moons_detector.predict(POINTS))


def test_as_many_inputs_as_allowed_and_no_more(moons_detector: Detector, start):
    with start(moons_detector, max_rows=2000) as client:
        for rows, status in ((2000, 200), (2001, 422), (50_000, 422)):
            assert client.post("/v1/predict", json={"inputs": [[0.5, 0.5]] * rows}).status_code == status


@pytest.mark.parametrize("pixel", [-1, 256, 0.5, "7", True])
def test_pixels_are_whole_numbers_from_0_to_255(digits_client: httpx.Client, pixel: object):
    image = [[[0] * 8 for _ in range(8)]]
    image[0][3][4] = pixel
    response = digits_client.post("/v1/predict", json={"inputs": [image]})
    assert (response.status_code, response.json()["code"]) == (422, "input-invalid")


@pytest.mark.parametrize("text", ["not base64!", "aGVsbG8=", "", "é"])
def test_text_that_is_no_image_is_refused(digits_client: httpx.Client, text: str):
    response = digits_client.post("/v1/predict", json={"inputs": [text]})
    assert (response.status_code, response.json()["code"]) == (422, "image-unreadable")


def test_one_bad_file_is_named(digits_client: httpx.Client, digit_data: Dataset):
    good, bad = png(digit_data.inputs[0][0]), b"GIF89a..."
    response = digits_client.post("/v1/predict", files=[("images", ("a", good)), ("images", ("b", bad))])
    assert response.status_code == 422
    assert response.json()["detail"].startswith("image 2 of 2 ")


@pytest.mark.parametrize(
    ("content", "headers", "status", "code"),
    [
        (b"{}", {"Content-Type": "text/plain"}, 415, "media-type-unsupported"),
        (b"{}", {}, 415, "media-type-unsupported"),
        (b"\x1f\x8b", {"Content-Type": "application/json", "Content-Encoding": "gzip"}, 415, "encoding-unsupported"),
        (b"", {"Content-Type": "multipart/form-data"}, 400, "multipart-invalid"),
        (b"junk", FORM, 400, "multipart-invalid"),
        (b"--x--\r\n", FORM, 422, "input-invalid"),
        (b'--x\r\nContent-Disposition: form-data; name="colour"\r\n\r\nred\r\n--x--\r\n', FORM, 422, "input-invalid"),
        (b'--x\r\nContent-Disposition: form-data; name="a"; filename="b"\r\n\r\ncut o', FORM, 400, "multipart-invalid"),
    ],
)
def test_other_bodies_are_refused(digits_client: httpx.Client, content: bytes, headers: dict, status: int, code: str):
    response = digits_client.post("/v1/predict", content=content, headers=headers)
    assert (response.status_code, response.json()["code"]) == (status, code), response.text


def test_files_for_a_table_and_unknown_parameters_are_refused(moons_client: httpx.Client):
    assert moons_client.post("/v1/predict", files={"image": ("x.png", b"x")}).status_code == 415
    for route in ("predict", "explain"):
        response = moons_client.post(f"/v1/{route}?colour=red", json={"inputs": POINTS.tolist()})
        assert (response.status_code, response.json()["code"]) == (422, "parameter-invalid")


def test_the_model_describes_itself(moons_client: httpx.Client, moons_detector: Detector):
    info = moons_client.get("/v1/model").json()
    threshold = moons_detector.threshold
    assert threshold is not None
    assert info["kind"] == "table"
    assert (info["members"], info["mirror"]) == (moons_detector.model.members, False)
    assert info["input_shape"] == [2]
    assert info["class_names"] == ["upper", "lower"]
    assert info["calibration"]["threshold"] == threshold.threshold
    assert info["calibration"]["quantiles"][0] == float(threshold.scores.min())
    assert info["calibration"]["quantiles"][-1] == float(threshold.scores.max())


@pytest.mark.parametrize(
    ("client", "wanted"),
    [("moons_client", "each input as 2 numbers"), ("digits_client", "each input as 1 × 8 × 8 pixels from 0 to 255, or a file")],
)
def test_a_refusal_says_what_is_wanted(request: pytest.FixtureRequest, client: str, wanted: str):
    response = request.getfixturevalue(client).post("/v1/predict", json={"inputs": [[1, 2, 3]]})
    assert response.status_code == 422
    assert response.json()["detail"].startswith("inputs.0")
    assert wanted in response.json()["detail"]


def test_an_explanation_is_the_detectors(digits_client: httpx.Client, digits_detector: Detector, digit_data: Dataset):
    images = np.concatenate([digit_data.inputs[:2], 255 - digit_data.inputs[:1]])
    answer = digits_client.post("/v1/explain?heat_map=true", json={"inputs": images.tolist()})
    assert answer.status_code == 200
    expected = digits_detector.explain(images)
    for place, row in enumerate(answer.json()["explanations"]):
        check([row["prediction"]], expected.predictions[place : place + 1])
        labels = digits_detector.examples.labels[expected.neighbours[place]]
        assert [each["label"] for each in row["neighbours"]] == [digits_detector.class_names[label] for label in labels]
        np.testing.assert_allclose([each["distance"] for each in row["neighbours"]], expected.distances[place], atol=1e-4)
        png = Image.open(io.BytesIO(base64.b64decode(row["neighbours"][0]["input"])))
        np.testing.assert_array_equal(np.asarray(png), digits_detector.examples.inputs[expected.neighbours[place][0], 0])
        np.testing.assert_allclose(row["heat_map"], expected.heat_maps[place], atol=1e-3)
        assert row["surprise"].keys() == expected.surprise.keys()


def test_explanations_of_rows_and_their_limit(moons_client: httpx.Client, moons_detector: Detector):
    (row,) = moons_client.post("/v1/explain", json={"inputs": [[9, 9]]}).json()["explanations"]
    assert "heat_map" not in row
    assert len(row["neighbours"][0]["input"]) == 2
    assert moons_client.post("/v1/explain", json={"inputs": [[9, 9]] * 17}).status_code == 422
