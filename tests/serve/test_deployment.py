"""What the container and the manifests run: the command as it stands, its health check, and the probes."""

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
TOKEN = "0123456789abcdef0123456789abcdef"


def instruction(name: str) -> list[str]:
    """The words of the container file's ENTRYPOINT, CMD or HEALTHCHECK."""
    (words,) = re.findall(rf"^{name} .*?(\[.*\])$", DOCKERFILE, flags=re.MULTILINE)
    return json.loads(words)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def port(model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The port of the service, started by the container's own command with the paths of this machine."""
    token = tmp_path_factory.mktemp("secrets") / "token"
    token.write_text(TOKEN)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = str(free.getsockname()[1])
    there_and_here = {"/model/model.safetensors": str(model_file), "/run/secrets/token": str(token), "8000": number}
    command = [there_and_here.get(word, word) for word in (*instruction("ENTRYPOINT"), *instruction("CMD"))]
    assert command[0] == "besnn"
    service = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not is_up(number):
            time.sleep(0.1)
        yield number
    finally:
        service.terminate()
        service.wait(timeout=20)


def is_up(port: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(port))) == 0


def health_check(port: str) -> int:
    words = [word.replace("8000", port) for word in instruction("HEALTHCHECK")]
    return subprocess.run([sys.executable, *words[1:]], capture_output=True, timeout=20).returncode


def manifests() -> list[dict[str, Any]]:
    paths = [ROOT / "deploy" / name for name in ("kubernetes.yaml", "kserve.yaml")]
    return [each for path in paths for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))]


def containers(part: Any) -> list[dict[str, Any]]:
    """Every container in a manifest."""
    if isinstance(part, list):
        return [found for each in part for found in containers(each)]
    if not isinstance(part, dict):
        return []
    inner = [found for key, each in part.items() if key != "containers" for found in containers(each)]
    return part.get("containers", []) + inner


def test_the_container_is_healthy_and_asks_for_its_token(port: str) -> None:
    assert health_check(port) == 0
    ask = {"url": f"http://127.0.0.1:{port}/v1/predict", "json": {"inputs": [[0.0, 1.0]]}}
    assert httpx.post(**ask).status_code == 401
    assert httpx.post(**ask, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_probes_reach_the_service_by_any_address(port: str) -> None:
    probes = [each[name]["httpGet"]["path"] for each in containers(manifests()) for name in each if name.endswith("Probe")]
    assert len(probes) == 3
    for path in probes:
        assert httpx.get(f"http://127.0.0.1:{port}{path}", headers={"Host": "10.1.2.3:8000"}).status_code == 200


def test_every_container_runs_the_same_command_without_rights() -> None:
    found = containers(manifests())
    assert len(found) == 2
    for each in found:
        assert [word.replace("/besnn/", "/") for word in each["args"]] == instruction("CMD")
        assert each["securityContext"]["readOnlyRootFilesystem"]
        assert not each["securityContext"]["allowPrivilegeEscalation"]
    assert re.search(r"^USER 10001$", DOCKERFILE, flags=re.MULTILINE)
