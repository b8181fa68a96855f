"""Many tasks: what is read to take them in order, however many there are."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typing_extensions import override

from spark_bookkeeper.autorecovery import tasks as module
from spark_bookkeeper.autorecovery.backlog import (
    GOES,
    TAKES_DATA,
    Backlog,
    BookieBits,
    FreeTask,
    LeftTask,
    LeftTasks,
)
from spark_bookkeeper.autorecovery.notes import Notes, as_marked
from spark_bookkeeper.autorecovery.tasks import Tasks
from spark_bookkeeper.autorecovery.worker import rereplicate
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.config import AutorecoveryConfig
from spark_bookkeeper.metadata.underreplication import Holder
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import Fragment
from spark_bookkeeper.protocol.task_notes import Marked, TaskNote
from spark_bookkeeper.testing.ground import Ground, InlineRuntime
from tests.autorecovery.seen import failed
from tests.support.autorecovery import CONFIG, USUAL, Process, written, written_on
from tests.worlds import there

ANOTHER = Holder("another")
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


def lose_one(ground: Ground, count: int) -> tuple[BookieId, ...]:
    """A bookie goes, of which there are so many tasks.

    Returns:
        the others; the first two have a copy of each ledger.
    """
    lost, *others = ground.bookie_ids
    publish(ground, [(lost, *others[:2])] * count)
    ground.stop(lost)
    return tuple(others)


def try_in_vain(worker: ClientContext, ledger_id: LedgerId, wait_ms: int = 10_000) -> TaskNote:
    """It is tried again after so long."""
    task = there(worker.store.underreplication.read(ledger_id))
    return Notes(worker.store.registers).change(
        ledger_id,
        lambda note: failed(
            note, "e", worker.runtime.wall_ms(), Marked(task.value.missing, 1_000), wait_ms
        ),
    )


def tasks_of(
    context: ClientContext, local: BookieId | None = None, config: AutorecoveryConfig = CONFIG
) -> Tasks:
    return Tasks(context, local, config)


def test_what_is_read_for_a_backlog_grows_with_it_and_not_with_its_square(
    ground: Ground, worker: ClientContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TASKS_PLANNED", 30)
    lose_one(ground, 900)
    tasks = tasks_of(worker)
    published = list(ground.context.store.underreplication.ledger_ids())

    ground.forget()
    taken = [each.ledger_id for found in rounds(tasks, ground) for each in found]

    assert sorted(taken) == published
    count = ground.count()
    done = count["remove_task"]
    assert sum(count[each] for each in READS) - done <= 4 * 900, "each twice, and once for us"


def reads(ground: Ground) -> int:
    """Of tasks, ledgers and notes, since it was asked last."""
    count = ground.count()
    ground.forget()
    return sum(count[each] for each in READS)


def comes(ground: Ground, bookie: BookieId) -> None:
    ground.add_bookie()


def goes(ground: Ground, bookie: BookieId) -> None:
    ground.stop(bookie)


def goes_and_comes(ground: Ground, bookie: BookieId) -> None:
    ground.stop(bookie)
    ground.start(bookie)


def takes_no_data(ground: Ground, bookie: BookieId) -> None:
    ground.start(bookie, is_readonly=True)


@pytest.mark.parametrize("happens", [comes, goes, goes_and_comes, takes_no_data])
def test_what_happens_to_a_bookie_costs_reads_of_the_tasks_that_name_it_alone(
    ground: Ground, worker: ClientContext, happens: Callable[[Ground, BookieId], None]
) -> None:
    """Of 1,000 tasks 100 name it; and what is taken next is looked at once more."""
    lost, some, other, named, free = ground.bookie_ids
    publish(ground, [(lost, some, other)] * 900 + [(lost, named, other)] * 100)
    ground.stop(lost)
    tasks = tasks_of(worker)
    tasks.put_back(tasks.next())
    again = 2 * module.TASKS_PLANNED

    ground.forget()
    happens(ground, free)
    tasks.put_back(tasks.next())
    assert reads(ground) <= again, "it is a member of none"

    happens(ground, named)
    found = tasks.next()
    assert reads(ground) <= 2 * 100 + again
    assert {each.live_copies for each in found} == ({1} if happens is goes else {2})
    assert len(tasks._backlog) == 900, "none is lost"


def test_what_waits_for_a_bookie_is_read_again_when_one_takes_data_or_goes_and_not_otherwise(
    ground: Ground, worker: ClientContext
) -> None:
    """As many take data as before each time, and nobody could take a copy."""
    lost, second, third, *others = ground.bookie_ids
    publish(ground, [(lost, second, third)] * 100)
    for bookie in (lost, *others):
        ground.stop(bookie)
    process = Process(ground)
    while process.work():
        pass
    tasks = tasks_of(worker)
    assert tasks.next() == []

    ground.forget()
    ground.start(others[0], is_readonly=True)
    assert tasks.next() == []
    assert reads(ground) == 0
    ground.stop(others[0])
    assert tasks.next() == []
    assert reads(ground) == 3 * 100
    ground.start(others[1])
    assert len(tasks.next()) == 100
    assert reads(ground) == 3 * 100


def test_a_task_that_only_another_worker_can_do_is_read_again_when_its_bookies_change(
    ground: Ground, worker: ClientContext
) -> None:
    lost, second, local, free, *_ = ground.bookie_ids
    publish(ground, [(lost, second, local)] * 100)
    ground.stop(lost)
    tasks = tasks_of(worker, local)
    assert tasks.next() == []

    ground.forget()
    ground.start(free, is_readonly=True)
    assert tasks.next() == []
    assert reads(ground) == 0
    ground.stop(free)
    assert tasks.next() == []
    assert reads(ground) == 2 * 100
    ground.start(lost)
    assert len(tasks.next()) == 100, "they are whole, and anybody's to be taken away"
    assert reads(ground) == 2 * 100


def test_what_waits_for_its_time_is_taken_at_once_when_it_is_published_for_a_further_member(
    ground: Ground, worker: ClientContext
) -> None:
    """It has one live copy by now."""
    second, *_ = lose_one(ground, 1)
    (tried,) = ground.context.store.underreplication.ledger_ids()
    try_in_vain(worker, tried)
    tasks = tasks_of(worker)
    assert tasks.next() == []

    ground.stop(second)
    ground.context.store.underreplication.mark(tried, [second], 2_000)

    assert [(each.ledger_id, each.live_copies) for each in tasks.next()] == [(tried, 1)]


@pytest.mark.parametrize("is_formatted", [False, True])
def test_what_was_left_to_others_is_taken_when_its_new_ensemble_loses_a_bookie(
    ground: Ground, worker: ClientContext, is_formatted: bool
) -> None:
    lost, second, local, new, other = ground.bookie_ids
    publish(ground, [(lost, second, local)])
    ground.stop(lost)
    store, tree = ground.context.store, ground.context.store.underreplication
    (ledger_id,) = tree.ledger_ids()
    tasks = tasks_of(worker, local)
    assert tasks.next() == [], "a member cannot take a copy"

    known = store.read_ledger(ledger_id)
    fragment = Fragment(EntryId(0), (new, second, other))
    store.write_ledger(ledger_id, replace(known.value, fragments=(fragment,)), known)
    end(ground, ledger_id)
    if is_formatted:
        ground.format(new)
    else:
        ground.stop(new)
    tree.mark(ledger_id, [new], 3_000)

    assert [each.ledger_id for each in tasks.next()] == [ledger_id]


def test_what_waits_for_its_time_is_taken_within_a_minute_when_it_is_published_again(
    ground: Ground, worker: ClientContext
) -> None:
    """Also where the bookie was seen to go before its ledgers are published."""
    second, *_ = lose_one(ground, 1)
    (tried,) = ground.context.store.underreplication.ledger_ids()
    try_in_vain(worker, tried, wait_ms=300_000)
    tasks = tasks_of(worker)
    assert tasks.next() == []
    ground.stop(second)
    assert tasks.next() == []

    ground.context.store.underreplication.mark(tried, [second], 2_000)
    worker.runtime.sleep(60)

    assert [(each.ledger_id, each.live_copies) for each in tasks.next()] == [(tried, 1)]


def test_however_long_the_grace_period_what_is_left_alone_is_looked_at_after_the_longest_back_off(
    ground: Ground, worker: ClientContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where so much is left alone that it is not its turn to be compared with its task."""
    monkeypatch.setattr(module, "_MARKS_SEEN", 0)
    lose_one(ground, 1)
    (tried,) = ground.context.store.underreplication.ledger_ids()
    try_in_vain(worker, tried, wait_ms=1_800_000)
    tasks = tasks_of(worker, config=replace(CONFIG, open_ledger_grace_ms=3_600_000))
    assert tasks.next() == []
    ground.forget()
    assert tasks.next() == []
    assert reads(ground) == 0, "not before"

    ground.context.store.underreplication.mark(tried, ground.bookie_ids[1:2], 2_000)
    worker.runtime.sleep(CONFIG.retry_most_ms / 1000)

    assert [each.ledger_id for each in tasks.next()] == [tried]


