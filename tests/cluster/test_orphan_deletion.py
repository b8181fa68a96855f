"""Ledgers that nobody owns are deleted when a person says so, and no others."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from spark_bookkeeper.client import lifecycle, staging
from spark_bookkeeper.client.write.bulk import write_local
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.cluster import orphan_deletion
from spark_bookkeeper.cluster.orphan_deletion import delete_orphans
from spark_bookkeeper.cluster.space import space_table
from spark_bookkeeper.logs import atomic
from spark_bookkeeper.logs.begun_writes import note_of
from spark_bookkeeper.logs.logs import create_log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.metadata.logs import change_log, read_log
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.report import Outcome, Report
from spark_bookkeeper.testing.ground import Ground

USUAL = Quorum(3, 3, 2)
EVER = 1 << 60
"""Later than any ledger was created."""


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """Four bookies in directories, metadata in memory."""
    return Ground(tmp_path)


def made(ground: Ground, *, close: bool = True, **labels: bytes) -> LedgerWriter:
    """A ledger with one entry; its writer has a session of its own."""
    writer = lifecycle.create_ledger(ground.client(), USUAL, labels=labels)
    writer.append(b"0")
    if close:
        writer.close()
    return writer


def outcomes(report: Report) -> dict[int, Outcome]:
    return {row.ledger_id: row.status for row in report.rows}


def test_what_nobody_owns_goes_and_nothing_else(ground: Ground) -> None:
    unnamed, named = made(ground), made(ground, name=b"a")
    lives, left = made(ground, close=False), made(ground, close=False)
    left._context.store.close()  # its process has ended

    planned = delete_orphans(ground.context, EVER)
    assert outcomes(planned) == dict.fromkeys((unnamed.ledger_id, left.ledger_id), Outcome.PLANNED)
    done = delete_orphans(ground.context, EVER, dry_run=False)

    assert outcomes(done) == dict.fromkeys((unnamed.ledger_id, left.ledger_id), Outcome.DELETED)
    assert done.is_complete
    assert list(ground.context.store.ledger_ids()) == [named.ledger_id, lives.ledger_id]
    lives.append(b"1")
    garbage = {
        r["ledger_id"] for r in space_table(ground.context).to_pylist() if r["garbage_bytes"]
    }
    assert garbage == {unnamed.ledger_id, left.ledger_id}


def test_what_was_created_later_stays(ground: Ground) -> None:
    writer = made(ground)
    created_ms = writer.metadata.ctime_ms
    assert created_ms is not None

    assert outcomes(delete_orphans(ground.context, created_ms, dry_run=False)) == {}
    assert outcomes(delete_orphans(ground.context, created_ms + 1)) == {
        writer.ledger_id: Outcome.PLANNED
    }


def test_what_its_log_names_by_the_time_that_it_would_go_stays(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer of the log was frozen between making a ledger and entering it."""
    monkeypatch.setattr(orphan_deletion, "LEDGERS_AT_ONCE", 1)
    create_log(ground.context, "orders", LogOptions(USUAL))
    registers = ground.context.store.registers
    nonce = read_log(registers, "orders").nonce
    first, entered = made(ground, log=b"orders"), made(ground, log=b"orders")

    def enter(place: str, operation: str, path: str) -> None:
        if operation == "delete_ledger":
            change_log(
                registers, "orders", nonce, lambda old: old.with_ledger(LedgerId(entered.ledger_id))
            )

    report = delete_orphans(ground.client(None, enter), EVER, dry_run=False)

    assert outcomes(report) == {
        first.ledger_id: Outcome.DELETED,
        entered.ledger_id: Outcome.NO_LONGER_NEEDED,
    }
    assert list(ground.context.store.ledger_ids()) == [entered.ledger_id]


def test_a_write_that_is_ready_to_be_entered_stays_until_its_log_has_gone_past_it(
    ground: Ground,
) -> None:
    log = create_log(ground.context, "orders", LogOptions(USUAL))
    staged = atomic.stage(ground.context, "orders")
    results = write_local(staged.plan, numbered_payloads(2), ground.context)
    note = note_of("orders", staged.nonce, None, None)
    staging.seal(ground.context, staged.plan, results, {staging.STAGED: note})

    assert outcomes(delete_orphans(ground.context, EVER, dry_run=False)) == {}
    atomic.add_sealed(ground.context, "orders", staged.nonce, staged.ledger_id, None)
    assert outcomes(delete_orphans(ground.context, EVER, dry_run=False)) == {}

    late = atomic.stage(ground.context, "orders")
    results = write_local(late.plan, numbered_payloads(2), ground.context)
    staging.seal(ground.context, late.plan, results, {staging.STAGED: note})
    written = log.write(numbered_payloads(1))
    assert written.ledger_id is not None

    assert outcomes(delete_orphans(ground.context, EVER, dry_run=False)) == {
        late.ledger_id: Outcome.DELETED
    }
    assert log.ledgers() == [staged.ledger_id, written.ledger_id]


def numbered_payloads(count: int) -> pa.Table:
    return pa.table({"payload": [b"%d" % number for number in range(count)]})


def test_whoever_cannot_be_fenced_keeps_a_ledger_and_it_is_said(ground: Ground) -> None:
    left, other = made(ground, close=False), made(ground)
    left._context.store.close()
    for bookie in left.metadata.last_fragment.ensemble[:2]:
        ground.stop(bookie)

    report = delete_orphans(ground.context, EVER, dry_run=False)

    assert outcomes(report) == {
        left.ledger_id: Outcome.LEFT,
        other.ledger_id: Outcome.DELETED,
    }
    assert not report.is_complete
