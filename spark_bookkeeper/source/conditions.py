"""How trouble is told to Spark: the name of its condition in brackets, then what happened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spark_bookkeeper.errors import BookKeeperError


@contextmanager
def told() -> Iterator[None]:
    """Errors of ours begin with their condition: only the text reaches the driver."""
    try:
        yield
    except BookKeeperError as error:
        if error.message.startswith(f"[{error.condition}]"):
            raise
        raise type(error)(error.for_worker(), **error.facts) from error