def test_what_is_left_alone_is_forgotten_when_its_task_is_gone(
    ground: Ground, worker: ClientContext
) -> None:
    lose_one(ground, 3)
    done, *others = ground.context.store.underreplication.ledger_ids()
    for ledger_id in (done, *others):
        try_in_vain(worker, ledger_id, wait_ms=300_000)
    tasks = tasks_of(worker)
    assert tasks.next() == []
    end(ground, done)

    assert tasks.next() == []

    assert sorted(tasks._left.ledger_ids) == others


def test_what_happens_to_bookies_is_one_bit_for_each_as_far_as_they_go() -> None:
    bits = BookieBits()
    names = [f"10.0.0.{n}:3181" for n in range(100)]
    alone = [bits.of([name]) for name in names]

    assert len(set(alone[:62])) == 62
    assert alone[62:] == alone[:38]
    assert all(bit.bit_count() == 1 and bit not in (GOES, TAKES_DATA) for bit in alone)
    assert bits.of(names[:3]) == alone[0] | alone[1] | alone[2]
    assert bits.of([]) == 0


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
    publish(ground, [(lost, *others[:2])] * 1_000)
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
    lose_one(ground, 300)
    tasks = tasks_of(worker)
    tree = ground.context.store.underreplication
    coming = rounds(tasks, ground)
    taken = {each.ledger_id for each in next(coming)}
    done, tried, locked = [i for i in tree.ledger_ids() if i not in taken][:3]
    end(ground, done)
    try_in_vain(worker, tried)
    tree.lock(locked, ANOTHER)

    found = {each.ledger_id for some in coming for each in some}

    assert len(found) == 300 - 100 - 3
    assert not found & {done, tried, locked}
    tree.unlock(ANOTHER)
    worker.runtime.sleep(10)
    assert {each.ledger_id for each in tasks.next()} == {tried, locked}


