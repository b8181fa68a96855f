"""The log of a command: lines on stderr, as text for people or JSON for machines."""

from __future__ import annotations

import logging
import sys
from typing import Any, Final, Literal

from spark_bookkeeper.runtime.log_facts import JsonFormatter
from spark_bookkeeper.secrecy import without_passwords

LogFormat = Literal["text", "json"]

LOG_FORMATS: Final = ("text", "json")
LOG_FORMAT_VARIABLE: Final = "SPARK_BOOKKEEPER_LOG_FORMAT"

_FOREIGN: Final = ("kazoo", "py4j")
"""Libraries that may only log errors: our own loggers report lost and restored connections."""


class _Stderr(logging.Handler):
    """Writes to the ``sys.stderr`` of the moment: ``spark-submit`` replaces it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(without_passwords(self.format(record)) + "\n")
            sys.stderr.flush()
        except Exception:  # noqa: BLE001  (as every handler does)
            self.handleError(record)


def start_logging(log_format: LogFormat, level: int = logging.INFO, **facts: Any) -> None:
    """Write the log to stderr from now on, in place of any earlier call's settings.

    Args:
        log_format: a line for people, or a JSON object (``log_facts.JsonFormatter``).
        level: the lowest level that is shown.
        facts: facts to add to every line, as ``about`` takes them.
    """
    handler = _Stderr()
    text = logging.Formatter("%(asctime)s %(message)s")
    handler.setFormatter(JsonFormatter(**facts) if log_format == "json" else text)
    root = logging.getLogger()
    for earlier in [each for each in root.handlers if isinstance(each, _Stderr)]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    root.setLevel(level)
    for name in _FOREIGN:
        logging.getLogger(name).setLevel(logging.ERROR)
