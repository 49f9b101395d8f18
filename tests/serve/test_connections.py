"""What a client may hold open: heads, trailers, queued requests, time and connections."""

import asyncio
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from besnn.serve.connections import MAX_HEAD_BYTES, MAX_PIPELINED, Connection, Server
from besnn.serve.server import listen

SECONDS, MOST = 1.0, 24
CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


async def count_bytes(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that answers with the length of the body, after a while or at great length if so asked."""
    body = await Request(scope, receive).body()
    if scope["path"] == "/slow":
        await asyncio.sleep(2 * SECONDS)
    await PlainTextResponse("x" * 20_000_000 if scope["path"] == "/long" else str(len(body)))(scope, receive, send)


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    protocol = partial(Connection, seconds=SECONDS, most=MOST)
    with listen("127.0.0.1", 0) as listener:
        server = Server(uvicorn.Config(count_bytes, http=protocol, log_config=None, ws="none", lifespan="off"))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield listener.getsockname()
        server.should_exit = True
        thread.join(30)


def is_closed(connection: socket.socket, seconds: float = 20) -> bool:
    """Whether the service closes a connection within some time; what it sends meanwhile is thrown away."""
    connection.settimeout(seconds)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def get(address: tuple[str, int], path: str = "/") -> bytes:
    connection = http.client.HTTPConnection(*address, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse().read()
    connection.close()
    return answer


def flood(connection: socket.socket, start: bytes, piece: bytes, most: int = 8 * 2**20, pause: float = 0.0005) -> int:
    """Sends some bytes, then a piece over and over until the connection breaks; returns how many bytes were sent."""
    connection.sendall(start)
    sent = 0
    try:
        while sent < most:
            connection.sendall(piece)
            sent += len(piece)
            time.sleep(pause)
    except (ConnectionResetError, BrokenPipeError):
        return sent
    pytest.fail(f"{sent} bytes were taken")


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"GET /", b"a" * 4096),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Endless: ", b"a" * 4096),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"X: a\r\n" * 700),
        (CHUNKED + b"0\r\n", b"X: a\r\n" * 700),  # trailers
        (CHUNKED + b"5\r\nhello\r\n0\r\nX-Endless: ", b"a" * 4096),
        (CHUNKED + b"5;extension=", b"a" * 4096),
    ],
    ids=["line", "header", "headers", "trailers", "trailer", "extension"],
)
def test_an_endless_head_or_end_is_cut_off(start: bytes, piece: bytes, address: tuple[str, int]):
    with socket.create_connection(address, timeout=30) as connection:
        flood(connection, start, piece)


def test_a_long_head_is_told_its_limit(address: tuple[str, int]):
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"a" * MAX_HEAD_BYTES)
        answer = connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"longer than 65536 bytes" in answer


def test_short_trailers_are_ignored(address: tuple[str, int]):
    with socket.create_connection(address, timeout=30) as connection:
        for _ in range(2):
            connection.sendall(CHUNKED + b"5\r\nhello\r\n0\r\nX-Short: a\r\n\r\n")
            assert connection.recv(4096).endswith(b"\r\n\r\n5")


def test_a_client_that_never_waits_for_answers_is_cut_off(address: tuple[str, int]):
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n" * (MAX_PIPELINED + 2))
        assert is_closed(connection, SECONDS)


def test_many_requests_and_long_bodies_on_one_connection_are_answered(address: tuple[str, int]):
    connection = http.client.HTTPConnection(*address, timeout=30)
    for size in (0, 10, 500_000, 3, 70_000, MAX_HEAD_BYTES, 1_000_000):
        connection.request("POST", "/", body=b"x" * size, headers={"X-Half": "a" * (MAX_HEAD_BYTES // 2)})
        assert connection.getresponse().read() == str(size).encode()
    connection.close()


def test_requests_sent_without_waiting_are_answered(address: tuple[str, int]):
    request = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50000\r\n\r\n" + b"x" * 50_000
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(10 * request)
        answers = b""
        while answers.count(b"HTTP/1.1 200") < 10:
            received = connection.recv(65536)
            assert received
            answers += received
    assert answers.count(b"50000") == 10


STALLED = {
    "nothing": b"",
    "half a head": b"GET / HTTP/1.1\r\nHost: loc",
    "half a body": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n",
    "half the trailers": CHUNKED + b"5\r\nhello\r\n0\r\n",
    "an answer not read": b"GET /long HTTP/1.1\r\nHost: a\r\n\r\n",
    "a last answer not read": b"GET /long HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
}


def test_a_client_that_keeps_the_service_waiting_is_cut_off(address: tuple[str, int]):
    stalled = {name: socket.create_connection(address, timeout=30) for name in STALLED}
    for name, connection in stalled.items():
        connection.sendall(STALLED[name])
    time.sleep(2.5 * SECONDS)
    for name, connection in stalled.items():
        with connection:
            if "answer" in name:  # it may read what was under way, but never the end
                assert sum(iter(partial(received, connection), 0)) < 20_000_000, name
            assert is_closed(connection, SECONDS), name


def received(connection: socket.socket) -> int:
    try:
        return len(connection.recv(2**20))
    except OSError:
        return 0


def test_a_client_that_sends_byte_by_byte_is_cut_off(address: tuple[str, int]):
    with socket.create_connection(address, timeout=30) as connection:
        assert flood(connection, b"GET /", b"a", most=200, pause=SECONDS / 10) < 200


def test_there_is_always_room_for_another_client(address: tuple[str, int]):
    waiting = [socket.create_connection(address, timeout=30) for _ in range(3 * MOST)]
    for connection in waiting:
        connection.sendall(b"GET / HTTP/1.1\r\nX: ")
    assert get(address) == b"0"
    for connection in waiting:
        connection.close()


def test_requests_in_hand_survive_a_crowd(address: tuple[str, int]):
    answers: list[bytes] = []
    working = [threading.Thread(target=lambda: answers.append(get(address, "/slow"))) for _ in range(4)]
    for thread in working:
        thread.start()
    time.sleep(0.5)
    crowd = [socket.create_connection(address, timeout=30) for _ in range(3 * MOST)]
    for thread in working:
        thread.join()
    assert answers == [b"0"] * 4
    for connection in crowd:
        connection.close()
