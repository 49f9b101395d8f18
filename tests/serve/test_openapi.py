"""The service against its own description, and against mutated bodies (`python -m benchmarks serve-fuzz` sends many more)."""

import httpx
import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import positive_data_acceptance

from benchmarks.serve_fuzz import fuzz
from besnn import Detector
from besnn.data import digits, two_moons
from besnn.serve.examples import choose_examples

BODIES = 300
MAX_GROWTH = 64  # MiB; a leak of one body per request would be several times that in the long run

EXAMPLES = 12
POSTS = ["/v1/predict", "/v1/explain", "/v2/models/{model_name}/infer"]


@pytest.fixture(params=["moons", "digits"])
def data(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(data: str, moons_client: httpx.Client, digits_client: httpx.Client) -> str:
    return str({"moons": moons_client, "digits": digits_client}[data].base_url)


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("path", POSTS)
def test_generated_requests_are_answered_as_described(data: str, url: str, path: str, mode: GenerationMode):
    operation = schemathesis.openapi.from_url(f"{url}/openapi.json")[path]["POST"]
    # What makes a string an image, or data fit a shape, is beyond JSON Schema.
    beyond = [] if (data, path) == ("moons", "/v1/predict") else [positive_data_acceptance]

    @settings(
        max_examples=EXAMPLES, database=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Case) -> None:
        response = case.call()
        assert response.status_code < 500
        case.validate_response(response, excluded_checks=beyond)

    ask()


def test_everything_else_is_answered_as_described(url: str):
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    paths = [path for path in schema if path not in POSTS]
    assert len(paths) == 9
    for path in paths:
        case = schema[path]["GET"].Case(path_parameters={"model_name": "model"} if "model_name" in path else {})
        response = case.call()
        assert response.status_code == 200
        case.validate_response(response)


def test_the_examples_in_the_description_are_answered(url: str):
    with httpx.Client(base_url=url, timeout=30) as client:
        described = client.get("/openapi.json").json()
        for path in POSTS:
            body = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]
            assert client.post(path.format(model_name="model"), json=body["example"]).status_code == 200


def test_known_data_is_not_in_the_description_that_anybody_may_read(data: str, request: pytest.FixtureRequest, start):
    detector: Detector = request.getfixturevalue(f"{data}_detector")
    examples = choose_examples(detector, two_moons(300, seed=7).inputs if data == "moons" else digits().inputs)
    with start(detector, examples) as client:
        described = client.get("/openapi.json").text
    for example in examples:
        numbers = [example.input] if isinstance(example.input, str) else example.input
        assert not any(str(number) in described for number in numbers)


def test_a_token_is_part_of_the_description_where_there_is_one(moons_detector: Detector, start, moons_client: httpx.Client):
    assert "securitySchemes" not in moons_client.get("/openapi.json").json()["components"]
    token = "correct-horse-battery-staple"
    with start(moons_detector, token=token) as client:
        described = client.get("/openapi.json", headers={"Authorization": f"Bearer {token}"}).json()
    assert described["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
    assert described["paths"]["/v1/predict"]["post"]["security"] == [{"HTTPBearer": []}]
    assert "security" not in described["paths"]["/v2/health/live"]["get"]


def test_mutated_requests(data: str, request: pytest.FixtureRequest):
    inputs = two_moons(3).inputs if data == "moons" else np.ascontiguousarray(digits().inputs[:2])
    run = fuzz(request.getfixturevalue(f"{data}_detector"), inputs, BODIES)
    assert {"200", "400", "422"} <= run["statuses"].keys()  # some stay valid, and others are wrong in different ways
    assert sum(run["statuses"].values()) == BODIES
    assert run["memory_growth_mib"] < MAX_GROWTH
