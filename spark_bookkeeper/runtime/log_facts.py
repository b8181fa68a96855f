"""The subject of a log line, as separate fields: ledger, bookie, job, log.

A logger's call passes its subject as ``extra=about(ledger_id=7)``. ``during(job="recover_bookie")``
sets a subject for all lines of a block. Formatters for people leave these fields out, since the
message says them; ``JsonFormatter`` writes them as JSON fields, for machines.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timezone
from types import MappingProxyType
from typing import Any, Final

FACTS: Final = ("ledger_id", "bookie_id", "job", "log")
"""The fields that a line may have besides its message."""

_NONE: Final[Mapping[str, object]] = MappingProxyType({})
_DURING: ContextVar[Mapping[str, object]] = ContextVar("log_facts", default=_NONE)


def about(
    *,
    ledger_id: int | None = None,
    bookie_id: str | None = None,
    job: str | None = None,
    log: str | None = None,
) -> dict[str, object]:
    """Return the ``extra`` argument for a logger, without the facts that are ``None``."""
    facts = {"ledger_id": ledger_id, "bookie_id": bookie_id, "job": job, "log": log}
    return {name: value for name, value in facts.items() if value is not None}


@contextmanager
def during(**facts: Any) -> Iterator[None]:
    """Add facts to all lines that this thread logs in the block; arguments as of ``about``."""
    token = _DURING.set({**_DURING.get(), **about(**facts)})
    try:
        yield
    finally:
        _DURING.reset(token)


class JsonFormatter(logging.Formatter):
    """One JSON object for each line: ``time, level, logger, message``, facts, and ``error``.

    ``time`` is UTC in the form of ISO 8601; ``error`` is the stack trace of an exception.

    Args:
        facts: defaults for all lines. An agent, for example, has one bookie.
    """

    def __init__(self, **facts: Any) -> None:
        super().__init__()
        self._facts = about(**facts)

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, timezone.utc)
        line: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        own = {name: getattr(record, name) for name in FACTS if hasattr(record, name)}
        line |= {**self._facts, **_DURING.get(), **own}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)
