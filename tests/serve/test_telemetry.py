import httpx
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from besnn import Detector
from besnn.data import two_moons

POINTS = np.concatenate([two_moons(40, seed=6).inputs, np.full((5, 2), 9.0, np.float32)])


def samples(client: httpx.Client) -> dict[tuple[str, frozenset], float]:
    response = client.get("/metrics")
    assert response.headers["Content-Type"].startswith("text/plain")
    families = text_string_to_metric_families(response.text)
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def test_requests_and_inputs_are_counted(moons_detector: Detector, start):
    with start(moons_detector) as client:
        for part in np.array_split(POINTS, 3):
            client.post("/v1/predict", json={"inputs": part.tolist()})
        client.post("/v1/predict", json={"inputs": "rubbish"})
        client.get("/v2/models/no-such-model-and-not-in-the-labels")
        found = samples(client)
    predictions = moons_detector.predict(POINTS)
    predict = {"route": "/v1/predict", "method": "POST"}
    assert found["besnn_requests_total", frozenset({**predict, "status": "200"}.items())] == 3
    assert found["besnn_requests_total", frozenset({**predict, "status": "422"}.items())] == 1
    assert found["besnn_request_seconds_count", frozenset({"route": "/v1/predict"}.items())] == 4
    assert found["besnn_inputs_total", frozenset({("is_ood", "true")})] == predictions.is_ood.sum()
    assert found["besnn_inputs_total", frozenset({("is_ood", "false")})] == (~predictions.is_ood).sum()
    assert found["besnn_batch_rows_sum", frozenset()] == len(POINTS)
    assert found["besnn_drift_steps", frozenset()] == len(POINTS)
    assert found["besnn_ood_rate", frozenset()] == predictions.is_ood.mean()
    assert found["besnn_drift_alarm", frozenset()] in (0, 1)
    assert not any("no-such-model" in value for _, labels in found for _, value in labels)
    buckets = {dict(labels)["le"]: value for (name, labels), value in found.items() if name == "besnn_score_bucket"}
    for bound, count in buckets.items():
        assert count == (predictions.score <= float(bound)).sum(), bound


def test_before_the_first_input_there_is_no_rate(moons_detector: Detector, start):
    with start(moons_detector) as client:
        names = {name for name, _ in samples(client)}
    assert "besnn_ood_rate" not in names
    assert "besnn_drift_log_martingale" in names
