"""Tasks that nobody can do now: how seldom they are tried, what wakes them, and what is said."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_bookkeeper.autorecovery.checks import publish_finding
from spark_bookkeeper.autorecovery.notes import Notes
from spark_bookkeeper.autorecovery.table import underreplicated_table, why_waiting
from spark_bookkeeper.autorecovery.worker import rereplicate
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.metadata.update import delete_ledger
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.task_notes import TaskNote
from spark_bookkeeper.replication.refill_bookie import Refill, refill_bookie
from spark_bookkeeper.replication.report import Row
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.autorecovery import CONFIG, Process, written
from spark_bookkeeper.testing.ground import Ground
from tests.whole import assert_replicated

DAY = 86_400
SINGLE = Quorum(1, 1, 1)
ON_ALL = Quorum(4, 3, 2)


def lost_for_now(ground: Ground, quorum: Quorum) -> tuple[LedgerWriter, BookieId, Process]:
    """A ledger that nobody can repair, and who has tried."""
    writer = written(ground, quorum)
    lost = writer.metadata.last_fragment.ensemble[0]
    process = Process(ground)
    ground.stop(lost)
    process.audit()
    process.work()
    assert note_of(ground, writer).attempts == 1
    return writer, lost, process


def note_of(ground: Ground, writer: LedgerWriter) -> TaskNote:
    return Notes(ground.context.store.registers).read(LedgerId(writer.ledger_id))


def row_of(ground: Ground) -> dict[str, object]:
    (row,) = underreplicated_table(ground.context).to_pylist()
    return dict(row)


@pytest.mark.parametrize("quorum", [SINGLE, ON_ALL])
def test_what_only_an_event_can_help_is_tried_once_a_day(ground: Ground, quorum: Quorum) -> None:
    writer, _, process = lost_for_now(ground, quorum)
    rounds = 0

    while process.runtime.slept < 7 * DAY:
        process.work()
        now_ms = process.runtime.wall_ms()
        due_ms = process.worker.next_due_at_ms or now_ms  # what was taken is looked at once more
        process.runtime.sleep(max(0, due_ms + 1 - now_ms) / 1000)
        rounds += 1

    assert rounds >= 7 * DAY // 300, "it goes on looking"
    assert note_of(ground, writer).attempts == 8
    assert row_of(ground)["attempts"] == 8


def came_back(ground: Ground, writer: LedgerWriter, lost: BookieId) -> None:
    ground.start(lost)


def another_came(ground: Ground, writer: LedgerWriter, lost: BookieId) -> None:
    ground.add_bookie()


def became_writable(ground: Ground, writer: LedgerWriter, lost: BookieId) -> None:
    ground.start(READONLY)


def another_came_and_one_is_readonly(ground: Ground, writer: LedgerWriter, lost: BookieId) -> None:
    """As many take data as before."""
    ground.start(writer.metadata.last_fragment.ensemble[1], is_readonly=True)
    ground.add_bookie()


def was_filled_again(ground: Ground, writer: LedgerWriter, lost: BookieId) -> None:
    ground.format(lost)
    assert refill_bookie(ground.context, LocalRunner(ground.context), Refill(lost)).is_complete


def was_deleted(ground: Ground, writer: LedgerWriter, lost: BookieId) -> None:
    delete_ledger(ground.context.store, LedgerId(writer.ledger_id))


READONLY = BookieId("127.0.0.1:3185")
"""The fifth bookie of a ``Ground``."""


@pytest.mark.parametrize(
    ("quorum", "happens"),
    [
        (SINGLE, came_back),
        (ON_ALL, came_back),
        (ON_ALL, another_came),
        (ON_ALL, became_writable),
        (ON_ALL, another_came_and_one_is_readonly),
        (ON_ALL, was_filled_again),
        (SINGLE, was_deleted),
    ],
)
def test_an_event_that_helps_ends_the_wait(
    ground: Ground,
    quorum: Quorum,
    happens: Callable[[Ground, LedgerWriter, BookieId], None],
) -> None:
    if happens is became_writable:
        writer = written(ground, quorum)
        assert ground.add_bookie() == READONLY
        ground.start(READONLY, is_readonly=True)
        lost = writer.metadata.last_fragment.ensemble[0]
        process = Process(ground)
        ground.stop(lost)
        process.audit()
        process.work()
    else:
        writer, lost, process = lost_for_now(ground, quorum)
    other = Process(ground, "other")  # which has read the note of the first
    for each in (process, other):
        each.runtime.sleep(3_600)
        assert each.work() == [], "the clock does not help"

    happens(ground, writer, lost)
    for each in (process, other):
        each.runtime.sleep(CONFIG.retry_most_ms / 1000 + 1)
    other.work()

    assert list(ground.context.store.underreplication.ledger_ids()) == []
    if happens is not was_deleted:
        assert_replicated(ground, writer)


def test_what_is_published_again_is_tried_again(ground: Ground) -> None:
    """Nobody is told when a bookie is added to a task."""
    writer, _, process = lost_for_now(ground, ON_ALL)
    other = writer.metadata.last_fragment.ensemble[1]
    for path in ground.files(other, "slots"):
        path.unlink()
    process.runtime.sleep(3_600)
    assert process.work() == []

    ground.context.store.underreplication.mark(LedgerId(writer.ledger_id), [other], 1)
    process.runtime.sleep(CONFIG.retry_most_ms / 1000 + 1)
    rows = process.work()

    assert ("copy", "replicated", other) in {(r.action, r.status, r.target) for r in rows}
    assert note_of(ground, writer).attempts == 2


@pytest.mark.parametrize("has_taker", [False, True])
def test_damage_is_repaired_beside_any_bookie_while_another_is_away(
    ground: Ground, has_taker: bool
) -> None:
    """Nobody can take the place of that one; or one bookie can, and no worker runs beside it."""
    writer = written(ground, ON_ALL)
    lost, damaged = writer.metadata.last_fragment.ensemble[:2]
    if has_taker:
        ground.add_bookie()
    members = sorted(writer.metadata.bookies() - {lost})
    processes = [Process(ground, bookie, local=bookie) for bookie in members]
    ground.stop(lost)
    processes[0].audit()
    for path in ground.files(damaged, "slots"):
        path.unlink()
    publish_finding(ground.context, LedgerId(writer.ledger_id), [damaged], 100)
    rows: list[Row] = []
    rounds = 0
    for process in processes:
        process.runtime.sleep(CONFIG.retry_most_ms / 1000 + 1)
        while found := process.work():
            rows += found
            rounds += 1
            assert rounds <= len(processes), "it is not taken again at once"

    repaired = [
        r for r in rows if (r.action, r.status, r.target) == ("copy", "replicated", damaged)
    ]
    assert len(repaired) == 1
    assert list(ground.context.store.underreplication.ledger_ids()) == [writer.ledger_id]
    for free in set(ground.bookie_ids) - writer.metadata.bookies():
        Process(ground, free, local=free).work()
        assert_replicated(ground, writer)


def test_what_waits_for_an_event_is_tried_when_somebody_asks_for_it(ground: Ground) -> None:
    writer, lost, process = lost_for_now(ground, SINGLE)
    asked = Process(ground, "asked")
    asked.runtime.sleep(60)

    for attempts in (2, 3):
        report = rereplicate(asked.context, asked.worker)

        assert note_of(ground, writer).attempts == attempts, "once"
        assert not report.is_complete
        asked.runtime.sleep(60)
    ground._down.discard(lost)  # its partition answers again, and nothing registers it
    assert process.work() == []
    rereplicate(asked.context, asked.worker)
    assert_replicated(ground, writer)


def test_where_something_else_is_the_matter_too_the_clock_goes_on(ground: Ground) -> None:
    """A bookie that is there and does not answer may answer later, and nobody is told."""
    writer = written(ground, ON_ALL)
    lost, silent = writer.metadata.last_fragment.ensemble[:2]
    tree = ground.context.store.underreplication
    tree.mark(LedgerId(writer.ledger_id), [lost, silent], 1)
    ground.stop(lost)
    ground._down.add(silent)
    process = Process(ground)

    waits = []
    for _ in range(8):
        process.work()
        wait_ms = note_of(ground, writer).next_try_at_ms - process.runtime.wall_ms()
        waits.append(round(wait_ms / 1000))
        process.runtime.sleep(waits[-1] + 1)

    assert waits == [10, 20, 40, 80, 160, 300, 300, 300]


def test_a_task_says_that_nobody_does_anything_and_what_to_do(ground: Ground) -> None:
    writer = written(ground)
    process = Process(ground)
    ground.stop(writer.metadata.last_fragment.ensemble[0])
    tree = ground.context.store.underreplication
    process.audit()
    assert row_of(ground)["blocker"] is None
    assert why_waiting(row_of(ground), 0) == "waits for a replication worker"

    tree.disable()
    said = "autorecovery is disabled: `spark-bookkeeper autorecovery enable`"
    assert row_of(ground)["blocker"] == said
    assert said in why_waiting(row_of(ground), 0)
    tree.enable()
    process.die()
    said = "no replication worker runs: `spark-bookkeeper autorecovery start`"
    assert row_of(ground)["blocker"] == said
    tree.stand("127.0.0.1:3181", lambda: None)  # BookKeeper's, which cannot read these bookies
    assert row_of(ground)["blocker"] == said
    assert tree.lock(LedgerId(writer.ledger_id), "by hand")
    assert row_of(ground)["blocker"] is None


def test_a_task_says_who_could_take_it_where_no_worker_runs(ground: Ground) -> None:
    writer = written(ground)
    lost, second, third = writer.metadata.last_fragment.ensemble
    (free,) = set(ground.bookie_ids) - writer.metadata.bookies()
    workers = [Process(ground, b, local=b) for b in (second, third)]
    ground.stop(lost, destroy=True)
    for worker in workers:
        worker.audit()
        assert worker.work() == []

    blocker = str(row_of(ground)["blocker"])
    assert f"only {free} can take the fragment from entry 0" in blocker
    assert "`spark-bookkeeper autorecovery rereplicate`" in blocker
    Process(ground, free, local=free).audit()
    assert row_of(ground)["blocker"] is None
    workers[0].work()
    Process(ground, "alone").work()
    assert_replicated(ground, writer)
