"""A bound on the head of a request, which uvicorn's fast parser leaves open.

All other limits are the application's. It only comes into play when a request's head is complete: until then whatever a client
sends is kept, token or not.
"""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024


class LimitedHeads(HttpToolsProtocol):
    """uvicorn's protocol on httptools, which gives up on a request whose line and headers do not end."""

    _in_head, _ended, _unfinished = True, False, 0

    def on_headers_complete(self) -> None:
        """The head is complete: what follows is the body, which the application limits."""
        self._in_head, self._unfinished = False, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is complete: what follows is the next one's head."""
        super().on_message_complete()
        self._in_head, self._ended = True, True

    def data_received(self, data: bytes) -> None:
        """Takes what came; data in which a request ended are not counted as the head of the next."""
        self._ended = False
        super().data_received(data)
        if self._in_head and not self._ended:
            self._unfinished += len(data)
            if self._unfinished > MAX_HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response(f"the head of a request is at most {MAX_HEAD_BYTES} bytes long")
