"""What a log need not keep any more, by the retention that it carries."""

from __future__ import annotations

import logging

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.logs import truncation
from spark_bookkeeper.logs.consumers import needed_from
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.runtime.log_facts import about

_log = logging.getLogger(__name__)


def retain(context: ClientContext, name: str, nonce: str, options: LogOptions) -> None:
    """Truncate it where that is due; what fails is tried again when a ledger is added next."""
    if options.retain_seconds is None:
        return
    time_ms = context.runtime.wall_ms() - options.retain_seconds * 1000
    try:
        first = truncation.ended_before(context, name, nonce, time_ms)
        if first is not None and options.retain_for:
            needed = needed_from(context, name, nonce, options.retain_for)
            first = None if needed is None else min(first, needed)
        if first is not None:
            truncation.truncate(context, name, nonce, first)
    except BookKeeperError as error:
        _log.warning("log %s was not truncated: %s", name, error.message, extra=about(log=name))
