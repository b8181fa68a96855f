"""A simulation makes every fault happen, and nobody reads a warning of each."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Meanwhile the library logs nothing; afterwards it logs as it did before."""
    log = logging.getLogger("spark_bookkeeper")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)
