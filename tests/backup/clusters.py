"""What is backed up and restored: a log, ledgers of every form, and whether they came back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from spark_bookkeeper.agent.collection import Collection, collect_garbage
from spark_bookkeeper.backup.folder import BESIDE_TABLE
from spark_bookkeeper.backup.restoring import restore
from spark_bookkeeper.backup.saving import BackupReport
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.logs.logs import create_log, open_log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.metadata.consumers import Consumer, consumers, publish
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.log import Position
from spark_bookkeeper.protocol.metadata import DigestType
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.check_ledgers import check_ledgers
from spark_bookkeeper.replication.report import Outcome, Row
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import Ground, InlineRuntime, KillAt, Killed
from tests.support.lake import entries_of, metadata_of

FORMS: list[dict[str, Any]] = [
    {"digest_type": digest_type, "password": b"secret", "compression": compression}
    for digest_type, compression in zip(DigestType, ("zstd", None, "lz4", None), strict=True)
]


def run(
    job: Callable[..., BackupReport],
    context: ClientContext,
    folder: str,
    *args: Any,
    **options: Any,
) -> BackupReport:
    """A job in this process."""
    return job(context, LocalRunner(context), folder, *args, **options)


def statuses(report: BackupReport) -> set[Outcome]:
    return {row.status for row in report.rows}


def a_log(ground: Ground, name: str = "orders") -> list[bytes]:
    """Three ledgers, an empty one and a consumer; its payloads."""
    log = create_log(ground.context, name, LogOptions(Quorum(3, 2, 2)))
    with log.become_writer() as writer:
        for number in range(9):
            writer.append(b"%d" % number)
            if number % 3 == 2:
                writer.roll()
    position = Position(log.ledgers()[1], EntryId(1))
    publish(ground.context.store.registers, name, Consumer("etl", log._nonce, position, 1))
    return [entry.payload for entry in log.entries()]


def contents(ground: Ground, ledger_ids: Sequence[LedgerId]) -> list[list[tuple[Any, ...]]]:
    """Of ledgers, without what was confirmed when a copy was made: each says its own."""
    context = ground.client()
    return [[(*e[:2], *e[3:]) for e in entries_of(context, i)] for i in ledger_ids]


def assert_came_back(old: Ground, new: Ground, ledger_ids: Sequence[LedgerId]) -> None:
    """Metadata that say the same of each ledger, and copies wherever they say."""
    for ledger_id in ledger_ids:
        before, after = metadata_of(old, ledger_id), metadata_of(new, ledger_id)
        for name in ("quorum", "state", "digest_type", "password", "ctime_ms", "length_bytes"):
            assert getattr(before, name) == getattr(after, name)
        kept = {k: v for k, v in before.custom_metadata.items() if "incarnations" not in k}
        assert kept.items() <= after.custom_metadata.items()
    checked = check_ledgers(new.context, LocalRunner(new.context), None, percentage=100)
    assert checked.is_complete


def assert_log_came_back(old: Ground, new: Ground, payloads: Sequence[bytes]) -> None:
    """The log ``a_log`` made has its ledgers, these payloads and its consumer; it is written on."""
    log, again = (open_log(ground.context, "orders") for ground in (old, new))
    ledgers = log.ledgers()
    assert again.ledgers() == ledgers
    assert [entry.payload for entry in again.entries()] == payloads
    places = [[(e.ledger_id, e.entry_id) for e in each.entries()] for each in (log, again)]
    assert places[0][: len(payloads)] == places[1]
    (consumer,) = consumers(new.context.store.registers, "orders", log._nonce)
    assert consumer.position == Position(ledgers[1], EntryId(1))
    with again.become_writer() as writer:
        assert writer.append(b"next").ledger_id > ledgers[-1]
    assert [entry.payload for entry in again.entries()] == [*payloads, b"next"]


Job = Callable[[ClientContext, Path], BackupReport]
"""Saves into a place, or restores what is there."""


def killed_at(ground: Ground, numbers: Iterable[int], which: str, save: Job, back: Job) -> int:
    """Kill one of both jobs before each of these operations, repeat, and compare.

    Returns:
        How often it was killed: where it ends before an operation, no later one is tried.
    """
    payloads = a_log(ground)
    ids = list(ground.context.store.ledger_ids())
    before = contents(ground, ids)
    place, kills = ground.directory.with_name("place"), 0
    if which == "restore":
        assert save(ground.client(), place).is_complete
    for number in numbers:
        empty = Ground(ground.directory.with_name(f"new-{number}"), runtime=InlineRuntime())
        if which == "backup":
            place = ground.directory.with_name(f"place-{number}")
        job, target = (save, ground) if which == "backup" else (back, empty)
        kill = KillAt(number)
        with suppress(Killed):
            job(target.client(None, kill), place)
        collect_garbage(target.client(), wish=Collection())
        jobs = [(save, ground), (back, empty)] if which == "backup" else [(back, empty)]
        for each, its in jobs:
            report = each(its.client(), place)
            assert report.is_complete, report.unfinished
        assert contents(empty, ids) == before
        assert_log_came_back(ground, empty, payloads)
        if not kill.is_dead:
            break
        kills += 1
    return kills


def put_back(ground: Ground, place: Path | str, **options: Any) -> BackupReport:
    """Restore what is in a table and beside it."""
    context = ground.client()
    return restore(context, LocalRunner(context), str(place), **options)


def beside(lake: Path) -> Path:
    return lake / BESIDE_TABLE


def in_directory(lake: Path) -> set[int]:
    """The ledgers of which there are copies beside the table."""
    return {int(path.name.partition("-")[0]) for path in beside(lake).glob("ledgers/*")}


def in_table(lake: Path) -> Counter[int]:
    """The rows that the table has of each ledger."""
    return Counter(
        DeltaTable(str(lake)).to_pyarrow_table(columns=["_ledger_id"])["_ledger_id"].to_pylist()
    )


def optimize(lake: Path) -> None:
    DeltaTable(str(lake)).optimize.compact()


def vacuum(lake: Path) -> None:
    DeltaTable(str(lake)).vacuum(0, enforce_retention_duration=False, dry_run=False)


def of(report: BackupReport, ledger_id: int) -> Row:
    (row,) = [row for row in report.rows if row.ledger_id == ledger_id]
    return row


def refused(call: Callable[[], object]) -> str:
    """What is said to whoever asks for it."""
    with pytest.raises(InvalidArgumentError) as refusal:
        call()
    return refusal.value.message


def reads_of_bookies(ground: Ground) -> int:
    """Of files that have entries."""
    wanted = ("/parts/", "/slots/", "/copies/")
    return sum(
        step.operation.startswith("read") and any(kind in step.path for kind in wanted)
        for step in ground.steps
        if step.place in ground.bookie_ids
    )