def test_when_what_they_wait_for_comes_all_are_taken_round_by_round(
    ground: Ground, worker: ClientContext
) -> None:
    others = lose_one(ground, 250)
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

    assert sizes == [100, 100, 50]
    assert sum(ground.count()[each] for each in READS) - 250 <= 6 * 250, "each twice"


def test_what_another_tried_meanwhile_is_left_until_its_time(
    ground: Ground, worker: ClientContext
) -> None:
    lose_one(ground, 101)
    tasks = tasks_of(worker)
    found = tasks.next()
    assert tasks.next_due_at_ms == 0
    end(ground, *(each.ledger_id for each in found))
    (tried,) = ground.context.store.underreplication.ledger_ids()
    note = try_in_vain(worker, tried)
    # It is not listed again, which would find it.
    tasks._listed = module._Listing(worker.runtime.now(), 0, 1)

    assert tasks.next() == []
    assert tasks.next_due_at_ms == note.next_try_at_ms


class Still(InlineRuntime):
    """Time goes only where somebody sleeps."""

    @override
    def now(self) -> float:
        return self.slept

    @override
    def wall_ms(self) -> int:
        return 1_700_000_000_000 + round(self.slept * 1000)


class Idle:
    """A worker beside a member of all the ledgers: it can take none of their tasks. It looks when
    it is told something, and when it said that it would.

    Args:
        seconds: how long it takes to list the tree.
    """

    def __init__(self, ground: Ground, local: BookieId, seconds: float) -> None:
        self.listings = 0
        self.seconds = seconds
        self.runtime = Still()
        self.tasks = tasks_of(ground.client(self.runtime, self._before), local)
        self._is_rung = False

    def _before(self, place: str, operation: str, path: str) -> None:
        if operation == "task_ids":
            self.listings += 1
            self.runtime.sleep(self.seconds)

    def _ring(self) -> None:
        self._is_rung = True

    def look(self) -> list[LedgerId]:
        """What it takes now."""
        self._is_rung = False
        return [each.ledger_id for each in self.tasks.next(self._ring)]

    def heed(self) -> list[LedgerId]:
        """The same, if it has a reason to look."""
        due_ms = self.tasks.next_due_at_ms
        is_due = due_ms is not None and due_ms <= self.runtime.wall_ms()
        return self.look() if self._is_rung or is_due else []

    def takes_after(self, most: float) -> tuple[float, list[LedgerId]]:
        """What it takes next, and after how many seconds."""
        began = self.runtime.slept
        while not (found := self.heed()) and self.runtime.slept - began < most:
            self.runtime.sleep(0.1)
        return self.runtime.slept - began, found


