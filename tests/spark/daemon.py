"""Starts the Python workers of the tests' Spark session, which find this library imported.

Spark forks every worker from a process that has imported Spark's part alone, and a worker that a
test ends is followed by another one, which imports this library again: 0.4 s of a processor each.
What a worker imports by itself, without this, is tested by ``test_fresh_workers.py``.
"""

from __future__ import annotations

from pyspark.daemon import manager

import spark_bookkeeper.source.data_source
import spark_bookkeeper.source.functions  # noqa: F401

if __name__ == "__main__":
    manager()
