"""P8: an audit of very many ledgers in a real ZooKeeper; and of P9 a create beside them."""

from __future__ import annotations

import secrets
import shutil
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from unittest import mock

import spark_bookkeeper as sbk
from spark_bookkeeper.autorecovery import scan
from spark_bookkeeper.autorecovery.publishing import publish_lost_bookies
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import NONCE, Fragment, LedgerMetadata
from tests.benchmarks.lab import Lab, MissingError
from tests.benchmarks.measure import PEER, Against, Growth, Line, at_least, at_most
from tests.benchmarks.plain import Plain
from tests.benchmarks.profiling import timed

LOST = BookieId("lost:3181")
AFFECTED = 100
"""Ledgers that name the lost bookie; publishing the task of each is part of an audit."""
FIRST = 1_000_000
"""Id of the first ledger, away from those that are really written."""
FEW = 1_000
SAMPLED_MAX = 100_000
"""Plain kazoo reads no more of them: it needs minutes for a million."""
ROOMY = "4g"
"""For ZooKeeper, where each of so many nodes takes some 1 KB."""
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
        bk = stack.enter_context(
            lab.new_cluster("audited", heap=ROOMY if count > SAMPLED_MAX else None)
        )
        plain = stack.enter_context(Plain(bk.metadata_uri))
        _make(bk, plain, count)
        sizes = f"{count:,} closed ledgers, {AFFECTED} of them on the lost bookie"
        # Runs are put together by the names of their lines: those of a million among themselves.
        looked_at = f"{count:,}" if count > SAMPLED_MAX else "all"

        def ours() -> float:
            started = time.perf_counter()
            with timed():
                report = publish_lost_bookies(bk.context, {LOST})
            seconds = time.perf_counter() - started
            assert len(report.rows) == AFFECTED
            return count / seconds

        def on_spark() -> float:
            runner = bk.frames.runner("audit")
            started = time.perf_counter()
            with mock.patch.object(scan, "LEDGERS_FOR_SPARK", 0):
                report = publish_lost_bookies(bk.context, {LOST}, runner=runner)
            seconds = time.perf_counter() - started
            assert len(report.rows) == AFFECTED
            return count / seconds

        def memory() -> float:
            with Growth() as growth:
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
                    lambda: sampled / plain.read(_ids(sampled)),
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


def _creation(lab: Lab, bk: sbk.BookKeeper, count: int) -> Line:
    """P9: as many ledgers as there may be, a new one costs as much."""

    def p50(bk: sbk.BookKeeper) -> float:
        took = []
        for _ in range(lab.sizes.creates):
            started = time.perf_counter()
            bk.create_ledger().close()
            took.append(time.perf_counter() - started)
        return statistics.median(took) * 1000

    with Plain(lab.bk.metadata_uri) as plain:
        _make(lab.bk, plain, FEW)
    return Line(
        "P9",
        f"create + close beside {count:,} ledgers against {FEW:,}, p50",
        "ms",
        f"{lab.sizes.creates} a round, one after the other, each in a cluster of its own",
        lambda: p50(bk),
        [Against(f"beside {FEW:,}", lambda: p50(lab.bk), at_most(1.2))],
        rounds=lab.sizes.rounds,
    )


def _indexer(lab: Lab, stack: ExitStack, plain: Plain, count: int) -> Against:
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


def _make(bk: sbk.BookKeeper, plain: Plain, count: int) -> None:
    """Ledgers that are metadata alone, as a create and a close leave them."""
    with bk.create_ledger() as writer:
        writer.append(b"one")
    like = bk.context.store.read_ledger(writer.ledger_id).value
    plain.create((i, _another(like, n, count)) for n, i in enumerate(_ids(count)))


def _ids(count: int) -> Iterator[LedgerId]:
    return map(LedgerId, range(FIRST, FIRST + count))


def _another(like: LedgerMetadata, number: int, count: int) -> LedgerMetadata:
    ensemble = like.last_fragment.ensemble
    if number % max(1, count // AFFECTED) == 0 and number // max(1, count // AFFECTED) < AFFECTED:
        ensemble = (LOST, *ensemble[1:])
    custom = {**like.custom_metadata, NONCE: secrets.token_hex(16).encode()}
    fragment = Fragment(like.last_fragment.first_entry_id, ensemble)
    return replace(like, fragments=(fragment,), custom_metadata=custom)