LISTING_SECONDS = 0.34
"""As when there are very many tasks."""


@pytest.fixture
def idle(ground: Ground) -> Idle:
    """It has looked at 300 tasks, and then nothing happened for a while."""
    ground.add_bookie()
    lost, local, third, *_ = ground.bookie_ids
    publish(ground, [(lost, local, third)] * 300)
    ground.stop(lost)
    worker = Idle(ground, local, LISTING_SECONDS)
    assert worker.look() == []
    worker.runtime.sleep(20)
    worker.listings = 0
    return worker


def publish_for(ground: Ground) -> LedgerId:
    """A task that the idle worker may take."""
    before = {*ground.cluster.tasks.tasks}
    lost, _, third, *others = ground.bookie_ids
    publish(ground, [(lost, third, others[0])])
    (new,) = ground.cluster.tasks.tasks.keys() - before
    return new


def test_locks_that_another_worker_takes_and_releases_have_an_idle_one_list_nothing(
    ground: Ground, idle: Idle
) -> None:
    tree = ground.context.store.underreplication
    for ledger_id in list(tree.ledger_ids())[:100]:
        tree.lock(ledger_id, ANOTHER)
        assert idle.heed() == []
        tree.unlock(ANOTHER)
        assert idle.heed() == []

    assert idle.listings == 0


def test_while_others_work_through_many_tasks_an_idle_worker_lists_a_tenth_of_the_time(
    ground: Ground, idle: Idle
) -> None:
    tree = ground.context.store.underreplication
    began = idle.runtime.slept
    for ledger_id in list(tree.ledger_ids())[:200]:
        tree.lock(ledger_id, ANOTHER)
        end(ground, ledger_id)
        tree.unlock(ANOTHER)
        assert idle.heed() == []
        idle.runtime.sleep(0.1)

    took = idle.runtime.slept - began
    assert idle.listings - 1 <= took / (module._SELDOM * LISTING_SECONDS)
    assert idle.listings > 2, "it is told that tasks went"


def test_an_idle_worker_takes_at_once_what_is_published(ground: Ground, idle: Idle) -> None:
    new = publish_for(ground)

    seconds, found = idle.takes_after(60)

    assert found == [new]
    assert seconds == pytest.approx(LISTING_SECONDS)


def test_or_after_ten_times_what_a_listing_took_that_was_just_now(
    ground: Ground, idle: Idle
) -> None:
    end(ground, next(ground.context.store.underreplication.ledger_ids()))
    assert idle.heed() == []
    assert idle.listings == 1
    new = publish_for(ground)

    seconds, found = idle.takes_after(60)

    assert found == [new]
    assert seconds <= module._SELDOM * LISTING_SECONDS + 0.1 + LISTING_SECONDS


def test_however_long_a_listing_takes_what_is_published_is_found_at_the_next_regular_one(
    ground: Ground, idle: Idle
) -> None:
    idle.seconds = 20.0
    end(ground, next(ground.context.store.underreplication.ledger_ids()))
    idle.heed()
    new = publish_for(ground)

    seconds, found = idle.takes_after(600)

    assert found == [new]
    assert seconds <= module._LIST_SECONDS + 0.1 + idle.seconds


def test_an_idle_worker_takes_at_once_what_its_owner_releases_and_did_not_do(
    ground: Ground, idle: Idle
) -> None:
    owner = ground.client().store
    new = publish_for(ground)
    assert owner.underreplication.lock(new, ANOTHER)
    assert idle.heed() == []
    idle.listings = 0
    idle.runtime.sleep(1)
    assert idle.heed() == []

    owner.close()

    assert idle.takes_after(60) == (0, [new])
    assert idle.listings == 0


