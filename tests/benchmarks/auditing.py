"""P8: an audit of very many ledgers in a real ZooKeeper; and of P9 a create beside them."""

from __future__ import annotations

import secrets
import shutil
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from unittest import mock

import psutil
from kazoo.client import KazooClient

import spark_bookkeeper as sbk
from spark_bookkeeper.autorecovery import scan
from spark_bookkeeper.autorecovery.publishing import audit_bookies
from spark_bookkeeper.cluster import zookeeper
from spark_bookkeeper.metadata.codec import encode_ledger
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import NONCE, Fragment, LedgerMetadata
from tests.benchmarks.lab import Lab, MissingError
from tests.benchmarks.measure import PEER, Against, Line, at_least, at_most
from tests.benchmarks.profiling import timed

LOST = BookieId("lost:3181")
AFFECTED = 100
"""Ledgers that name the lost bookie; publishing the task of each is part of an audit."""
FIRST = 1_000_000
"""Id of the first ledger, away from those that are really written."""
FEW = 1_000
TOGETHER = 500
WINDOW = 500
SAMPLED_MAX = 100_000
"""Plain kazoo reads no more of them: it needs minutes for a million."""
ROOMY = "4g"
LEDGERS_PER_SECOND = 50_000
"""100,000 in 2 s, and 1,000,000 in 20 s."""
MEMORY_MIB_MAX = 64
"""Growth of the process while it audits: what is read is forgotten."""


def ledgers(lab: Lab) -> Iterator[Line]:
    """P8, in a cluster of its own."""
    assert lab.spark is not None
    count = lab.sizes.audited
    sampled = min(count, SAMPLED_MAX)
    rounds = 1 if count > SAMPLED_MAX else min(lab.sizes.rounds, 3)
    with ExitStack() as stack:
        bk = stack.enter_context(_cluster(lab, count))
        plain = stack.enter_context(_Plain(bk))
        plain.make(count)
        sizes = f"{count:,} closed ledgers, {AFFECTED} of them on the lost bookie"
        # Runs are put together by the names of their lines: those of a million among themselves.
        looked_at = f"{count:,}" if count > SAMPLED_MAX else "all"

        def ours() -> float:
            started = time.perf_counter()
            with timed():
                report = audit_bookies(bk.context, {LOST})
            seconds = time.perf_counter() - started
            assert len(report.rows) == AFFECTED
            return count / seconds

        def on_spark() -> float:
            runner = bk.frames.runner("audit")
            started = time.perf_counter()
            with mock.patch.object(scan, "LEDGERS_FOR_SPARK", 0):
                report = audit_bookies(bk.context, {LOST}, runner=runner)
            seconds = time.perf_counter() - started
            assert len(report.rows) == AFFECTED
            return count / seconds

        def memory() -> float:
            with _Growth() as growth:
                ours()
            return growth.mib

        yield Line(
            "P8",
            f"audit of {looked_at} ledgers for one lost bookie",
            "per s",
            sizes,
            ours,
            [
                _indexer(lab, stack, plain, count),
                Against("ours, as a Spark job", on_spark),
                Against(
                    "raw: the nodes by plain kazoo, one request for each, nothing decoded",
                    lambda: sampled / plain.read(sampled),
                    at_least(1.0),
                ),
            ],
            own_target=at_least(LEDGERS_PER_SECOND),
            rounds=rounds,
        )
        yield Line(
            "P8",
            f"memory that an audit of {looked_at} ledgers adds",
            "MiB",
            sizes,
            memory,
            own_target=at_most(MEMORY_MIB_MAX),
            rounds=rounds,
        )
        yield _creation(lab, bk, count)
    shutil.rmtree(lab.directory / "audited")


def _cluster(lab: Lab, count: int) -> sbk.BookKeeper:
    """One whose ZooKeeper has the memory for so many nodes: some 1 KB each."""
    options = zookeeper._JVM_OPTIONS
    if count > SAMPLED_MAX:
        options = (*options, f"-Xmx{ROOMY}")
    with mock.patch.object(zookeeper, "_JVM_OPTIONS", options):
        return lab.new_cluster("audited")


