"""The task of a ledger that is being written: how long its writer has, and what ends that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_bookkeeper.autorecovery.checks import publish_finding
from spark_bookkeeper.autorecovery.notes import Notes
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.metadata import LedgerState
from spark_bookkeeper.replication.report import Outcome
from spark_bookkeeper.testing.autorecovery import CONFIG, Process, written
from spark_bookkeeper.testing.ground import METADATA, Ground
from spark_bookkeeper.testing.rows import wait_for_every_copy
from tests.autorecovery.seen import audited, published, row_of, task_ids, victim_of
from tests.whole import assert_replicated


def test_the_writer_of_an_open_ledger_has_time_before_it_is_fenced(ground: Ground) -> None:
    writer, _, process = published(ground, close=False)

    process.work()
    row = row_of(ground, writer.ledger_id)
    assert "is open" in str(row["last_error"])
    assert process.work() == [], "it is left alone until the grace period is over"
    process.runtime.sleep(CONFIG.open_ledger_grace_ms / 1000 - 10)
    process.work()
    store = ground.context.store
    assert store.read_ledger(LedgerId(writer.ledger_id)).value.state is LedgerState.OPEN
    assert task_ids(ground) == [writer.ledger_id]

    process.runtime.sleep(11)
    process.work()

    assert store.read_ledger(LedgerId(writer.ledger_id)).value.state is LedgerState.CLOSED
    assert_replicated(ground, writer)


def test_a_grace_period_longer_than_any_back_off_is_waited_for(ground: Ground) -> None:
    writer = written(ground, close=False)
    ground.stop(victim_of(writer))
    config = replace(CONFIG, open_ledger_grace_ms=60_000, retry_most_ms=1_000)
    process = audited(ground, config=config)
    process.work()

    assert process.work() == [], "it is left alone until the grace period is over"
    process.runtime.sleep(61)
    process.work()
    assert_replicated(ground, writer)


@pytest.mark.parametrize("lives", [True, False])
def test_a_writer_that_has_nowhere_to_go_keeps_its_ledger(ground: Ground, lives: bool) -> None:
    """An agent is gone, its files answer, and there is no other bookie: no copy could be made."""
    writer = written(ground, close=False)
    (spare,) = set(ground.bookie_ids) - writer.metadata.bookies()
    process = Process(ground)
    ground.stop(spare)
    ground.end_agent(victim_of(writer))
    if not lives:
        ground.cluster.writers.clear()
    process.audit()
    for _ in range(3):
        process.work()
        process.runtime.sleep(CONFIG.open_ledger_grace_ms / 1000 + CONFIG.retry_most_ms / 1000)

    state = ground.context.store.read_ledger(LedgerId(writer.ledger_id)).value.state
    assert state is (LedgerState.OPEN if lives else LedgerState.CLOSED)
    assert row_of(ground, writer.ledger_id)["blocker"] == "a writable bookie outside its ensemble"
    if lives:
        assert writer.append(b"more") > 0
        writer.close()
    ground.start(spare)
    process.work()
    assert task_ids(ground) == []


def test_a_writer_that_has_nowhere_to_go_is_waited_for_beside_every_bookie(ground: Ground) -> None:
    """No bookie has refused anything, and no worker tries it before it is time for all."""
    writer = written(ground, close=False)
    (spare,) = set(ground.bookie_ids) - writer.metadata.bookies()
    lost = victim_of(writer)
    workers = [Process(ground, b, local=b) for b in sorted(writer.metadata.bookies() - {lost})]
    ground.stop(spare)
    ground.end_agent(lost)
    for process in workers:
        process.audit()

    for process in workers:
        process.work()

    note = Notes(ground.context.store.registers).read(LedgerId(writer.ledger_id))
    assert (note.attempts, note.refusals) == (1, ())
    row = row_of(ground, writer.ledger_id)
    assert row["blocker"] == "a writable bookie outside its ensemble"
    assert row["next_try_at"] is not None
    writer.close()


def test_a_writer_that_replaces_the_bookie_itself_is_not_fenced(ground: Ground) -> None:
    writer, lost, process = published(ground, close=False)
    process.work()

    ground.until(
        lambda: writer.append(b"x") >= 0 and lost not in writer.metadata.last_fragment.ensemble
    )
    process.runtime.sleep(CONFIG.open_ledger_grace_ms / 1000 + 1)
    process.work()

    assert task_ids(ground) == []
    assert writer.append(b"y") > 0
    writer._adds.drain()
    writer.close()
    assert_replicated(ground, writer)


def test_a_fragment_that_is_new_has_a_grace_period_of_its_own(ground: Ground) -> None:
    note = Notes(ground.context.store.registers)
    writer, _, process = published(ground, close=False)
    process.work()
    first = note.read(LedgerId(writer.ledger_id))
    note.change(LedgerId(writer.ledger_id), lambda n: replace(n, open_fragment=None))
    process.runtime.sleep(CONFIG.open_ledger_grace_ms / 1000 + 1)

    process.work()

    second = note.read(LedgerId(writer.ledger_id))
    assert second.open_since_ms > first.open_since_ms + CONFIG.open_ledger_grace_ms
    assert not ground.context.store.read_ledger(LedgerId(writer.ledger_id)).value.is_closed


def test_a_writer_that_replaces_the_bookie_while_others_are_copied_is_not_fenced(
    ground: Ground,
) -> None:
    """The grace period is over, and the worker has read the ledger for the last time but one."""
    writer = written(ground, close=False)
    lost = victim_of(writer)
    seen: list[str] = []

    def replace_it(place: str, operation: str, path: str) -> None:
        if operation == "read_register" and seen[-1:] == ["read_ledger"] and "lock" in seen:
            ground.until(
                lambda: (
                    writer.append(b"x") >= 0 and lost not in writer.metadata.last_fragment.ensemble
                )
            )
        if place == METADATA:
            seen.append(operation)

    process = Process(ground)
    ground.stop(lost)
    process.audit()
    process.work()
    late = Process(ground, "late", replace_it)
    late.runtime.sleep(process.runtime.now() + CONFIG.open_ledger_grace_ms / 1000 + 1)
    late.work()

    assert lost not in writer.metadata.last_fragment.ensemble
    assert writer.append(b"y") > 0, "it is not fenced"
    late.runtime.sleep(CONFIG.retry_most_ms / 1000 + 1)
    late.work()
    writer._adds.drain()
    writer.close()
    assert_replicated(ground, writer)


def test_a_bookie_that_goes_again_gives_the_writer_its_time_again(ground: Ground) -> None:
    """The first time it came back, and something else kept the task."""
    writer = written(ground, close=False)
    store = ground.context.store
    first, second = writer.metadata.last_fragment.ensemble[:2]
    process = Process(ground)
    ground.stop(first)
    process.audit()
    process.work()
    ground.start(first)
    for path in ground.files(second, "slots"):
        path.unlink()
    store.underreplication.mark(LedgerId(writer.ledger_id), [second], 1)
    process.work()
    assert task_ids(ground) == [writer.ledger_id], "an open fragment is not repaired in place"
    process.runtime.sleep(CONFIG.open_ledger_grace_ms / 1000 + 1)
    process.work()

    ground.stop(first)
    process.runtime.sleep(CONFIG.retry_most_ms / 1000 + 1)
    process.work()

    assert store.read_ledger(LedgerId(writer.ledger_id)).value.state is LedgerState.OPEN
    process.runtime.sleep(CONFIG.open_ledger_grace_ms / 1000 + 1)
    process.work()
    assert store.read_ledger(LedgerId(writer.ledger_id)).value.is_closed


def damaged_while_open(ground: Ground) -> tuple[LedgerWriter, Process]:
    """An auditor has found a slot that cannot be read, in a ledger that is being written."""
    writer = written(ground, close=False)
    bookie = victim_of(writer)
    slot = ground.files(bookie, "slots")[0]
    slot.write_bytes(b"")
    process = audited(ground)
    assert task_ids(ground) == [writer.ledger_id]
    return writer, process


def test_a_damaged_replica_of_an_open_ledger_waits_for_its_writer(ground: Ground) -> None:
    """Who writes it does not know of the damage, and would lose its ledger."""
    writer, process = damaged_while_open(ground)
    for _ in range(3):
        process.work()
        process.runtime.sleep(CONFIG.retry_most_ms / 1000 + 1)

    assert "its writer" in str(row_of(ground, writer.ledger_id)["blocker"]).replace("the", "its")
    writer.append(b"as if nothing had happened")
    writer.close()
    process.work()
    assert_replicated(ground, writer)


def test_a_damaged_replica_of_a_ledger_that_nobody_writes_any_more_is_made_again(
    ground: Ground,
) -> None:
    writer, process = damaged_while_open(ground)
    ground.context.store.close()  # the session of its writer
    ground.context = ground.client()
    process.work()
    ledger_id = LedgerId(writer.ledger_id)
    found = ground.context.store.read_ledger(ledger_id).value
    assert found.state is LedgerState.OPEN, "not before the grace period is over"
    process.runtime.sleep(CONFIG.open_ledger_grace_ms / 1000 + 1)

    process.work()

    assert ground.context.store.read_ledger(ledger_id).value.is_closed
    assert_replicated(ground, writer)


def test_what_is_made_whole_while_a_writer_has_its_time_is_reported(ground: Ground) -> None:
    ground.add_bookie()
    ground.add_bookie()
    writer = written(ground, close=False)
    left, damaged, *_ = writer.metadata.last_fragment.ensemble
    ground.stop(left)
    writer.append(b"elsewhere")
    wait_for_every_copy(writer)
    assert len(writer.metadata.fragments) == 2
    ground.start(left)
    ground.files(damaged, "slots")[0].unlink()
    publish_finding(ground.context, LedgerId(writer.ledger_id), [damaged], 100)
    ground.stop(next(b for b in writer.metadata.last_fragment.ensemble if b != damaged))

    rows = audited(ground).work()

    assert (Outcome.REPLICATED, damaged) in {(row.status, row.target) for row in rows}
    assert rows[-1].action == "task"
    assert "writer" in (rows[-1].reason or "")
    writer.close()
