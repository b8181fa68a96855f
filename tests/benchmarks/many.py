"""P6 and P7 with very many small ledgers in a real ZooKeeper: the rate, and the driver's memory."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import spark_bookkeeper as sbk
from spark_bookkeeper.bookie.entry import NewEntry
from spark_bookkeeper.bookie.record import encode_add
from spark_bookkeeper.bookie.schema import LedgerPaths
from spark_bookkeeper.client.ledger import Ledger, custom_metadata
from spark_bookkeeper.protocol.ids import NO_ENTRY, BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import NONCE, Fragment, LedgerMetadata
from spark_bookkeeper.replication.report import RecoveryReport
from tests.benchmarks import raw
from tests.benchmarks.lab import Lab
from tests.benchmarks.measure import Growth, Line, at_most
from tests.benchmarks.plain import Plain

FIRST = 1_000_000
"""Id of the first ledger, away from those that are really written."""
ENTRY_BYTES = 100
ROOMY = "1g"
"""For ZooKeeper: 1 KB for each ledger, and the transactions that it remembers."""
MAKERS = 2
"""Processes that make them: what they take of memory is not the driver's."""
MEMORY_MIB_MAX = 64
"""Growth of the driver, however many ledgers there are."""


def ledgers(lab: Lab) -> Iterator[Line]:
    """In a cluster of its own: the ledgers are recovered, and then a bookie of theirs is lost."""
    assert lab.spark is not None
    count = lab.sizes.many
    with lab.new_cluster("many", heap=ROOMY) as bk:
        assert bk.cluster is not None
        likes = _likes(bk)
        _make(bk, likes, count)
        sizes = f"{count:,} ledgers of one entry of {ENTRY_BYTES} B, once"
        yield from _lines(
            "P6",
            f"recovery of {count:,} small ledgers, as a Spark job",
            f"{sizes}; as their writers left them",
            _Job(count, bk.recover_ledgers),
        )
        victim = likes[0].last_fragment.ensemble[0]
        members = [like.last_fragment.ensemble for like in likes]
        hit = sum(victim in members[number % len(members)] for number in range(count))
        # Its files go at the end: see ``Lab.forget``.
        root = bk.cluster.root_of(victim)
        root.rename(lab.scratch("lost-of-many") / "bookie")
        root.mkdir()
        bk.cluster.stop_bookie(victim, destroy=True)
        yield from _lines(
            "P7",
            f"re-replication of what a bookie held of {count:,} small ledgers, as a Spark job",
            f"{sizes}; {hit:,} of them hit; the same ledgers, recovered, so each with a fence",
            _Job(hit, lambda: bk.recover_bookie(victim)),
        )
    shutil.rmtree(lab.directory / "many")


@dataclass
class _Job:
    """Runs once; its memory is that of the run whose rate is told."""

    count: int
    run: Callable[[], RecoveryReport]
    mib: float = 0.0

    def rate(self) -> float:
        with Growth() as growth:
            started = time.perf_counter()
            report = self.run()
            seconds = time.perf_counter() - started
        self.mib = growth.mib
        assert report.is_complete, report
        assert len(report.rows) == self.count
        return self.count / seconds


def _lines(point: str, what: str, sizes: str, job: _Job) -> Iterator[Line]:
    yield Line(point, what, "per s", sizes, job.rate, rounds=1, warm_up=0)
    yield Line(
        point,
        f"memory that the driver adds: {what}",
        "MiB",
        sizes,
        lambda: job.mib,
        own_target=at_most(MEMORY_MIB_MAX),
        rounds=1,
        warm_up=0,
    )


def _likes(bk: sbk.BookKeeper) -> Sequence[LedgerMetadata]:
    """What a writer leaves, on any three of the four bookies."""
    writer = bk.create_ledger()
    ledger = Ledger.of(writer.ledger_id, bk.context.store.read_ledger(writer.ledger_id).value)
    writer.abandon()
    bk.delete_ledger(writer.ledger_id, even_if_alive=True)
    registered = {r.bookie_id: r.incarnation for r in bk.context.store.registrations()}

    def like(without: BookieId) -> LedgerMetadata:
        members = {b: incarnation for b, incarnation in registered.items() if b != without}
        form = ledger.encoding
        custom = custom_metadata(
            "none", form.schema, form.compression, ledger.entry_target_bytes, members
        )
        fragment = Fragment(ledger.metadata.last_fragment.first_entry_id, tuple(members))
        return replace(
            ledger.metadata,
            fragments=(fragment,),
            custom_metadata={**ledger.metadata.custom_metadata, **custom},
        )

    return [like(without) for without in sorted(registered)]


def _make(bk: sbk.BookKeeper, likes: Sequence[LedgerMetadata], count: int) -> None:
    """With one entry on all three bookies; no file is synced before all are there."""
    assert bk.cluster is not None
    roots = {b: bk.cluster.root_of(b) for b in bk.cluster.bookie_ids}
    ends = [count * turn // MAKERS for turn in range(MAKERS + 1)]
    spawning = multiprocessing.get_context("spawn")  # ZooKeeper's client does not outlive a fork
    with ProcessPoolExecutor(MAKERS, spawning) as processes:
        made = [
            processes.submit(_make_some, bk.metadata_uri, likes, roots, range(*some))
            for some in pairwise(ends)
        ]
        for each in made:
            each.result()
    os.sync()


def _make_some(
    metadata_uri: str,
    likes: Sequence[LedgerMetadata],
    roots: Mapping[BookieId, Path],
    numbers: range,
) -> None:
    payload = raw.noise(ENTRY_BYTES)

    def left_behind() -> Iterator[tuple[LedgerId, LedgerMetadata]]:
        for number in numbers:
            like = likes[number % len(likes)]
            custom = {**like.custom_metadata, NONCE: secrets.token_hex(16).encode()}
            metadata = replace(like, custom_metadata=custom)
            ledger = Ledger.of(LedgerId(FIRST + number), metadata)
            entry = NewEntry(0, len(payload), payload)
            token = secrets.token_hex(16)
            record = encode_add(ledger.key, ledger.encoding, token, 0, NO_ENTRY, [entry])
            paths = LedgerPaths(ledger.key)
            for member in metadata.last_fragment.ensemble:
                # Not by ``pathlib``, which asks the system three times for the two directories.
                os.mkdir(f"{roots[member]}/{paths.directory}")
                os.mkdir(f"{roots[member]}/{paths.slots}")
                with open(f"{roots[member]}/{paths.slot(0)}", "xb", buffering=0) as file:
                    file.write(record)
            yield ledger.ledger_id, metadata

    with Plain(metadata_uri) as plain:
        plain.create(left_behind())