def _creation(lab: Lab, bk: sbk.BookKeeper, count: int) -> Line:
    """P9: as many ledgers as there may be, a new one costs as much."""

    def p50(bk: sbk.BookKeeper) -> float:
        took = []
        for _ in range(lab.sizes.creates):
            started = time.perf_counter()
            bk.create_ledger().close()
            took.append(time.perf_counter() - started)
        return statistics.median(took) * 1000

    with _Plain(lab.bk) as plain:
        plain.make(FEW)
    return Line(
        "P9",
        f"create + close beside {count:,} ledgers against {FEW:,}, p50",
        "ms",
        f"{lab.sizes.creates} a round, one after the other, each in a cluster of its own",
        lambda: p50(bk),
        [Against(f"beside {FEW:,}", lambda: p50(lab.bk), at_most(1.2))],
        rounds=lab.sizes.rounds,
    )


def _indexer(lab: Lab, stack: ExitStack, plain: _Plain, count: int) -> Against:
    """BookKeeper's own, over the same tree; it finds all ledgers of all bookies."""
    try:
        peer = stack.enter_context(lab.indexer(plain.hosts, plain.root))
    except (MissingError, RuntimeError) as error:
        return Against(PEER, None, at_least(2), str(error))

    def theirs() -> float:
        answer = peer.ask(LOST)
        assert answer["ledgers"] == AFFECTED
        return count / answer["seconds"]

    return Against(f"{PEER}'s indexer of the same ledgers", theirs, at_least(2))


class _Plain:
    """Plain kazoo beside a cluster."""

    def __init__(self, bk: sbk.BookKeeper) -> None:
        self._bk = bk
        self.hosts, _, root = bk.metadata_uri.split("://")[1].partition("/")
        self.root = f"/{root}"
        # A server that takes a million nodes is silent for seconds.
        self._client = KazooClient(self.hosts, timeout=40)

    def __enter__(self) -> _Plain:
        self._client.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop()
        self._client.close()

    def make(self, count: int) -> None:
        """Ledgers that are metadata alone, as a create and a close leave them."""
        with self._bk.create_ledger() as writer:
            writer.append(b"one")
        like = self._bk.context.store.read_ledger(writer.ledger_id).value
        under_way: deque[object] = deque()
        made: set[str] = set()
        for start in range(0, count, TOGETHER):
            transaction = self._client.transaction()
            for number in range(start, min(count, start + TOGETHER)):
                ledger_id = LedgerId(FIRST + number)
                path = paths.ledger(self.root, ledger_id)
                parent = path.rpartition("/")[0]
                if parent not in made:
                    self._client.ensure_path(parent)
                    made.add(parent)
                transaction.create(path, encode_ledger(_another(like, number, count)))
            under_way.append(transaction.commit_async())
            if len(under_way) == 8:
                under_way.popleft().get()  # type: ignore[attr-defined]  # kazoo has no types
        for request in under_way:
            assert not any(isinstance(r, Exception) for r in request.get())  # type: ignore[attr-defined]

    def read(self, count: int) -> float:
        """Seconds to read all of them, ``WINDOW`` requests ahead."""
        started = time.perf_counter()
        under_way: deque[object] = deque()
        for number in range(count):
            if len(under_way) == WINDOW:
                under_way.popleft().get()  # type: ignore[attr-defined]
            path = paths.ledger(self.root, LedgerId(FIRST + number))
            under_way.append(self._client.get_async(path))
        for request in under_way:
            request.get()  # type: ignore[attr-defined]
        return time.perf_counter() - started


def _another(like: LedgerMetadata, number: int, count: int) -> LedgerMetadata:
    ensemble = like.last_fragment.ensemble
    if number % max(1, count // AFFECTED) == 0 and number // max(1, count // AFFECTED) < AFFECTED:
        ensemble = (LOST, *ensemble[1:])
    custom = {**like.custom_metadata, NONCE: secrets.token_hex(16).encode()}
    fragment = Fragment(like.last_fragment.first_entry_id, ensemble)
    return replace(like, fragments=(fragment,), custom_metadata=custom)


class _Growth:
    """How much more memory this process has at a time than before."""

    def __enter__(self) -> _Growth:
        self._process = psutil.Process()
        self._before = self._most = self._process.memory_info().rss
        self._ended = threading.Event()
        self._looker = threading.Thread(target=self._look, daemon=True)
        self._looker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._looker.join()

    def _look(self) -> None:
        while not self._ended.wait(0.01):
            self._most = max(self._most, self._process.memory_info().rss)

    @property
    def mib(self) -> float:
        return (self._most - self._before) / (1 << 20)
