"""Locks and votes that cannot be given back at the moment: nobody is kept away for long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_bookkeeper.autorecovery.worker import ReplicationWorker, rereplicate
from spark_bookkeeper.errors import MetadataUnavailableError
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import METADATA, Ground, InlineRuntime
from tests.autorecovery.seen import published
from tests.support.autorecovery import CONFIG, Process, written, written_on
from tests.whole import assert_replicated


class Away:
    """ZooKeeper as one client sees it.

    Args:
        begins: with this operation it is away.
    """

    def __init__(self, begins: str) -> None:
        self._begins = begins
        self.is_away = False
        self.is_over = False

    def __call__(self, place: str, operation: str, path: str) -> None:
        self.is_away = self.is_away or operation == self._begins
        if place == METADATA and self.is_away and not self.is_over:
            raise MetadataUnavailableError("no answer")


def test_who_was_stopped_while_there_was_no_answer_is_no_auditor_and_has_no_locks(
    ground: Ground,
) -> None:
    """Its program goes on, and with it the session."""
    away = Away("unlock")
    writer = written(ground)
    one, two = Process(ground, "one", away), Process(ground, "two")
    one.audit()
    ground.stop(writer.metadata.last_fragment.ensemble[0], destroy=True)
    one.audit()
    one.daemon.work_once()
    one.daemon.stop()
    tree = ground.context.store.underreplication
    assert away.is_away
    assert tree.auditor() == "spark-bookkeeper@one"
    assert list(tree.locks()) == [writer.ledger_id]

    away.is_over = True
    one.context.store.underreplication.is_enabled()  # whatever it asks next

    two.audit()
    two.work()
    assert tree.auditor() == "spark-bookkeeper@two"
    assert_replicated(ground, writer)


def test_a_round_that_ended_without_an_answer_keeps_no_lock(ground: Ground) -> None:
    """Asked for by hand, in a program that goes on."""
    away = Away("remove_task")
    writer, _, _ = published(ground, destroy=True)
    context = ground.client(InlineRuntime(), away)
    worker = ReplicationWorker(context, LocalRunner(context), CONFIG, "by hand")
    with pytest.raises(MetadataUnavailableError):
        rereplicate(context, worker)
    assert list(ground.context.store.underreplication.locks()) == [writer.ledger_id]

    away.is_over = True
    context.store.underreplication.is_enabled()  # whatever it asks next

    Process(ground, "two").work()
    assert_replicated(ground, writer)


def test_locks_whose_release_failed_are_released_later(ground: Ground) -> None:
    lost = ground.bookie_ids[0]
    writers = written_on(ground, lost, 3)
    failed: list[str] = []

    def fail_once(place: str, operation: str, path: str) -> None:
        if operation == "unlock" and not failed:
            failed.append(path)
            raise MetadataUnavailableError("no answer")

    process = Process(ground, "one", fail_once, config=replace(CONFIG, ledgers_at_once=4))
    ground.stop(lost, destroy=True)
    process.audit()

    rows = process.work()

    assert {row.ledger_id for row in rows if row.action == "task"} == {
        writer.ledger_id for writer in writers if lost in writer.metadata.bookies()
    }
    tree = ground.context.store.underreplication
    assert int(failed[0]) in tree.locks()
    process.work()
    assert not tree.locks()
    assert_replicated(ground, *writers)


def test_a_lock_whose_answer_was_lost_keeps_nobody_away(ground: Ground) -> None:
    """The session lives on, and with it the lock of which nobody knows."""
    writer, _, process = published(ground, destroy=True)
    other = Process(ground, "two")

    def lose(place: str, operation: str, path: str) -> None:
        if (place, operation) == (METADATA, "lock"):
            ground.after.remove(lose)
            raise MetadataUnavailableError("no answer")

    ground.after.append(lose)
    with pytest.raises(MetadataUnavailableError):
        process.work()
    other.work()

    assert_replicated(ground, writer)
