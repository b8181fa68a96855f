"""What a line of the log is about, kept beside its words: ledger, bookie, job, log.

A call of a logger names what it is about by ``extra=about(ledger_id=7)``. What holds for all that
is said during some work is told once, ``with during(job="recover_bookie")``. Formatters for people
leave it out, since the words say it; ``JsonFormatter`` writes it as fields, for machines.
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
"""The fields that a line may have beside its words."""

_NONE: Final[Mapping[str, object]] = MappingProxyType({})
_DURING: ContextVar[Mapping[str, object]] = ContextVar("log_facts", default=_NONE)


def about(
    *,
    ledger_id: int | None = None,
    bookie_id: str | None = None,
    job: str | None = None,
    log: str | None = None,
) -> dict[str, object]:
    """What to give a logger as ``extra``; what is ``None`` is left out."""
    facts = {"ledger_id": ledger_id, "bookie_id": bookie_id, "job": job, "log": log}
    return {name: value for name, value in facts.items() if value is not None}


@contextmanager
def during(**facts: Any) -> Iterator[None]:
    """All that this thread says meanwhile is about these, too; arguments as of ``about``."""
    token = _DURING.set({**_DURING.get(), **about(**facts)})
    try:
        yield
    finally:
        _DURING.reset(token)


class JsonFormatter(logging.Formatter):
    """One JSON object for each line: ``time, level, logger, message``, facts, and ``error``.

    ``time`` is UTC in the form of ISO 8601; ``error`` is the stack trace of an exception.

    Args:
        facts: of every line, where it does not say otherwise: an agent has one bookie.
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
