"""The heads of requests, over a real connection: what is endless is cut off, all else is answered."""

import http.client
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from besnn.serve.heads import MAX_HEAD_BYTES, LimitedHeads
from besnn.serve.server import listen


async def count_bytes(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that answers with the length of the body."""
    body = await Request(scope, receive).body()
    await PlainTextResponse(str(len(body)))(scope, receive, send)


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    with listen("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(count_bytes, http=LimitedHeads, log_config=None, ws="none", lifespan="off"))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield listener.getsockname()
        server.should_exit = True
        thread.join(30)


def flood(connection: socket.socket, start: bytes) -> None:
    """Sends a head that is far longer than allowed."""
    connection.sendall(start)
    for _ in range(MAX_HEAD_BYTES // 64):
        connection.sendall(b"a" * 4096)
        time.sleep(0.0005)


@pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Endless: "])
def test_an_endless_head_is_cut_off(start: bytes, address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=30) as connection, pytest.raises((ConnectionResetError, BrokenPipeError)):
        flood(connection, start)


def test_a_long_head_is_told_its_limit(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"a" * MAX_HEAD_BYTES)
        answer = connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"at most 65536 bytes" in answer


def test_many_requests_and_long_bodies_on_one_connection_are_answered(address: tuple[str, int]) -> None:
    connection = http.client.HTTPConnection(*address, timeout=30)
    for size in (0, 10, 500_000, 3, 70_000, MAX_HEAD_BYTES, 1_000_000):
        connection.request("POST", "/", body=b"x" * size, headers={"X-Half": "a" * (MAX_HEAD_BYTES // 2)})
        assert connection.getresponse().read() == str(size).encode()
    connection.close()


def test_requests_sent_without_waiting_are_answered(address: tuple[str, int]) -> None:
    request = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50000\r\n\r\n" + b"x" * 50_000
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(5 * request)
        answers = b""
        while answers.count(b"HTTP/1.1 200") < 5:
            received = connection.recv(65536)
            assert received
            answers += received
    assert answers.count(b"50000") == 5
