"""What a log need not keep any more, by the retention that it carries."""

from __future__ import annotations

import logging

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.errors import BookKeeperError, EntryUnreadableError
from spark_bookkeeper.logs import truncation
from spark_bookkeeper.logs.consumers import needed_from
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.runtime.log_facts import about

_log = logging.getLogger(__name__)


def retain(context: ClientContext, name: str, nonce: str, options: LogOptions) -> None:
    """Truncate it where that is due; what fails is tried again the next time."""
    if options.retain_seconds is None:
        return
    try:
        # First whom it waits for: what they need is not looked at, however much there is of it.
        needed: LedgerId | None = None
        if options.retain_for:
            needed = needed_from(context, name, nonce, options.retain_for)
            if needed is None:
                return
        first = _ended(context, name, nonce, options.retain_seconds, needed)
        if first is not None:
            truncation.truncate(context, name, nonce, first)
    except BookKeeperError as error:
        _log.warning("log %s was not truncated: %s", name, error.message, extra=about(log=name))


def _ended(
    context: ClientContext, name: str, nonce: str, seconds: int, needed: LedgerId | None
) -> LedgerId | None:
    """The first ledger that stays."""
    time_ms = context.earlier_ms() - seconds * 1000
    try:
        return truncation.ended_before(context, name, nonce, time_ms, needed)
    except EntryUnreadableError as error:  # those before it have ended
        _log.warning(
            "retention of log %s stops before ledger %d: %s",
            *(name, error.ledger_id, error.message),
            extra=about(log=name),
        )
        return LedgerId(error.ledger_id)
