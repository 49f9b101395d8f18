"""HTTP connections: what each may hold, how long it may wait for its client, how many there are, and how they end.

uvicorn leaves these limits to a proxy. The application's own limits begin after a request's headers.
"""

import asyncio
import contextlib
import math
import socket
from collections import Counter
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

MAX_HEAD_BYTES = 64 * 1024
MAX_PIPELINED = 16
"""Requests that a client may send before it has read the answers to earlier ones."""

LINGER_SECONDS = 0.5
"""How long a stopping service keeps an idle connection, on which a request may already be under way."""

_BACKLOG = 2048


class Connection(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits on what a client may hold open.

    A connection is cut off if the service waits for its client for longer than `seconds`, for headers or for an answer to be
    read, or for twice as long for a body. If there are more than `most` connections, the client that has the most loses the one
    that has waited longest. A connection whose request is being answered waits for the service, and is never cut off.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        seconds: float = 10.0,
        most: int = 512,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._seconds, self._most = seconds, most
        self._until = self._written_until = math.inf
        self._in_head = self._is_arriving = self._is_stopping = False
        self._has_progress, self._unfinished = False, 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Start to watch the time, and make room if there are too many connections."""
        super().connection_made(transport)
        self._wait(self._seconds)
        self._timer = self.loop.call_later(self._seconds / 10, self._watch)
        if len(self.connections) > self._most:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop the requests that wait."""
        self._timer.cancel()
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle received data; cut off headers, trailers or a chunk's extension without an end."""
        self._has_progress = False
        super().data_received(data)
        self._unfinished = 0 if self._has_progress else self._unfinished + len(data)
        if self._unfinished > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"the request line and headers are longer than {MAX_HEAD_BYTES} bytes")

    def send_400_response(self, msg: str) -> None:
        """Refuse what was received, unless that would look like the answer to an earlier request."""
        own = not self._in_head and not self.pipeline and not self.cycle.response_started if self.cycle else True
        if self._is_idle() or own:
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """Begin to wait for the headers."""
        super().on_message_begin()
        self._in_head = self._is_arriving = True
        self._wait(self._seconds)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header, but no trailer: nothing reads them."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin the request, or queue it behind others; a full queue is a client error."""
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("too many requests are waiting on one connection")
        super().on_headers_complete()
        self._in_head, self._has_progress = False, True
        self._wait(2 * self._seconds)  # the application gives up first, with an answer that says so
        if self._is_stopping:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Pass on a part of the body."""
        self._has_progress = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """From here on the client waits for the service, unless it was answered early."""
        super().on_message_complete()
        self._has_progress, self._is_arriving = True, False
        self._wait(self._seconds if self._is_idle() else math.inf)

    def on_response_complete(self) -> None:
        """Wait for the answer to be read and the next request; read no more before queued requests are answered."""
        in_hand = bool(self.pipeline) and not self._is_arriving
        self._wait(math.inf if in_hand and not self.transport.is_closing() else self._seconds)
        super().on_response_complete()
        if self.pipeline:
            self.flow.pause_reading()

    def pause_writing(self) -> None:
        """Begin to wait for the client to read."""
        super().pause_writing()
        self._written_until = self.loop.time() + self._seconds

    def resume_writing(self) -> None:
        """Note that the client has read."""
        super().resume_writing()
        self._written_until = math.inf

    def shutdown(self) -> None:
        """Answer what was sent, then close."""
        self._is_stopping = True
        if self._is_idle():
            self.loop.call_later(LINGER_SECONDS, self._close_if_idle)
        else:
            super().shutdown()

    def _is_idle(self) -> bool:
        """Whether all requests on this connection are answered."""
        return self.cycle is None or (self.cycle.response_complete and not self.pipeline)

    def _close_if_idle(self) -> None:
        if self._is_idle() and not self._is_arriving:
            self.transport.close()

    def _wait(self, seconds: float) -> None:
        self._until = self.loop.time() + seconds

    def _watch(self) -> None:
        if self.loop.time() >= min(self._until, self._written_until):
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(self._seconds / 10, self._watch)

    def _make_room(self) -> None:
        others = [each for each in self.connections if isinstance(each, Connection)]
        held = Counter(each._host() for each in others)
        waiting = [each for each in others if min(each._until, each._written_until) < math.inf]  # this one, at least
        victim = max(waiting, key=lambda each: (held[each._host()], -each._until))
        self.connections.discard(victim)
        victim.transport.abort()

    def _host(self) -> str:
        return self.client[0] if self.client else ""


class Server(uvicorn.Server):
    """uvicorn's server, except that stopping loses no request: whoever has connected is answered, everyone else refused."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and keep a copy of each listening socket: uvicorn closes them before the last connections are accepted."""
        self._copies = [listener.dup() for listener in sockets or ()]
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, answer what was sent, and exit as from a normal end."""
        for server in self.servers:
            server.close()
        for listener in sockets or ():
            listener.close()
        for copy in self._copies:
            with copy, contextlib.suppress(OSError):  # until there are no more
                copy.setblocking(False)
                for _ in range(_BACKLOG):
                    await self._serve_connection(copy.accept()[0])
        await asyncio.sleep(0.01)  # for those that the loop has accepted, but not yet announced
        await super().shutdown(sockets)
        self._captured_signals.clear()  # uvicorn would raise them again

    async def _serve_connection(self, accepted: socket.socket) -> None:
        def protocol() -> asyncio.Protocol:
            make: Any = self.config.http_protocol_class
            made: asyncio.Protocol = make(self.config, self.server_state, self.lifespan.state)
            return made

        accepted.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(protocol, accepted)
