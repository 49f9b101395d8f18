import asyncio
import logging

import httpx
import pytest

from besnn import Detector
from besnn.serve import create_app
from besnn.serve.middleware import ProblemBody
from besnn.serve.telemetry import JsonFormatter

SECRET = "a-secret-of-the-client"


def ask(detector: Detector, path: str, body: object) -> httpx.Response:
    """Asks the service in this very thread, so that it is done with the request when this returns."""

    async def post() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(detector))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post(path, json=body)

    return asyncio.run(post())


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not-found"),
        ("GET", "/static/nothing.js", 404, "not-found"),
        ("GET", "/static/../app.py", 404, "not-found"),
        ("GET", "/static/%2e%2e/app.py", 404, "not-found"),
        ("GET", "/v1/predict", 405, "method-not-allowed"),
        ("DELETE", "/v1/drift", 405, "method-not-allowed"),
        ("PROPFIND", "/v1/model", 405, "method-not-allowed"),
    ],
)
def test_errors_of_the_framework_are_problems_too(moons_client: httpx.Client, method: str, path: str, status: int, code: str):
    response = moons_client.request(method, path)
    assert response.headers["Content-Type"] == "application/problem+json"
    problem = ProblemBody.model_validate_json(response.content)
    assert (response.status_code, problem.status, problem.code) == (status, status, code)


def test_a_failure_reveals_the_input_neither_to_the_client_nor_to_the_log(
    moons_detector: Detector, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    def fail(inputs: object) -> None:
        raise RuntimeError(f"cannot digest {SECRET}")

    monkeypatch.setattr(moons_detector, "predict", fail)
    with caplog.at_level(logging.INFO):
        response = ask(moons_detector, "/v1/predict", {"inputs": [[0, 0]]})
    assert (response.status_code, response.json()["code"]) == (500, "internal")
    assert "Traceback" not in response.text
    assert SECRET not in response.text
    lines = [JsonFormatter().format(record) for record in caplog.records]
    assert any("RuntimeError" in line and "test_problems.py" in line for line in lines)  # the log has its place
    assert not any(SECRET in line for line in lines)


def test_a_request_leaves_one_line_without_its_payload(moons_detector: Detector, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, logger="besnn"):
        response = ask(moons_detector, f"/v1/predict?colour={SECRET}", {"inputs": [[0.123456, SECRET]]})
    (record,) = [record for record in caplog.records if record.getMessage() == "request"]
    line = JsonFormatter().format(record)
    assert SECRET not in line
    assert "0.123456" not in line
    assert record.fields["status"] == response.status_code == 422
    assert record.fields["route"] == "/v1/predict"
    assert record.fields["id"] == response.headers["X-Request-ID"]


def test_the_type_of_an_exception_is_logged_but_not_its_message():
    try:
        raise ValueError(SECRET)
    except ValueError as error:
        record = logging.makeLogRecord({"msg": "failed", "exc_info": (type(error), error, error.__traceback__)})
    assert "ValueError" in JsonFormatter().format(record)
    assert SECRET not in JsonFormatter().format(record)


def test_a_long_field_name_is_not_sent_back_whole(moons_client: httpx.Client):
    response = moons_client.post("/v1/predict", json={"inputs": [[0, 0]], "x" * 100_000: 1})
    assert response.status_code == 422
    assert len(response.content) < 2000
