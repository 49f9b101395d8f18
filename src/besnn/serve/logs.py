"""Structured logs: one JSON object a line, and never what clients sent."""

import json
import logging
import sys
import time


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON; `extra={"fields": {...}}` adds fields.

    >>> record = logging.makeLogRecord({"msg": "request", "levelname": "INFO", "created": 0.0, "fields": {"status": 200}})
    >>> JsonFormatter().format(record)
    '{"time": "1970-01-01T00:00:00.000Z", "level": "info", "event": "request", "status": 200}'
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line; of an exception its type alone, for its message may quote an input."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.created % 1 * 1000):03}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
        return json.dumps(line)


def log_to_standard_error() -> None:
    """Makes this process log in JSON, libraries' messages and warnings included."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    logging.disable(logging.NOTSET)  # the command line silences them for other commands
    logging.captureWarnings(True)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of every malformed body
