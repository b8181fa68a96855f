"""Tasks that nobody can do now: how seldom they are tried, what wakes them, and what is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spark_bookkeeper.autorecovery import replication
from spark_bookkeeper.autorecovery.checks import publish_finding
from spark_bookkeeper.autorecovery.notes import Notes
from spark_bookkeeper.autorecovery.replication import TaskWork
from spark_bookkeeper.autorecovery.table import underreplicated_table, why_waiting
from spark_bookkeeper.autorecovery.worker import ReplicationWorker, rereplicate
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.doctor import autorecovery as at_work
from spark_bookkeeper.doctor.diagnosis import Diagnosis
from spark_bookkeeper.doctor.examination import cluster_diagnoses
from spark_bookkeeper.errors import (
    BookieUnavailableError,
    MetadataFormatError,
    MetadataUnavailableError,
)
from spark_bookkeeper.metadata.underreplication import Holder
from spark_bookkeeper.metadata.update import delete_ledger
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.task_notes import TaskNote
from spark_bookkeeper.replication.refill_bookie import Refill, refill_bookie
from spark_bookkeeper.replication.report import Row
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import Ground, StandingStill
from tests.autorecovery.checking import Tasks
from tests.autorecovery.seen import audited, failed, published
from tests.support.autorecovery import CONFIG, Process, written
from tests.whole import assert_replicated
from tests.worlds import failing, there

DAY = 86_400
SINGLE = Quorum(1, 1, 1)
ON_ALL = Quorum(4, 3, 2)
JUNK = failing("read_task", lambda path: MetadataFormatError("it cannot be decoded", path=path))


def lost_for_now(ground: Ground, quorum: Quorum) -> tuple[LedgerWriter, BookieId, Process]:
    """A ledger that nobody can repair, and who has tried."""
    writer, lost, process = published(ground, quorum)
    process.work()
    assert note_of(ground, writer).attempts == 1
    return writer, lost, process


def note_of(ground: Ground, writer: LedgerWriter) -> TaskNote:
    return Notes(ground.context.store.registers).read(LedgerId(writer.ledger_id))


def row_of(ground: Ground) -> dict[str, object]:
    (row,) = underreplicated_table(ground.context).to_pylist()
    return dict(row)


def as_doctor_tells(ground: Ground, check: str) -> Diagnosis | None:
    found = cluster_diagnoses(ground.context, metadata_only=True)
    return next((each for each in found if each.check == check), None)


def autorecovery_as_doctor_tells(ground: Ground) -> Diagnosis:
    return there(as_doctor_tells(ground, "autorecovery"))


@pytest.mark.parametrize("quorum", [SINGLE, ON_ALL])
def test_what_only_an_event_can_help_is_tried_once_a_day(ground: Ground, quorum: Quorum) -> None:
    writer, _, process = lost_for_now(ground, quorum)
    rounds = 0

    while process.runtime.slept < 2.5 * DAY:
        process.work()
        now_ms = process.runtime.wall_ms()
        due_ms = process.worker.next_due_at_ms or now_ms  # what was taken is looked at once more
        process.runtime.sleep(max(0, due_ms + 1 - now_ms) / 1000)
        rounds += 1

    assert rounds >= 2 * DAY // 300, "it goes on looking"
    assert note_of(ground, writer).attempts == 3
    assert row_of(ground)["attempts"] == 3


def test_a_bookie_that_comes_back_in_the_middle_of_an_attempt_is_waited_for_no_longer(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, lost, process = published(ground, ON_ALL)
    settle = replication._Replication._settle

    def come_before(attempt: replication._Replication, nonce: bytes | None) -> None:
        ground.start(lost)
        settle(attempt, nonce)

    monkeypatch.setattr(replication._Replication, "_settle", come_before)
    process.work()
    assert note_of(ground, writer).attempts == 1, "nobody could take its copies before it came"
    process.work()

    assert_replicated(ground, writer)


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
    ground: Ground, quorum: Quorum, happens: Callable[[Ground, LedgerWriter, BookieId], None]
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


def test_a_bookie_that_refuses_after_the_event_is_tried_as_soon_as_after_any_refusal(
    ground: Ground,
) -> None:
    """What it waited for has come: it is no reason to wait any more."""
    _, _, process = lost_for_now(ground, ON_ALL)
    came = ground.add_bookie()
    refusing = [came]

    def refuse(place: str, operation: str, path: str) -> None:
        if place in refusing:
            raise BookieUnavailableError(f"{place} is full", bookie_id=came)

    local = Process(ground, "two", refuse, local=came, runtime=process.runtime)
    assert [row.action for row in local.work()][-1] == "task", "it was tried"
    refusing.clear()
    assert local.work() == []

    process.runtime.sleep(CONFIG.retry_first_ms / 1000 + 1)

    assert "replicated" in [row.status for row in local.work() if row.action == "task"]


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
    process = Process(ground, runtime=StandingStill())

    waits = []
    for _ in range(8):
        process.work()
        wait_ms = note_of(ground, writer).next_try_at_ms - process.runtime.wall_ms()
        waits.append(round(wait_ms / 1000))
        process.runtime.sleep(waits[-1] + 1)

    assert waits == [10, 20, 40, 80, 160, 300, 300, 300]


def waits_between_tries(ground: Ground, ledger_id: LedgerId, process: Process) -> list[int]:
    """In seconds, of as many tries as double the wait to its longest; and not a try too many."""
    waits = []
    for tries in range(1, 8):
        assert {row.ledger_id for row in process.work()} == {ledger_id}
        assert process.work() == [], "it is not taken again at once"
        assert row_of(ground)["attempts"] == tries
        wait_ms = notes_of(ground)[ledger_id].next_try_at_ms - process.runtime.wall_ms()
        waits.append(round(wait_ms / 1000))
        process.runtime.sleep(waits[-1] + 1)
    return waits


def notes_of(ground: Ground) -> dict[LedgerId, TaskNote]:
    notes = Notes(ground.context.store.registers)
    return dict(notes.read_many(notes.ledger_ids()))


def test_a_task_that_cannot_be_decoded_waits_like_any_failure_and_says_why(ground: Ground) -> None:
    writer = written(ground)
    ledger_id = LedgerId(writer.ledger_id)
    ground.context.store.underreplication.mark(ledger_id, [ground.bookie_ids[0]], 1)
    ground.before.append(JUNK)
    process = Process(ground, runtime=StandingStill())

    assert waits_between_tries(ground, ledger_id, process) == [10, 20, 40, 80, 160, 300, 300]

    row = row_of(ground)
    assert row["last_error"] == "it cannot be decoded"
    assert "after 7 attempts: it cannot be decoded; tried again in" in why_waiting(
        row, process.runtime.wall_ms() - 10_000
    )
    ground.before.remove(JUNK)
    process.work()
    assert_replicated(ground, writer)


def test_that_a_task_could_not_be_decoded_is_not_said_of_one_that_was_published_since(
    ground: Ground,
) -> None:
    """Who types what was advised then would delete the good one."""
    writer = written(ground)
    tree, ledger_id = ground.context.store.underreplication, LedgerId(writer.ledger_id)
    tree.mark(ledger_id, [ground.bookie_ids[0]], 1)
    process = audited(ground)
    ground.before.append(JUNK)
    process.work()
    assert row_of(ground)["last_error"] == "it cannot be decoded"
    assert as_doctor_tells(ground, "under-replicated ledgers") is not None
    ground.before.remove(JUNK)
    tree.mark(ledger_id, [ground.bookie_ids[1]], 2)

    row = row_of(ground)

    assert (row["last_error"], row["next_try_at"]) == (None, None)
    assert why_waiting(row, 0) == "waits for a replication worker"
    assert as_doctor_tells(ground, "under-replicated ledgers") is None


def test_what_was_mended_since_is_tried_again_at_once(ground: Ground) -> None:
    """A task that could not be decoded is another one when it can be."""
    writer = written(ground)
    ledger_id = LedgerId(writer.ledger_id)
    ground.context.store.underreplication.mark(ledger_id, [ground.bookie_ids[0]], 1)
    Notes(ground.context.store.registers).change(
        ledger_id,
        lambda note: failed(note, "it cannot be decoded", ground.context.cluster_ms()),
    )

    Process(ground).work()

    assert_replicated(ground, writer)


@pytest.mark.parametrize("ledgers", [1, 3])
def test_what_spark_did_not_do_waits_like_any_failure_and_says_why(
    ground: Ground, ledgers: int
) -> None:
    writers = [written(ground, Quorum(4, 3, 2)) for _ in range(ledgers)]
    ground.add_bookie()
    ground.stop(ground.bookie_ids[0])
    process = audited(ground)
    is_broken = True
    tasks = Tasks(process.context, lambda _: is_broken)
    worker = ReplicationWorker(process.context, tasks, CONFIG, "one")

    for tries in (1, 2):
        rows = list(worker.round())
        reasons = {row.ledger_id: row.reason for row in rows}
        assert reasons == {w.ledger_id: "the Spark job failed: no executors" for w in writers}
        assert list(worker.round()) == [], "they are not taken again at once"
        for note in notes_of(ground).values():
            wait_ms = note.next_try_at_ms - process.runtime.wall_ms()
            assert (note.attempts, round(wait_ms / 10_000)) == (tries, tries)
        process.runtime.sleep(tries * 10 + 1)

    shown = underreplicated_table(ground.context).to_pylist()
    assert len(shown) == ledgers
    assert {row["last_error"] for row in shown} == {"the Spark job failed: no executors"}
    assert ground.context.store.underreplication.locks() == {}
    is_broken = False
    list(worker.round())
    assert_replicated(ground, *writers)


def test_a_task_that_is_done_by_now_gets_no_note(ground: Ground) -> None:
    """The job failed behind the last of its copies."""
    writer, _, process = published(ground)
    other = Process(ground, "other")

    def fails(item: TaskWork) -> bool:
        del ground.cluster.tasks.locks[item.ledger_id]  # as if it were lost
        other.work()
        return True

    worker = ReplicationWorker(process.context, Tasks(process.context, fails), CONFIG, "one")
    assert [row.status for row in worker.round()] == ["no longer needed"]

    assert_replicated(ground, writer)


def test_where_a_failure_cannot_be_noted_it_is_told_and_the_locks_are_released(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    writer = written(ground)
    is_armed = False

    def fail(place: str, operation: str, path: str) -> None:
        if is_armed and "register" in operation:
            raise MetadataUnavailableError("ZooKeeper does not answer")

    process = Process(ground, "one", fail)
    ground.stop(writer.metadata.last_fragment.ensemble[0])
    process.audit()

    def fails(item: TaskWork) -> bool:
        nonlocal is_armed
        is_armed = True
        return True

    worker = ReplicationWorker(process.context, Tasks(process.context, fails), CONFIG, "one")
    (row,) = worker.round()

    assert row.reason == "the Spark job failed: no executors"
    assert "1 failed tasks have no note: ZooKeeper does not answer" in caplog.text
    assert ground.context.store.underreplication.locks() == {}


def test_a_task_says_that_nobody_does_anything_and_what_to_do(ground: Ground) -> None:
    writer, _, process = published(ground)
    tree = ground.context.store.underreplication
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
    assert tree.lock(LedgerId(writer.ledger_id), Holder("by hand"))
    assert row_of(ground)["blocker"] is None


def test_a_ledger_that_was_closed_waits_for_no_writer(ground: Ground) -> None:
    writer, _, process = published(ground, close=False)
    process.work()
    assert "grace period" in str(row_of(ground)["blocker"])

    writer.close()

    row = row_of(ground)
    assert (row["blocker"], row["last_error"]) == (None, None)


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
    told = autorecovery_as_doctor_tells(ground)
    assert (told.verdict, f"copies: {writer.ledger_id}" in told.detail) == ("warning", True)
    assert blocker in (told.remedy or "")
    Process(ground, free, local=free).audit()
    assert row_of(ground)["blocker"] is None
    assert autorecovery_as_doctor_tells(ground).verdict == "ok", "it is somebody's turn"
    workers[0].work()
    Process(ground, "alone").work()
    assert_replicated(ground, writer)


def test_what_waited_for_a_bookie_that_has_come_is_due_now(tmp_path: Path) -> None:
    """Also where no worker runs: the day that was given to the event is not shown any more."""
    ground = Ground(tmp_path, bookies=3)
    _, _, process = published(ground)
    process.work()
    waiting = row_of(ground)
    assert waiting["next_try_at"] is not None

    ground.add_bookie()

    assert row_of(ground)["next_try_at"] is None


def test_what_is_published_again_waits_for_no_time(ground: Ground) -> None:
    writer = written(ground, ON_ALL, count=20)
    bookie, away, *_ = writer.metadata.last_fragment.ensemble
    process = audited(ground)
    ground.stop(away)
    process.audit()
    process.work()
    assert row_of(ground)["next_try_at"] is not None

    publish_finding(ground.context, LedgerId(writer.ledger_id), [bookie], 0)

    assert [row.ledger_id for row in process.worker.plan()] == [writer.ledger_id]
    assert row_of(ground)["next_try_at"] is None


def test_no_other_worker_is_asked_for_where_nobody_has_the_copies(ground: Ground) -> None:
    writer = written(ground, Quorum(3, 1, 1))
    lost, member, _ = writer.metadata.last_fragment.ensemble
    process = audited(ground, member, local=member)
    ground.stop(lost)
    process.audit()
    process.work()

    assert row_of(ground)["blocker"] == f"{lost} to come back: no other bookie has copies"
    assert autorecovery_as_doctor_tells(ground).verdict == "ok"


def test_doctor_says_of_how_many_it_looked_whether_a_worker_can_repair_them(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(at_work, "LEDGERS_AT_ONCE", 4)
    lost, beside, _, free = ground.bookie_ids
    ground.stop(free)
    for _ in range(10):
        written(ground)
    ground.start(free)
    process = audited(ground, beside, local=beside)
    ground.stop(lost)
    process.audit()

    told = autorecovery_as_doctor_tells(ground)

    assert "10 ledgers published" in told.detail
    assert "and of 4 of 4 that were looked at no worker" in told.detail


def test_doctor_names_what_is_not_repaired_now_and_why_though_every_bookie_is_there(
    ground: Ground,
) -> None:
    writer = written(ground)
    ledger_id = LedgerId(writer.ledger_id)
    ground.context.store.underreplication.mark(ledger_id, [ground.bookie_ids[0]], 1)
    process = audited(ground)
    assert as_doctor_tells(ground, "under-replicated ledgers") is None, "it is somebody's turn"
    ground.before.append(JUNK)
    process.work()

    told = there(as_doctor_tells(ground, "under-replicated ledgers"))
    assert told.verdict == "warning"
    assert f"1 of 1 that were looked at cannot be repaired now: {ledger_id};" in told.detail
    assert "after 1 attempt: it cannot be decoded; tried again in" in told.detail
    assert "`spark-bookkeeper autorecovery underreplicated`" in there(told.remedy)


def test_doctor_names_a_ledger_once_that_no_worker_can_take(ground: Ground) -> None:
    writer = written(ground)
    lost, second, _ = writer.metadata.last_fragment.ensemble
    worker = Process(ground, second, local=second)
    ground.stop(lost, destroy=True)
    worker.audit()

    assert autorecovery_as_doctor_tells(ground).verdict == "warning"
    assert as_doctor_tells(ground, "under-replicated ledgers") is None
