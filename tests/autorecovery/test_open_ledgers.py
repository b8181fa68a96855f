"""The task of a ledger that is being written: how long its writer has, and what ends that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from spark_bookkeeper.autorecovery.checks import publish_finding
from spark_bookkeeper.autorecovery.limit import write_limit
from spark_bookkeeper.autorecovery.notes import Notes, forget_what_is_done
from spark_bookkeeper.autorecovery.replication import TaskWork, replicate_task
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.task_notes import WAIT_FOR_EVENT_MS
from spark_bookkeeper.replication.check_ledgers import check_ledgers
from spark_bookkeeper.replication.report import Outcome, Row
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import METADATA, Ground, Hook, InlineRuntime
from tests.autorecovery.seen import audited, published, row_of, task_ids, victim_of
from tests.support.autorecovery import CONFIG, USUAL, Process, written
from tests.support.rows import wait_for_every_copy
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
    writer._pipeline.drain()
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
    writer._pipeline.drain()
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


ENTRIES = 10
MIDDLE = 5
ENDS = 0
"""The percentage with which the first and the last entry are looked at."""


def members_of(writer: LedgerWriter) -> Sequence[BookieId]:
    return writer.metadata.last_fragment.ensemble


def lose(ground: Ground, bookie: BookieId, *entries: int) -> None:
    """A bookie loses these entries of a ledger of which every entry has a slot of its own."""
    paths = sorted(ground.files(bookie, "slots"))
    for entry in entries:
        paths[entry].unlink()


def is_whole(ground: Ground) -> bool:
    client = ground.client(InlineRuntime())
    return check_ledgers(client, LocalRunner(client), None, 100).is_complete


def publish(ground: Ground, writer: LedgerWriter, percentage: int) -> BookieId:
    """Publish what the first member lacks, if anything; that bookie."""
    bookie = members_of(writer)[0]
    publish_finding(ground.context, LedgerId(writer.ledger_id), [bookie], percentage)
    return bookie


def is_published(ground: Ground, writer: LedgerWriter) -> bool:
    return ground.context.store.underreplication.read(LedgerId(writer.ledger_id)) is not None


def copied(rows: Sequence[Row]) -> list[Outcome]:
    return [row.status for row in rows if row.action == "copy"]


MOMENTS = ["read_task", "read_register", "holdings", "remove_task"]


@pytest.mark.parametrize(
    ("moment", "noted"),
    [*((m, noted) for m in MOMENTS for noted in (0, 100)), ("delete_register", 100)],
)
def test_what_is_found_while_its_bookie_is_looked_at_is_made_good(
    ground: Ground, moment: str, noted: int
) -> None:
    """Its task names the bookie already, and whoever does it has looked, or is about to."""
    writer = written(ground, count=ENTRIES)
    bookie = publish(ground, writer, noted)
    done: list[str] = []

    def scrubber(place: str, operation: str, path: str) -> None:
        is_moment = place == bookie if moment == "holdings" else operation == moment
        if is_moment and not done and (operation != "read_register" or "notes/" in path):
            done.append(operation)
            lose(ground, bookie, MIDDLE)
            publish(ground, writer, 100)

    process = Process(ground, "one", scrubber)
    for _ in range(3):
        process.work()
        process.runtime.sleep(CONFIG.retry_most_ms / 1000 + 1)

    assert done
    assert not is_published(ground, writer)
    assert is_whole(ground)
    assert list(Notes(ground.context.store.registers).ledger_ids()) == []


@pytest.mark.parametrize("operation", ["create_register", "mark", "read_register"])
def test_what_others_do_while_it_is_published_takes_nothing_of_it_away(
    ground: Ground, operation: str
) -> None:
    """An auditor that tidies up, and a worker that looks no closer than it is told."""
    writer = written(ground, count=ENTRIES)
    bookie = members_of(writer)[0]
    lose(ground, bookie, MIDDLE)
    auditor, worker = Process(ground, "auditor"), Process(ground, "worker")
    tree = ground.context.store.underreplication
    done: list[str] = []

    def others(_place: str, now: str, _path: str) -> None:
        if now == operation and (operation != "read_register" or is_published(ground, writer)):
            if done:
                return
            done.append(now)
            forget_what_is_done(auditor.context)
            tree.mark(LedgerId(writer.ledger_id), [bookie], 1)  # as an audit does
            worker.work()

    scrubber = ground.client(InlineRuntime(), others)
    publish_finding(scrubber, LedgerId(writer.ledger_id), [bookie], 100)
    assert done
    worker.work()

    assert not is_published(ground, writer)
    assert is_whole(ground)


def test_a_note_stays_whose_task_comes_as_notes_without_tasks_are_forgotten(ground: Ground) -> None:
    writer = written(ground, count=ENTRIES)
    lose(ground, members_of(writer)[0], MIDDLE)
    notes = Notes(ground.context.store.registers)
    notes.change(LedgerId(writer.ledger_id), lambda note: replace(note, percentage=1))
    done: list[str] = []

    def scrubber(_place: str, operation: str, _path: str) -> None:
        if operation in moments and len(done) < len(after):
            done.append(operation)
            if done == after:
                publish(ground, writer, 100)

    moments = ["task_ids", "read_task", "delete_register"]
    for after in (moments[:1], moments[:2], moments):
        done.clear()
        forget_what_is_done(ground.client(InlineRuntime(), scrubber))
        assert done == after
        assert notes.read(LedgerId(writer.ledger_id)).percentage == 100
        task = ground.context.store.underreplication.read(LedgerId(writer.ledger_id))
        assert task is not None
        ground.context.store.underreplication.remove(task)


@pytest.mark.parametrize("percentage", [0, 100])
def test_a_second_damage_does_not_wait_for_the_event_that_the_task_waits_for(
    ground: Ground, percentage: int
) -> None:
    writer = written(ground, Quorum(4, 3, 2), count=2 * ENTRIES)
    bookie, away, *_ = members_of(writer)
    process = Process(ground)
    ground.stop(away)
    process.audit()
    for entry in (0, -1):
        lose(ground, bookie, entry)
        publish(ground, writer, percentage)
        process.runtime.sleep(CONFIG.retry_most_ms / 1000 + 1)

        rows = process.work()

        assert (Outcome.REPLICATED, bookie) in {(row.status, row.target) for row in rows}
        note = Notes(ground.context.store.registers).read(LedgerId(writer.ledger_id))
        assert note.waits_for_event


@pytest.mark.parametrize("percentage", [ENDS, 100])
def test_what_is_found_after_another_worker_did_the_task_is_made_good(
    ground: Ground, percentage: int
) -> None:
    """Two workers look at a replica, as one has lost its lock; the slower one is about to remove
    the task, and finds another of the same version.
    """
    writer = written(ground, count=ENTRIES)
    ledger_id, bookie = LedgerId(writer.ledger_id), publish(ground, writer, percentage)
    done: list[str] = []

    def others(_place: str, operation: str, _path: str) -> None:
        if operation == "remove_task" and not done:
            done.append(operation)
            replicate_task(ground.context, TaskWork(ledger_id, None, CONFIG))
            assert not is_published(ground, writer)
            lose(ground, bookie, 0)
            publish_finding(ground.context, ledger_id, [bookie], percentage)

    process = Process(ground, "one", others)
    for _ in range(2):
        process.work()

    assert done
    assert not is_published(ground, writer)
    assert is_whole(ground)
    assert list(Notes(ground.context.store.registers).ledger_ids()) == []


# How closely is looked


def large(ground: Ground, *, close: bool = True) -> LedgerWriter:
    """A ledger with entries of 100 kB, all of them on three bookies."""
    writer = lifecycle.create_ledger(ground.context, USUAL)
    for number in range(2 * ENTRIES):
        writer.append(bytes([number]) * 100_000)
    wait_for_every_copy(writer)
    if close:
        writer.close()
    return writer


def test_what_is_read_of_a_replica_is_read_within_the_limit(ground: Ground) -> None:
    writer = large(ground)
    write_limit(ground.context.store.registers, 10_000)
    lose(ground, publish(ground, writer, ENDS), 0)
    process = Process(ground)

    rows = process.work()

    assert copied(rows) == [Outcome.REPLICATED]
    assert process.runtime.slept >= 200, "2 MB at 10 kB/s"
    assert is_whole(ground)


def test_a_replica_whose_damage_stays_is_not_read_as_a_whole_at_each_retry(ground: Ground) -> None:
    writer = large(ground)
    for bookie in members_of(writer):
        lose(ground, bookie, 0)
    publish(ground, writer, ENDS)
    write_limit(ground.context.store.registers, 10_000)
    process = Process(ground)
    for _ in range(3):
        before = process.runtime.slept

        rows = process.work()

        assert copied(rows) == [Outcome.UNRECOVERABLE], "it is told once"
        assert process.runtime.slept - before <= 100, "half of 2 MB at 10 kB/s"
        process.runtime.sleep(CONFIG.retry_most_ms / 1000 + 1)


def test_a_replica_of_an_open_ledger_is_not_read_as_a_whole_before_it_is_closed(
    ground: Ground,
) -> None:
    writer = large(ground, close=False)
    bookie = publish(ground, writer, ENDS)
    lose(ground, bookie, 0)
    write_limit(ground.context.store.registers, 10_000)
    process = Process(ground)

    rows = process.work()

    assert copied(rows) == [Outcome.LEFT]
    assert process.runtime.slept <= 100, "half of 2 MB at 10 kB/s"
    writer.close()


def test_who_takes_over_from_a_worker_that_died_while_it_read_all_reads_all(ground: Ground) -> None:
    """The one before has made the ends again, so they tell nothing."""
    writer = written(ground, count=ENTRIES)
    bookie = publish(ground, writer, ENDS)
    lose(ground, bookie, 0, MIDDLE)
    noted: list[str] = []
    """What was done with its note: read twice, and after the ends were made again, written."""

    def silent(place: str, operation: str, path: str) -> None:
        if place == METADATA and operation.endswith("_register") and "notes/" in path:
            noted.append(operation)
        if place == bookie and len(noted) > 2:
            raise BookieUnavailableError("no answer", bookie_id=bookie)

    rows = Process(ground, "one", silent).work()
    assert copied(rows) == [Outcome.REPLICATED, Outcome.LEFT]
    assert is_published(ground, writer)

    next_one = Process(ground, "next")
    next_one.runtime.sleep(CONFIG.retry_first_ms / 1000 + 1)
    next_one.work()

    assert not is_published(ground, writer)
    assert is_whole(ground)


def test_a_replica_that_was_read_as_a_whole_is_not_again_because_another_bookie_is_away(
    ground: Ground,
) -> None:
    writer = written(ground, Quorum(4, 3, 2), count=2 * ENTRIES)
    bookie, away, *_ = members_of(writer)
    ground.stop(away)
    Process(ground).audit()
    lose(ground, publish(ground, writer, ENDS), 0)
    notes = Notes(ground.context.store.registers)
    seen: list[Sequence[str]] = []

    def look(_place: str, _operation: str, _path: str) -> None:
        seen.append(notes.read(LedgerId(writer.ledger_id)).suspects)

    Process(ground, "one", look).work()

    assert (bookie,) in seen
    note = notes.read(LedgerId(writer.ledger_id))
    assert note.waits_for_event
    assert not note.suspects


def reads_of(bookie: BookieId, read: list[str]) -> Hook:
    """Notes which entries are read of a bookie."""

    def look(place: str, operation: str, path: str) -> None:
        if place == bookie and operation in ("read", "read_range"):
            read.append(path)

    return look


def retry(process: Process) -> None:
    process.runtime.sleep(CONFIG.retry_most_ms / 1000 + 1)
    assert process.work(), "it is tried again"


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("percentage", [ENDS, 100])
def test_a_replica_that_was_found_whole_is_not_read_at_each_retry_of_what_is_left(
    ground: Ground, percentage: int, refused: bool
) -> None:
    """Another member is away, and the only target is full, or not this worker's to copy to."""
    writer = written(ground, count=2 * ENTRIES)
    away, bookie, beside = members_of(writer)
    (free,) = set(ground.bookie_ids) - writer.metadata.bookies()
    ground.stop(away)
    Process(ground).audit()
    lose(ground, bookie, 0)
    publish_finding(ground.context, LedgerId(writer.ledger_id), [bookie], percentage)
    read: list[str] = []

    def full(place: str, _operation: str, _path: str) -> None:
        if place == free:
            raise BookieUnavailableError("full", bookie_id=free)

    hooks = full, reads_of(bookie, read)
    process = Process(ground, "one", *hooks, local=beside if refused else None)
    assert Outcome.REPLICATED in copied(process.work())
    assert read
    read.clear()
    for _ in range(3):
        retry(process)
    assert read == [], "it was whole"

    publish_finding(ground.context, LedgerId(writer.ledger_id), [bookie], percentage)
    retry(process)
    assert read, "somebody has seen something since"
    read.clear()

    process.runtime.sleep(WAIT_FOR_EVENT_MS / 1000)
    retry(process)
    assert read, "not everybody says what he has seen"


