"""Recovering many ledgers, each with a row that says how it ended."""

from __future__ import annotations

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.metadata import LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.recover_ledgers import RecoverWork, recover_ledgers, recover_one
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import Ground
from spark_bookkeeper.testing.rows import wait_for_every_copy
from tests.worlds import USUAL


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