def test_of_very_many_that_are_left_alone_a_few_are_read_at_a_time_and_all_in_turn(
    ground: Ground, idle: Idle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MARKS_SEEN", 100)
    tree, (_, _, third, *_) = ground.context.store.underreplication, ground.bookie_ids
    again = max(tree.ledger_ids())
    tree.mark(again, [third], 2_000)  # its bookie is there, so what is damaged is anybody's
    found: list[LedgerId] = []

    ground.forget()
    for looks in (1, 2, 3):
        idle.runtime.sleep(module._LIST_SECONDS)
        found += idle.look()
        assert ground.count()["read_task"] <= looks * 100 + 2

    assert found == [again]


def test_what_was_done_by_another_and_is_published_again_is_found_at_the_next_listing(
    ground: Ground, idle: Idle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MARKS_SEEN", 0)
    tree, (_, _, third, *_) = ground.context.store.underreplication, ground.bookie_ids
    again = next(tree.ledger_ids())
    end(ground, again)
    assert idle.look() == []

    tree.mark(again, [third], 1_000)  # its bookie is there, so what is damaged is anybody's
    idle.runtime.sleep(module._LIST_SECONDS)

    assert idle.look() == [again]


def test_what_its_owner_tried_in_vain_an_idle_worker_leaves_until_its_time(
    ground: Ground, idle: Idle
) -> None:
    tree, notes = ground.context.store.underreplication, Notes(ground.context.store.registers)
    new = publish_for(ground)
    tree.lock(new, ANOTHER)
    assert idle.heed() == []
    task = there(tree.read(new))
    notes.change(new, lambda note: failed(note, "e", idle.runtime.wall_ms(), as_marked(task)))
    tree.unlock(ANOTHER)
    idle.listings = 0

    seconds, found = idle.takes_after(60)

    assert found == [new]
    assert seconds == pytest.approx(10, abs=0.2)
    assert idle.listings == 0


def test_an_idle_worker_takes_at_once_what_a_bookie_that_comes_makes_possible(
    ground: Ground, idle: Idle
) -> None:
    ground.start(ground.bookie_ids[0])  # they are whole, and anybody's to be taken away

    assert len(idle.look()) == module.TASKS_PLANNED
    assert idle.listings == 1


def test_what_was_not_worked_on_keeps_its_place(ground: Ground, worker: ClientContext) -> None:
    lose_one(ground, 300)
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


def test_a_worker_whose_clock_was_ahead_looks_at_what_it_left_alone_when_that_is_right_again(
    ground: Ground,
) -> None:
    lose_one(ground, 1)
    (tried,) = ground.context.store.underreplication.ledger_ids()
    runtime = Still()
    worker = ground.client(runtime)
    runtime.sleep(1_000_000)
    try_in_vain(worker, tried)
    tasks = tasks_of(worker)
    assert tasks.next() == []

    runtime.slept = 0.0

    assert [each.ledger_id for each in tasks.next()] == [tried]


def test_a_task_takes_few_bytes() -> None:
    """A million of them are no reason for a larger machine."""
    backlog, left = Backlog(), LeftTasks()
    backlog.add([FreeTask(LedgerId(n), 2, n, n) for n in range(1_000)])
    backlog.take(0)
    left.add([LeftTask(LedgerId(n), n, True, n, n) for n in range(1_000)])

    assert len(backlog) == 1_000
    assert backlog._ordered.nbytes + left._rows.nbytes <= 1_000 * 64


def test_a_plan_has_all_tasks_that_the_run_would_take(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TASKS_PLANNED", 5)
    lost = ground.bookie_ids[0]
    written_on(ground, lost, 12)
    ground.stop(lost)
    process = Process(ground)
    process.audit()

    plan = rereplicate(process.context, process.worker, dry_run=True)
    done = rereplicate(process.context, process.worker)

    assert plan.counts == {"planned": 12}
    taken = {row.ledger_id for row in done.rows}
    assert {row.ledger_id for row in plan.rows} == taken


def test_what_is_left_of_a_task_that_went_is_swept_by_a_round_and_by_no_plan(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(ground)
    tree = process.context.store.underreplication
    named, swept = tree.ledger_ids, list[LedgerId]()
    monkeypatch.setattr(tree, "ledger_ids", lambda told=None: iter([*named(told), LedgerId(7)]))
    monkeypatch.setattr(tree, "sweep", swept.append)

    assert process.worker.plan() == []
    assert process.work() == process.work() == []

    assert swept == [7]
