"""Starting a streaming query on a machine that is busy with something else."""

from __future__ import annotations

import time
from typing import Any


def started(writer: Any) -> Any:
    """Start a query, and wait until its source is there.

    Spark waits ten seconds for the process of a source, whatever else the machine does. So they
    are made one after the other, and a query that failed by that alone is started again.
    """
    while True:
        query = writer.start()
        while query.isActive and query.status["message"].startswith("Initializing"):
            time.sleep(0.05)
        error = query.exception()
        if error is None or "Python worker failed to connect back" not in str(error):
            return query
