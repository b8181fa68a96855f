"""Recovering many ledgers, each with a row that says how it ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_bookkeeper.agent.decommission import decommission_bookie
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.protocol.accepted_loss import AcceptedLoss
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.check_ledgers import check_ledgers
from spark_bookkeeper.replication.recover_ledgers import RecoverWork, recover_ledgers, recover_one
from spark_bookkeeper.replication.refill_bookie import Refill, refill_bookie
from spark_bookkeeper.replication.report import RecoveryReport
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import Ground, InlineRuntime
from tests.client.test_recovery import half_written
from tests.support.rows import wait_for_every_copy
from tests.worlds import USUAL, payloads, written


def test_every_ledger_that_is_not_closed_is_recovered(ground: Ground) -> None:
    for i in range(6):
        writer = lifecycle.create_ledger(ground.context, USUAL)
        writer.append(b"a")
        if i % 3 == 0:
            writer.close()
    client = ground.client()
    said: list[tuple[str, int, int]] = []

    report = recover_ledgers(
        client,
        LocalRunner(client),
        None,
        progress=lambda phase, done, total, _: said.append((phase, done, total)),
    )

    assert report.is_complete
    assert [(r.ledger_id, r.status, r.entries, r.bytes) for r in report.rows] == [
        (i, "closed", 1, 1) for i in (1, 2, 4, 5)
    ]
    assert ("reading ledger metadata", 6, 6) in said
    assert ("recovering ledgers", 4, 4) in said


def test_each_ledger_asked_for_has_its_row(ground: Ground) -> None:
    closed = lifecycle.create_ledger(ground.context, USUAL)
    closed.append(b"a")
    closed.close()
    opened = lifecycle.create_ledger(ground.context, USUAL)
    client = ground.client()
    wanted = [closed.ledger_id, opened.ledger_id, LedgerId(99)]

    plan = recover_ledgers(client, LocalRunner(client), wanted, dry_run=True)
    state = client.store.read_ledger(opened.ledger_id).value.state
    report = recover_ledgers(client, LocalRunner(client), wanted)

    assert state is LedgerState.OPEN, "a dry run changes nothing"
    assert [r.status for r in plan.rows] == ["no longer needed", "planned", "gone"]
    assert [r.status for r in report.rows] == ["no longer needed", "closed", "gone"]


def test_a_ledger_that_must_wait_is_left_with_its_blockers_and_holds_up_nobody(
    ground: Ground,
) -> None:
    blocked = lifecycle.create_ledger(ground.context, USUAL)
    blocked.append(b"a")
    wait_for_every_copy(blocked)  # else the writer may still replace a bookie that stops
    a, b, _ = blocked.metadata.last_fragment.ensemble
    ground.stop(a)
    ground.stop(b)
    ground.add_bookie()
    ground.add_bookie()
    free = lifecycle.create_ledger(ground.context, Quorum(1, 1, 1))
    client = ground.client()

    report = recover_ledgers(client, LocalRunner(client), None)

    first, second = report.rows
    assert (first.status, second.status) == ("left", "closed")
    assert second.ledger_id == free.ledger_id
    for text in (a, b, "entry 1" if "entry 1" in str(first.reason) else "entry 0", "must wait"):
        assert text in str(first.reason)
    assert not report.is_complete

    ground.start(a)
    ground.start(b)
    assert recover_ledgers(client, LocalRunner(client), None).is_complete


def test_what_changed_since_it_was_planned_is_noticed(ground: Ground) -> None:
    left, gone = (lifecycle.create_ledger(ground.context, USUAL) for _ in range(2))
    left.append(b"a")
    client = ground.client()
    planned = [
        RecoverWork(writer.ledger_id, client.store.read_ledger(writer.ledger_id))
        for writer in (left, gone)
    ]
    left.append(b"b")
    left.close()
    client.store.delete_ledger(gone.ledger_id, None)

    rows = [row for work in planned for row in recover_one(client, work)]

    assert [(r.status, r.last_entry_id) for r in rows] == [("closed", 1), ("gone", None)]
    assert client.store.read_ledger(left.ledger_id).value.last_entry_id == 1


def bereft(ground: Ground, count: int = 3) -> tuple[LedgerWriter, list[BookieId]]:
    """An open ledger of whose three bookies two have lost their disks, and have new ones."""
    writer = written(ground, count, close=False)
    lost = list(writer.metadata.last_fragment.ensemble[:2])
    for bookie in lost:
        ground.format(bookie)
    return writer, lost


def accepted(ground: Ground, writer: LedgerWriter, *, dry_run: bool = False) -> RecoveryReport:
    client = ground.client()
    return recover_ledgers(
        client,
        LocalRunner(client),
        [writer.ledger_id],
        dry_run=dry_run,
        accepting={writer.ledger_id: AcceptedLoss("ann@host", 7, (), ((EntryId(0), None),))},
    )


def test_an_accepted_loss_has_a_row_for_what_may_be_missing(ground: Ground) -> None:
    writer, _ = bereft(ground)
    third = writer.metadata.last_fragment.ensemble[2]

    before = ground.client().store.read_ledger(writer.ledger_id), ground.files(third)
    plan = accepted(ground, writer, dry_run=True)
    after = ground.client().store.read_ledger(writer.ledger_id), ground.files(third)
    report = accepted(ground, writer)
    again = accepted(ground, writer)

    shown = [
        [(r.status, r.first_entry_id, r.last_entry_id) for r in x.rows] for x in (plan, report)
    ]
    assert shown == [
        [("planned", 0, 2), ("given up", 3, None)],
        [("closed", 0, 2), ("given up", 3, None)],
    ]
    assert after == before, "a dry run changes nothing"
    assert report.is_complete
    assert [r.status for r in again.rows] == ["no longer needed"]


def test_a_dry_run_says_why_a_loss_would_not_be_accepted(ground: Ground) -> None:
    writer = written(ground, 3, close=False)
    for bookie in writer.metadata.last_fragment.ensemble[:2]:
        ground.stop(bookie)

    (row,) = accepted(ground, writer, dry_run=True).rows

    assert row.status == "left"
    assert "--gone" in str(row.reason)


@pytest.mark.parametrize("bookies", [3, 6])
def test_after_an_accepted_loss_bookies_are_refilled_and_drained_as_ever(
    tmp_path: Path, bookies: int
) -> None:
    """Of three bookies, none could take copies in place of those that were lost."""
    ground = Ground(tmp_path, bookies=bookies)
    writer, lost = bereft(ground)
    client = ground.client(InlineRuntime())
    runner = LocalRunner(client)
    assert accepted(ground, writer).is_complete

    for bookie in lost:
        assert refill_bookie(client, runner, Refill(bookie)).is_complete
    assert check_ledgers(client, runner, None, 100).is_complete
    ground.add_bookie()
    third = writer.metadata.last_fragment.ensemble[2]
    ground.stop(third)
    ended = decommission_bookie(client, runner, third)

    assert ended.is_complete, ended.blocked_by
    assert payloads(ground, writer) == [b"0", b"1", b"2"]


def test_a_hole_that_was_given_up_keeps_no_bookie_in_limbo(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=5)
    writer = half_written(ground, Quorum(5, 3, 2), 0, [2, 3])
    lost = list(writer.metadata.last_fragment.ensemble[:2])
    for bookie in lost:
        ground.format(bookie)
    client = ground.client(InlineRuntime())
    runner = LocalRunner(client)
    assert [row.last_entry_id for row in accepted(ground, writer).rows] == [1, 0]

    for bookie in lost:
        report = refill_bookie(client, runner, Refill(bookie))
        assert report.is_complete, report.unfinished

    assert check_ledgers(client, runner, None, 100).is_complete
