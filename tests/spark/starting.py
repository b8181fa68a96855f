"""Starting a streaming query on a machine that is busy with something else."""

from __future__ import annotations

import time
from typing import Any, Final

STARTS_MOST: Final = 10
"""Whatever fails so often has another reason than a busy machine."""


def started(writer: Any) -> Any:
    """Start a query, and wait until its source is there.

    Spark waits ten seconds for the process of a source, whatever else the machine does. So they
    are made one after the other, and a query that failed by that alone is started again.

    Returns:
        the query; one that failed at every start, or by something else, tells it itself.
    """
    query = _started_once(writer)
    for _ in range(STARTS_MOST - 1):
        if "Python worker failed to connect back" not in str(query.exception()):
            break
        query = _started_once(writer)
    return query


def _started_once(writer: Any) -> Any:
    query = writer.start()
    while query.isActive and query.status["message"].startswith("Initializing"):
        time.sleep(0.05)
    return query