def test_a_replica_that_was_found_whole_is_looked_at_before_its_task_goes(ground: Ground) -> None:
    """Apache BookKeeper's auditor writes no note, and nothing where a task names the bookie."""
    writer = written(ground, Quorum(4, 3, 2), count=ENTRIES)
    bookie, away, *_ = members_of(writer)
    ground.stop(away)
    process = Process(ground)
    process.audit()
    publish(ground, writer, 100)
    process.work()
    lose(ground, bookie, 0)
    ground.context.store.underreplication.mark(LedgerId(writer.ledger_id), [bookie], 1)
    ground.start(away)

    retry(process)

    assert not is_published(ground, writer)
    assert is_whole(ground)


def test_a_bookie_that_is_silent_once_is_one_row_and_the_next_attempt_ends_it(
    ground: Ground,
) -> None:
    writer = written(ground, count=ENTRIES)
    bookie = publish(ground, writer, ENDS)
    failed: list[int] = []

    def once(place: str, _operation: str, _path: str) -> None:
        if place == bookie and not failed:
            failed.append(1)
            raise BookieUnavailableError("no answer", bookie_id=bookie)

    process = Process(ground, "one", once)
    assert copied(process.work()) == [Outcome.LEFT]
    process.runtime.sleep(CONFIG.retry_first_ms / 1000 + 1)
    process.work()

    assert failed
    assert not is_published(ground, writer)


def test_who_could_not_be_looked_at_is_not_called_whole(ground: Ground) -> None:
    """Nobody tells how far an open ledger is acknowledged, so nothing is known of any replica."""
    writer = written(ground, count=ENTRIES, close=False)
    bookie = publish(ground, writer, ENDS)
    notes = Notes(ground.context.store.registers)
    notes.change(LedgerId(writer.ledger_id), lambda note: note.suspected(bookie))

    def silent(place: str, _operation: str, _path: str) -> None:
        if place != METADATA:
            raise BookieUnavailableError("no answer", bookie_id=place)

    Process(ground, "one", silent).work()

    assert is_published(ground, writer)
    assert notes.read(LedgerId(writer.ledger_id)).suspects == (bookie,)
    writer.close()
