"""Many tasks: what is read to take them in order, however many there are."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from spark_bookkeeper.autorecovery import tasks as module
from spark_bookkeeper.autorecovery.backlog import Backlog, FreeTask, LeftAlone
from spark_bookkeeper.autorecovery.notes import Notes
from spark_bookkeeper.autorecovery.tasks import Tasks
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import Fragment
from spark_bookkeeper.protocol.task_notes import Marked
from spark_bookkeeper.testing.autorecovery import CONFIG, USUAL, Process, written, written_on
from spark_bookkeeper.testing.ground import Ground, InlineRuntime

READS = ("read_task", "read_ledger", "read_register")


@pytest.fixture
def worker(ground: Ground) -> ClientContext:
    """The client of a worker."""
    ground.add_bookie()
    return ground.client(InlineRuntime())


@pytest.fixture(autouse=True)
def _small_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TASKS_PLANNED", 100)


def publish(ground: Ground, ensembles: Sequence[Sequence[BookieId]]) -> None:
    """A task for each, of a ledger of its own on these bookies; the first of them is missing."""
    metadata = written(ground, USUAL, 0).metadata
    tree = ground.context.store.underreplication
    for number, ensemble in enumerate(ensembles, 1_000 + len(ground.cluster.ledgers)):
        fragment = Fragment(EntryId(0), tuple(ensemble))
        ledger = replace(metadata, fragments=(fragment,))
        ground.cluster.recreate_by_another_tool(LedgerId(number), ledger)
        tree.mark(LedgerId(number), [ensemble[0]], 1_000)


def rounds(tasks: Tasks, ground: Ground) -> Iterator[list[FreeTask]]:
    """Every task that is taken is done at once."""
    while found := tasks.next():
        yield found
        end(ground, *(each.ledger_id for each in found))


def end(ground: Ground, *ledger_ids: LedgerId) -> None:
    """They are fully replicated."""
    tree = ground.context.store.underreplication
    for ledger_id in ledger_ids:
        task = tree.read(ledger_id)
        if task is not None:
            tree.remove(task)


def tasks_of(context: ClientContext, local: BookieId | None = None) -> Tasks:
    return Tasks(context, local, CONFIG.retry_most_ms)


def test_what_is_read_for_a_backlog_grows_with_it_and_not_with_its_square(
    ground: Ground, worker: ClientContext
) -> None:
    lost, *others = ground.bookie_ids
    publish(ground, [(lost, *others[:2])] * 3_000)
    ground.stop(lost)
    tasks = tasks_of(worker)
    published = list(ground.context.store.underreplication.ledger_ids())

    ground.forget()
    taken = [each.ledger_id for found in rounds(tasks, ground) for each in found]

    assert sorted(taken) == published
    count = ground.count()
    done = count["remove_task"]
    assert sum(count[each] for each in READS) - done <= 4 * 3_000, "each twice, and once for us"


def test_when_a_further_bookie_goes_the_most_endangered_come_first_again(
    ground: Ground, worker: ClientContext
) -> None:
    lost, second, *others = ground.bookie_ids
    publish(ground, [(lost, second, others[0]), (lost, *others[:2])] * 300)
    ground.stop(lost)
    tasks = tasks_of(worker)
    coming = rounds(tasks, ground)
    assert {each.live_copies for each in next(coming)} == {2}
    was_outdated = tasks.is_outdated

    ground.stop(second)
    assert (was_outdated, tasks.is_outdated) == (False, True)
    order = [each.live_copies for found in coming for each in found]

    assert len(order) == 500
    assert order == sorted(order)
    assert 200 <= order.count(1) <= 300


def test_what_is_published_meanwhile_is_taken_in_its_turn(
    ground: Ground, worker: ClientContext
) -> None:
    lost, second, *others = ground.bookie_ids
    publish(ground, [(lost, *others[:2])] * 2_000)
    ground.stop(lost)
    ground.stop(second)
    tasks = tasks_of(worker)
    coming = rounds(tasks, ground)
    next(coming)

    publish(ground, [(lost, second, others[0])] * 5)
    seen = [each.live_copies for _ in range(4) for each in next(coming)]
    assert 1 in seen, "when so many of those that are known are done"
    publish(ground, [(lost, second, others[0])] * 5)
    worker.runtime.sleep(module._LIST_SECONDS)
    assert [each.live_copies for each in next(coming)][:6] == [1, 1, 1, 1, 1, 2], "or in time"

    assert {each.live_copies for found in coming for each in found} == {2}
    assert list(ground.context.store.underreplication.ledger_ids()) == []


def test_what_others_did_tried_or_locked_meanwhile_is_passed_over(
    ground: Ground, worker: ClientContext
) -> None:
    lost, *others = ground.bookie_ids
    publish(ground, [(lost, *others[:2])] * 300)
    ground.stop(lost)
    tasks = tasks_of(worker)
    tree, notes = ground.context.store.underreplication, Notes(ground.context.store.registers)
    coming = rounds(tasks, ground)
    taken = {each.ledger_id for each in next(coming)}
    done, tried, locked = [i for i in tree.ledger_ids() if i not in taken][:3]
    end(ground, done)
    notes.change(
        tried,
        lambda note: note.failed(
            "e",
            None,
            worker.runtime.wall_ms(),
            Marked((lost,), 1_000),
            waits_for=(),
            writable=len(others),
            first_ms=10_000,
            most_ms=10_000,
        ),
    )
    tree.lock(locked, "another")

    found = {each.ledger_id for some in coming for each in some}

    assert len(found) == 300 - 100 - 3
    assert not found & {done, tried, locked}
    tree.unlock(locked)
    worker.runtime.sleep(10)
    assert {each.ledger_id for each in tasks.next()} == {tried, locked}


def test_when_what_they_wait_for_comes_all_are_taken_round_by_round(
    ground: Ground, worker: ClientContext
) -> None:
    lost, *others = ground.bookie_ids
    publish(ground, [(lost, *others[:2])] * 500)
    ground.stop(lost)
    for bookie in others[2:]:
        ground.stop(bookie)
    process = Process(ground)
    while process.work():
        pass
    tree, notes = ground.context.store.underreplication, Notes(ground.context.store.registers)
    assert all(notes.read(ledger_id).waits_for_event for ledger_id in tree.ledger_ids())
    tasks = tasks_of(worker)
    assert tasks.next() == []

    ground.start(others[2])
    ground.forget()
    sizes = [len(found) for found in rounds(tasks, ground)]

    assert sizes == [100] * 5
    assert sum(ground.count()[each] for each in READS) - 500 <= 6 * 500, "each twice"


def test_what_another_tried_meanwhile_is_left_until_its_time(
    ground: Ground, worker: ClientContext
) -> None:
    lost, *others = ground.bookie_ids
    publish(ground, [(lost, *others[:2])] * 101)
    ground.stop(lost)
    tasks = tasks_of(worker)
    found = tasks.next()
    assert tasks.next_due_at_ms == 0
    end(ground, *(each.ledger_id for each in found))
    (tried,) = ground.context.store.underreplication.ledger_ids()
    note = Notes(ground.context.store.registers).change(
        tried,
        lambda note: note.failed(
            "e",
            None,
            worker.runtime.wall_ms(),
            Marked((lost,), 1_000),
            waits_for=(),
            writable=len(others),
            first_ms=10_000,
            most_ms=10_000,
        ),
    )
    tasks._listed = worker.runtime.now(), 1  # it is not listed again, which would find it

    assert tasks.next() == []
    assert tasks.next_due_at_ms == note.next_try_at_ms


def test_what_was_not_worked_on_keeps_its_place(ground: Ground, worker: ClientContext) -> None:
    lost, *others = ground.bookie_ids
    publish(ground, [(lost, *others[:2])] * 300)
    ground.stop(lost)
    tasks = tasks_of(worker)
    first = tasks.next()

    tasks.put_back(first[10:])

    assert tasks.next()[:90] == first[10:]


def test_a_round_ends_when_a_bookie_goes_and_the_next_one_begins_with_what_it_endangers(
    tmp_path: Path,
) -> None:
    ground = Ground(tmp_path, bookies=6)
    lost, second = ground.bookie_ids[:2]
    writers: list[LedgerWriter] = []
    while sum({lost, second} <= w.metadata.bookies() for w in writers) < 4:
        writers += written_on(ground, lost, 8)

    def go(place: str, operation: str, path: str) -> None:
        if operation == "remove_task" and second not in ground._down:
            ground.stop(second)

    process = Process(ground, "one", go)
    ground.stop(lost)
    process.audit()
    number = len(list(ground.context.store.underreplication.ledger_ids()))

    first = {row.ledger_id for row in process.work() if row.action == "task"}
    endangered = {
        writer.ledger_id
        for writer in writers
        if {lost, second} <= ground.context.store.read_ledger(writer.ledger_id).value.bookies()
    }
    order = [row.ledger_id for row in process.work() if row.action == "task"]

    assert len(first) < number
    assert set(order[: len(endangered)]) == endangered
    assert len(first) + len(order) >= number


def test_free_tasks_are_ordered_as_they_are_when_sorted() -> None:
    dice = random.Random(7)
    backlog = Backlog()
    tasks = [
        FreeTask(LedgerId(n), dice.randrange(3), dice.randrange(4), dice.randrange(1 << 32))
        for n in range(1_000)
    ]
    for chunk in (tasks[:400], tasks[400:], []):
        backlog.add(chunk)
    expected = sorted(tasks, key=lambda t: (t.live_copies, t.marked_at_ms, t.dice))

    assert len(backlog) == 1_000
    assert sorted(backlog.ledger_ids) == list(range(1_000))
    assert backlog.take(300) == expected[:300]
    backlog.add([FreeTask(LedgerId(5_000), 0, 0, 0)])
    assert backlog.take(1) == [FreeTask(LedgerId(5_000), 0, 0, 0)]
    assert backlog.take(1_000) == expected[300:]
    assert backlog.take(1) == []


def test_a_task_takes_few_bytes() -> None:
    """A million of them are no reason for a larger machine."""
    backlog, left = Backlog(), LeftAlone()
    backlog.add([FreeTask(LedgerId(n), 2, n, n) for n in range(1_000)])
    backlog.take(0)
    left.add([(LedgerId(n), n, True) for n in range(1_000)])

    assert len(backlog) == 1_000
    assert backlog._ordered.nbytes + left._rows.nbytes <= 1_000 * 48
