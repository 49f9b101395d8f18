"""What one request may use of what all requests share: the time until its deadline, and memory for decoded images."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock

from besnn.serve.problems import Problem


class Budget:
    """A number of bytes that all requests together may hold."""

    def __init__(self, most: int) -> None:
        self._most, self._held = most, 0
        self._lock = Lock()

    def take(self, amount: int) -> None:
        """Take some bytes, or raise a problem if there are not as many left."""
        if amount > self._most:
            detail = f"the images take more than {self._most:,} bytes when decoded: send fewer at a time"
            raise Problem(413, "images-too-large", detail)
        with self._lock:
            if self._held + amount > self._most:
                raise Problem(429, "busy", "the service is decoding too many images: try again", {"Retry-After": "1"})
            self._held += amount

    def give_back(self, amount: int) -> None:
        """Give some bytes back."""
        with self._lock:
            self._held -= amount


class Allowance:
    """One request's share of a budget, which it keeps until its end; `expired` is set then."""

    def __init__(self, budget: Budget) -> None:
        self.expired = Event()
        self._budget, self._taken = budget, 0

    def take(self, amount: int) -> None:
        """Take some bytes from the budget."""
        self._budget.take(amount)
        self._taken += amount

    @contextmanager
    def until_done(self) -> Iterator["Allowance"]:
        """Give everything back at the end of the block."""
        try:
            yield self
        finally:
            self.expired.set()
            self._budget.give_back(self._taken)
