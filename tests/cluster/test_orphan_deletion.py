"""Ledgers that nobody owns are deleted when a person says so, and no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from spark_bookkeeper.client import lifecycle, staging
from spark_bookkeeper.client.write.bulk import write_local
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.cluster.orphan_deletion import delete_orphans
from spark_bookkeeper.cluster.space import space_table
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.logs import atomic
from spark_bookkeeper.logs.begun_writes import note_of
from spark_bookkeeper.logs.logs import create_log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.metadata import restores
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.metadata import ARCHIVE
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


def test_one_that_is_changed_before_it_goes_stays(ground: Ground) -> None:
    """As when it is released to a table in this very moment."""
    first, released = made(ground), made(ground)
    store = ground.context.store

    def release(place: str, operation: str, path: str) -> None:
        if operation == "delete_ledger" and path == str(moment):
            found = store.read_ledger(LedgerId(released.ledger_id))
            custom = {**found.value.custom_metadata, ARCHIVE: b"a table"}
            changed = replace(found.value, custom_metadata=custom)
            store.write_ledger(LedgerId(released.ledger_id), changed, found)

    moment = first.ledger_id  # before it is read
    report = delete_orphans(ground.client(None, release), EVER, dry_run=False)
    assert outcomes(report) == {
        first.ledger_id: Outcome.DELETED,
        released.ledger_id: Outcome.NO_LONGER_NEEDED,
    }

    released = made(ground)
    moment = released.ledger_id  # between its being read and its being deleted
    report = delete_orphans(ground.client(None, release), EVER, dry_run=False)
    assert outcomes(report) == {released.ledger_id: Outcome.NO_LONGER_NEEDED}


def test_only_those_that_were_shown_go(ground: Ground) -> None:
    shown, other = made(ground), made(ground)

    report = delete_orphans(ground.context, EVER, ledger_ids=[shown.ledger_id], dry_run=False)

    assert outcomes(report) == {shown.ledger_id: Outcome.DELETED}
    assert list(ground.context.store.ledger_ids()) == [other.ledger_id]


def test_while_a_restore_is_under_way_nothing_goes(ground: Ground) -> None:
    """Its ledgers are there before the logs that own them."""
    made(ground)
    store, runtime = ground.context.store, ground.context.runtime
    with (
        restores.restoring(store.ballots, "a job", runtime),
        pytest.raises(InvalidArgumentError, match="a restore is under way"),
    ):
        delete_orphans(ground.context, EVER, dry_run=False)
    restores.begin(store.registers, LedgerId(7), b"nonce")
    with pytest.raises(InvalidArgumentError, match="begun and not there: 1 ledger"):
        delete_orphans(ground.context, EVER, dry_run=False)
    restores.end(store.registers, LedgerId(7))

    assert delete_orphans(ground.context, EVER, dry_run=False).is_complete


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
