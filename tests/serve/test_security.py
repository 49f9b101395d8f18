import httpx
import pytest

from besnn import Detector
from besnn.serve.security import HEADERS

TOKEN = "correct-horse-battery-staple"
GUARDED = ["/v1/model", "/v1/examples", "/v1/drift", "/v2", "/v2/models/model", "/v2/models/model/ready", "/metrics"]
GUARDED += ["/openapi.json"]
OPEN = ["/", "/static/main.js", "/v2/health/live", "/v2/health/ready"]


@pytest.fixture(scope="module")
def locked(moons_detector: Detector, start):
    with start(moons_detector, token=TOKEN) as client:
        yield client


@pytest.mark.parametrize("path", GUARDED)
def test_the_token_is_required(locked: httpx.Client, path: str):
    refused = locked.get(path)
    assert (refused.status_code, refused.json()["code"]) == (401, "token-invalid")
    assert refused.headers["WWW-Authenticate"] == "Bearer"
    assert locked.get(path, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


@pytest.mark.parametrize("value", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer é"])
def test_a_wrong_token_is_refused_before_any_body_is_parsed(locked: httpx.Client, value: str):
    for path in ("/v1/predict", "/v1/explain", "/v2/models/model/infer"):
        assert locked.post(path, content=b"not json", headers={"Authorization": value.encode()}).status_code == 401


def test_open_routes_need_no_token(locked: httpx.Client):
    assert [locked.get(path).status_code for path in OPEN] == [200] * len(OPEN)


def test_every_answer_has_the_headers(moons_client: httpx.Client):
    for path in (*GUARDED, *OPEN, "/nothing", "/static/nothing"):
        headers = moons_client.get(path).headers
        assert HEADERS.items() <= {name: headers.get(name) for name in HEADERS}.items(), path
        assert "Access-Control-Allow-Origin" not in headers


def test_the_policy_lets_nothing_inline_or_foreign_in():
    directives = dict(part.strip().split(" ", 1) for part in HEADERS["Content-Security-Policy"].split(";"))
    assert directives["default-src"] == "'none'"
    assert directives["script-src"] == directives["style-src"] == directives["connect-src"] == "'self'"
    assert "unsafe" not in HEADERS["Content-Security-Policy"]
    assert "http" not in HEADERS["Content-Security-Policy"]


def test_other_sites_get_no_preflight(moons_client: httpx.Client):
    asking = {"Origin": "https://elsewhere.example", "Access-Control-Request-Method": "POST"}
    answer = moons_client.options("/v1/predict", headers=asking)
    assert answer.status_code == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        *({"Origin": origin} for origin in ("http://evil.example", "null", "http://[", "https://127.0.0.1")),
    ],
)
def test_pages_of_other_sites_are_refused(moons_client: httpx.Client, headers: dict[str, str]):
    answer = moons_client.post("/v1/predict", json={"inputs": [[0, 0]]}, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "cross-site")


def test_own_pages_are_answered(moons_client: httpx.Client):
    for headers in (
        {"Sec-Fetch-Site": "same-origin"},
        {"Origin": str(moons_client.base_url).rstrip("/")},
        {"Origin": "https://public.example", "Sec-Fetch-Site": "same-origin"},  # a proxy may put another Host in
    ):
        assert moons_client.post("/v1/predict", json={"inputs": [[0, 0]]}, headers=headers).status_code == 200


def test_unknown_hosts_are_refused(moons_detector: Detector, start):
    with start(moons_detector, allowed_hosts=["localhost", "::1"]) as client:
        for host, status in {"localhost": 200, "LOCALHOST:80": 200, "[::1]:80": 200, "evil.example": 421, "": 421}.items():
            answer = client.get("/v1/model", headers={"Host": host})
            assert answer.status_code == status, host
        assert client.get("/", headers={"Host": "evil.example"}).json()["code"] == "host-unknown"


def test_the_page_answers_head_requests(moons_client: httpx.Client):
    answer = moons_client.head("/")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["Content-Type"].startswith("text/html")


def test_no_answer_repeats_the_callers_host(moons_client: httpx.Client):
    for path in ("/v1/model/", "/v2/", "/static", "/v2/health/live/", "/openapi.json/"):
        answer = moons_client.get(path, headers={"Host": "elsewhere.example"}, follow_redirects=False)
        assert answer.status_code == 404
        assert "elsewhere" not in str(answer.headers) + answer.text
