"""Where the state of a drift monitor is kept: one document that several processes may change, each in its turn."""

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from besnn.detection import DriftMonitor
from besnn.errors import BesnnError, DataError

PATIENCE = 30.0
"""Seconds to wait for another process to finish its change."""


class DriftStore:
    """A JSON document in an SQLite file: a change is seen whole or not at all, even if its process is killed.

    Args:
        path: the file, made if it is not there; None keeps the document in memory.

    >>> store = DriftStore(None)
    >>> with store.document() as document:
    ...     document["steps"] = 1
    >>> with store.document() as document:
    ...     print(document)
    {'steps': 1}
    """

    def __init__(self, path: Path | None) -> None:
        self.name = "in memory" if path is None else str(path)
        self._lock = threading.Lock()
        try:
            self._connection = sqlite3.connect(
                ":memory:" if path is None else path, timeout=PATIENCE, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("CREATE TABLE IF NOT EXISTS drift (id INTEGER PRIMARY KEY, document TEXT NOT NULL)")
        except sqlite3.Error as error:
            raise DataError(f"drift state {self.name} cannot be used ({error}): give another file") from None

    @contextmanager
    def document(self) -> Iterator[dict[str, Any]]:
        """The document to read and change, empty at first; nobody else sees or changes it until the block ends.

        Raises:
            DataError: it is damaged, another process does not let go of it, or the disk is full.
        """
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                found = self._connection.execute("SELECT document FROM drift WHERE id = 1").fetchone()
                before = found[0] if found else "{}"
                document = self._parse(before)
                yield document
                if (after := json.dumps(document)) != before:
                    self._connection.execute("INSERT OR REPLACE INTO drift VALUES (1, ?)", (after,))
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                remedy = "let other processes finish with it, make room on the disk, or give another file"
                raise DataError(f"drift state {self.name} cannot be read or written ({error}): {remedy}") from None
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def restore(self, monitor: DriftMonitor, document: dict[str, Any]) -> None:
        """Lets a monitor go on where the document's left off, if there is one."""
        if "monitor" not in document:
            return
        try:
            monitor.load_state_dict(document["monitor"])
        except BesnnError as error:
            raise DataError(f"drift state {self.name} does not fit: {error}") from None
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(error) from None

    def _parse(self, text: str) -> dict[str, Any]:
        try:
            document = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise self._damaged(error) from None
        if not isinstance(document, dict):
            raise self._damaged(f"a {type(document).__name__} in place of an object")
        return document

    def _damaged(self, reason: Exception | str) -> DataError:
        return DataError(f"drift state {self.name} is damaged ({reason}): start a new one in another file")

    def close(self) -> None:
        """Lets go of the file."""
        with self._lock:
            self._connection.close()
