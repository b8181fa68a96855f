"""Plain kazoo beside a cluster."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

from kazoo.client import KazooClient
from typing_extensions import Self

from spark_bookkeeper.metadata.codec import encode_ledger
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata

TOGETHER = 500
AHEAD = 8
"""Transactions."""
WINDOW = 500


class Plain:
    """Creates and reads metadata of ledgers as quickly as kazoo does."""

    def __init__(self, metadata_uri: str) -> None:
        self.hosts, _, root = metadata_uri.split("://")[1].partition("/")
        self.root = f"/{root}"
        # A server that takes a million nodes is silent for seconds.
        self._client = KazooClient(self.hosts, timeout=40)

    def __enter__(self) -> Self:
        self._client.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop()
        self._client.close()

    def create(self, ledgers: Iterable[tuple[LedgerId, LedgerMetadata]]) -> None:
        """Ledgers that do not exist; what is made of them here is metadata alone."""
        under_way: deque[object] = deque()
        made: set[str] = set()
        transaction = self._client.transaction()
        for ledger_id, metadata in ledgers:
            path = paths.ledger(self.root, ledger_id)
            parent = path.rpartition("/")[0]
            if parent not in made:
                self._client.ensure_path(parent)
                made.add(parent)
            transaction.create(path, encode_ledger(metadata))
            if len(transaction.operations) == TOGETHER:
                under_way.append(transaction.commit_async())
                transaction = self._client.transaction()
            if len(under_way) == AHEAD:
                _done(under_way.popleft())
        for request in (*under_way, transaction.commit_async()):
            _done(request)

    def read(self, ledger_ids: Iterable[LedgerId]) -> float:
        """Seconds to read all of them, ``WINDOW`` requests ahead."""
        started = time.perf_counter()
        under_way: deque[object] = deque()
        for ledger_id in ledger_ids:
            if len(under_way) == WINDOW:
                under_way.popleft().get()  # type: ignore[attr-defined]  # kazoo has no types
            under_way.append(self._client.get_async(paths.ledger(self.root, ledger_id)))
        for request in under_way:
            request.get()  # type: ignore[attr-defined]
        return time.perf_counter() - started


def _done(request: object) -> None:
    """Wait for a transaction."""
    answers = request.get()  # type: ignore[attr-defined]
    assert not any(isinstance(answer, Exception) for answer in answers)
