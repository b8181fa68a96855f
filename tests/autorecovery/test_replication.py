"""From a lost bookie to whole ledgers and an empty tree, task by task."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import datetime

import pytest

from spark_bookkeeper.autorecovery.notes import Notes
from spark_bookkeeper.autorecovery.publishing import DisabledError, publish_lost_bookies
from spark_bookkeeper.autorecovery.worker import rereplicate
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import MetadataUnavailableError
from spark_bookkeeper.metadata.underreplication import Holder
from spark_bookkeeper.metadata.update import delete_ledger
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import Fragment
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.check_ledgers import check_ledgers
from spark_bookkeeper.replication.report import Outcome
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import Ground, InlineRuntime, StandingStill
from tests.autorecovery.seen import audited, damage, published, row_of, task_ids, victim_of
from tests.support.autorecovery import CONFIG, Process, written, written_on
from tests.whole import assert_replicated
from tests.worlds import there


def test_a_lost_bookie_is_noticed_and_made_good(ground: Ground) -> None:
    writers = [written(ground) for _ in range(4)]
    lost = victim_of(writers[0])
    affected = [w.ledger_id for w in writers if lost in w.metadata.bookies()]
    process = audited(ground)
    assert task_ids(ground) == []

    ground.stop(lost, destroy=True)
    process.audit()
    assert task_ids(ground) == affected
    rows = process.work()

    assert {r.status for r in rows} == {"replicated"}
    told = [row for row in rows if row.action == "task"]
    assert [row.ledger_id for row in sorted(told, key=lambda r: r.ledger_id)] == affected
    assert all("fully replicated" in (row.reason or "") for row in told)
    assert_replicated(ground, *writers)


def test_a_bookie_that_comes_while_ledgers_are_read_and_is_named_at_once_is_not_published(
    ground: Ground,
) -> None:
    """Also not where the ledger lacks another one."""
    writer = written(ground)
    _, *others = writer.metadata.last_fragment.ensemble
    come: list[BookieId] = []

    def join(place: str, operation: str, path: str) -> None:
        if operation == "read_ledger" and not come:
            come.append(ground.add_bookie())
            fragment = Fragment(EntryId(0), (come[0], *others))
            ground.cluster.recreate_by_another_tool(
                LedgerId(writer.ledger_id), replace(writer.metadata, fragments=(fragment,))
            )

    auditor = ground.client(InlineRuntime(), join)

    assert publish_lost_bookies(auditor).marked_ledgers == 0

    come.clear()
    ground.stop(others[0])
    publish_lost_bookies(auditor)
    task = ground.context.store.underreplication.read(LedgerId(writer.ledger_id))
    assert come
    assert there(task).value.missing == (others[0],)


def test_what_is_published_says_who_is_missing_and_since_when(ground: Ground) -> None:
    writer = written(ground)
    lost = victim_of(writer)
    ground.stop(lost)
    Process(ground).audit()

    row = row_of(ground, writer.ledger_id)

    assert row["missing_replicas"] == [lost]
    assert row["marked_at"] is not None
    assert (row["live_copies"], row["attempts"], row["locked_by"]) == (2, 0, None)


def test_a_bookie_that_comes_back_takes_its_tasks_with_it(ground: Ground) -> None:
    writer, lost, process = published(ground)
    ground.start(lost)

    rows = process.work()

    assert [(row.action, row.status) for row in rows] == [("task", "replicated")]
    assert lost in ground.context.store.read_ledger(LedgerId(writer.ledger_id)).value.bookies()
    assert_replicated(ground, writer)


def test_a_bookie_that_was_formatted_again_is_not_back(ground: Ground) -> None:
    writer = written(ground)
    lost = victim_of(writer)
    ground.format(lost)
    process = audited(ground)
    assert task_ids(ground) == [writer.ledger_id]

    process.work()

    assert_replicated(ground, writer)


def test_a_ledger_that_was_deleted_needs_nothing(ground: Ground) -> None:
    writer, _, process = published(ground)
    delete_ledger(ground.context.store, LedgerId(writer.ledger_id))

    rows = process.work()

    assert [(row.action, row.status) for row in rows] == [("task", "gone")]
    assert task_ids(ground) == []


def test_an_empty_ledger_loses_its_dead_bookie(ground: Ground) -> None:
    writer, _, process = published(ground, count=0, destroy=True)

    process.work()

    assert_replicated(ground, writer)


def test_a_worker_beside_a_bookie_copies_to_that_bookie_only(ground: Ground) -> None:
    writers = [written(ground) for _ in range(6)]
    lost = ground.bookie_ids[0]
    local = ground.bookie_ids[1]
    auditor = Process(ground)
    ground.stop(lost, destroy=True)
    auditor.audit()
    before = set(task_ids(ground))

    rows = Process(ground, "beside", local=local).work()

    assert {row.target for row in rows if row.target} <= {local}
    store = ground.context.store
    for ledger_id in before:
        metadata = store.read_ledger(LedgerId(ledger_id)).value
        assert local in metadata.bookies()
    assert set(task_ids(ground)) == {
        w.ledger_id for w in writers if {lost, local} <= w.metadata.bookies()
    }
    for bookie in ground.bookie_ids[2:]:
        Process(ground, f"beside-{bookie}", local=bookie).work()
    assert_replicated(ground, *writers)


def test_of_two_lost_members_a_worker_beside_a_third_bookie_replaces_one(ground: Ground) -> None:
    writer = written(ground)
    first, second, _ = writer.metadata.last_fragment.ensemble
    (local,) = set(ground.bookie_ids) - writer.metadata.bookies()
    other = ground.add_bookie()
    for bookie in (first, second):
        ground.stop(bookie, destroy=True)
    process = audited(ground, local, local=local)

    rows = process.work()

    copies = [(row.source, row.target) for row in rows if row.status is Outcome.REPLICATED]
    assert copies == [(first, local)]
    assert list(ground.context.store.underreplication.locks()) == []
    row = row_of(ground, writer.ledger_id)
    assert (row["attempts"], row["next_try_at"]) == (0, None), "others may go on at once"
    assert f"only {other} can take the fragment from entry 0" in str(row["blocker"])
    assert process.work() == []
    Process(ground, "other", local=other).work()
    assert_replicated(ground, writer)


def test_what_its_own_bookie_refuses_keeps_only_the_worker_beside_it_waiting(
    ground: Ground,
) -> None:
    writer = written(ground)
    (local,) = set(ground.bookie_ids) - writer.metadata.bookies()
    process = Process(ground, local, local=local, runtime=StandingStill())
    ground.stop(victim_of(writer), destroy=True)
    process.audit()
    ground._down.add(local)  # registered, and its disk does not answer

    waits = []
    for _ in range(3):
        assert process.work()[-1].status is Outcome.LEFT
        assert process.work() == [], "it is left alone for a while"
        note = Notes(ground.context.store.registers).read(LedgerId(writer.ledger_id))
        waits.append(round((note.waits_until_ms(local) - process.runtime.wall_ms()) / 1000))
        process.runtime.sleep(waits[-1] + 1)

    assert waits == [10, 20, 40]
    row = row_of(ground, writer.ledger_id)
    note = Notes(ground.context.store.registers).read(LedgerId(writer.ledger_id))
    assert row["attempts"] == 3
    tried_at = row["next_try_at"]
    assert isinstance(tried_at, datetime)
    assert round(tried_at.timestamp() * 1000) == note.waits_until_ms(local), "nobody else runs"
    assert f"{local} did not take it" in str(row["last_error"])
    other = ground.add_bookie()
    second = audited(ground, other, local=other)
    assert row_of(ground, writer.ledger_id)["next_try_at"] is None, "it is the turn of another"
    second.work()
    assert_replicated(ground, writer)


def test_a_worker_that_cannot_recover_a_ledger_of_its_own_bookie_waits_before_it_tries_again(
    ground: Ground,
) -> None:
    writer = written(ground, close=False)
    *lost, local = writer.metadata.last_fragment.ensemble
    config = replace(CONFIG, open_ledger_grace_ms=0)
    process = Process(ground, "beside", local=local, config=config)
    for bookie in lost:
        ground.stop(bookie)
    process.audit()

    rows = process.work()

    assert rows[-1].action == "task"
    assert rows[-1].status == "left"
    note = Notes(ground.context.store.registers).read(LedgerId(writer.ledger_id))
    assert note.next_try_at_ms > process.runtime.wall_ms()
    assert process.work() == []
    assert row_of(ground, writer.ledger_id)["last_error"]


def test_a_task_that_is_marked_again_meanwhile_stays(ground: Ground) -> None:
    writer = written(ground)
    tree = ground.context.store.underreplication
    marked: list[bool] = []

    def mark(place: str, operation: str, path: str) -> None:
        if operation == "remove_task" and not marked:
            marked.append(tree.mark(LedgerId(int(path)), ["10.0.0.9:3181"], 1))

    process = Process(ground, "one", mark)
    ground.stop(victim_of(writer), destroy=True)
    Process(ground, "auditor").audit()

    process.work()
    assert task_ids(ground) == [writer.ledger_id]

    process.work()
    assert_replicated(ground, writer)


def test_a_bookie_that_goes_again_while_its_task_is_taken_away_is_published_again(
    ground: Ground,
) -> None:
    """The task names it already, so that its mark changes nothing."""
    writer = written(ground)
    lost = victim_of(writer)
    auditor = Process(ground, "auditor")
    audits: list[float] = []

    def go_again(place: str, operation: str, path: str) -> None:
        if operation == "remove_task" and not audits:
            ground.stop(lost)
            audits.append(auditor.audit())

    ground.stop(lost)
    auditor.audit()
    ground.start(lost)
    auditor.audit()
    Process(ground, "one", go_again).work()

    assert audits
    assert task_ids(ground) == [writer.ledger_id]
    Process(ground, "two").work()
    assert_replicated(ground, writer)


def test_what_another_worker_has_locked_is_passed_over(ground: Ground) -> None:
    lost = ground.bookie_ids[0]
    writers = written_on(ground, lost, 3)
    process, other = Process(ground), Process(ground, "two")
    ground.stop(lost, destroy=True)
    process.audit()
    locked, *rest = task_ids(ground)
    assert other.context.store.underreplication.lock(LedgerId(locked), Holder("two"))
    assert row_of(ground, locked)["locked_by"] == "two"

    done = {row.ledger_id for row in process.work()}

    assert done == set(rest)
    other.die()  # and its lock with it
    process.work()
    assert_replicated(ground, *writers)


def test_a_round_that_took_not_every_task_says_which_and_why(ground: Ground) -> None:
    writers = written_on(ground, ground.bookie_ids[0], 3)
    opened = written(ground, close=False)
    while ground.bookie_ids[0] not in opened.metadata.bookies():
        opened = written(ground, close=False)
    process, other = Process(ground), Process(ground, "two")
    ground.stop(ground.bookie_ids[0], destroy=True)
    process.audit()
    locked = next(i for i in task_ids(ground) if i != opened.ledger_id)
    assert other.context.store.underreplication.lock(LedgerId(locked), Holder("two"))

    planned = rereplicate(process.context, process.worker, dry_run=True)
    first = rereplicate(process.context, process.worker)
    again = rereplicate(process.context, process.worker)

    (held,) = [row for row in planned.rows if row.ledger_id == locked]
    assert (held.status, "two is at it" in str(held.reason)) == (Outcome.LEFT, True)
    left = {row.ledger_id: row.reason for row in first.rows if row.status is Outcome.LEFT}
    assert left.keys() == {locked, opened.ledger_id}
    assert not first.is_complete
    # It is not the time of the open one yet: that is not the same as nothing to do.
    left = {row.ledger_id: row.reason for row in again.rows if row.status is Outcome.LEFT}
    assert left.keys() == {locked, opened.ledger_id}
    assert "tried again in" in str(left[opened.ledger_id])
    other.die()
    process.runtime.sleep(60)
    assert rereplicate(process.context, process.worker).is_complete
    assert_replicated(ground, *writers)


def test_the_most_endangered_ledger_comes_first(ground: Ground) -> None:
    ground.add_bookie()
    ground.add_bookie()
    lost = ground.bookie_ids[:2]
    writers: list[LedgerWriter] = []
    while not {1, 2} <= {len(set(lost) & w.metadata.bookies()) for w in writers}:
        writers += written_on(ground, lost[0], 1, Quorum(4, 4, 2))
    process = Process(ground)
    for bookie in lost:
        ground.stop(bookie, destroy=True)
    process.audit()

    order = [row.ledger_id for row in process.work() if row.action == "task"]

    copies: dict[int, int] = {w.ledger_id: len(w.metadata.bookies() - set(lost)) for w in writers}
    assert [copies[i] for i in order] == sorted(copies[i] for i in order)
    assert {2, 3} <= {copies[i] for i in order}
    assert_replicated(ground, *writers)


def test_a_bookie_that_is_down_counts_before_anybody_has_published_it(ground: Ground) -> None:
    ground.add_bookie()
    first, second = ground.bookie_ids[:2]
    tree = ground.context.store.underreplication
    writers: list[LedgerWriter] = []
    while {second in writer.metadata.bookies() for writer in writers} != {False, True}:
        writers += [w for w in written_on(ground, first, 1) if first in w.metadata.bookies()]
    for writer in writers:
        tree.mark(LedgerId(writer.ledger_id), [first], 1_000)
    ground.stop(first)
    ground.stop(second)  # within the delay that it has to come back, say

    planned = Process(ground).worker.plan()

    both = {w.ledger_id for w in writers if second in w.metadata.bookies()}
    assert {row.ledger_id for row in planned[: len(both)]} == both
    assert len(planned) == len(writers) > len(both)


def test_among_ledgers_as_endangered_the_oldest_comes_first_and_then_any(ground: Ground) -> None:
    old, *young = written_on(ground, ground.bookie_ids[0], 9)
    lost = victim_of(old)
    ids = [w.ledger_id for w in (old, *young) if lost in w.metadata.bookies()]
    ground.stop(lost)
    tree = ground.context.store.underreplication
    for number in reversed(ids):
        tree.mark(LedgerId(number), [lost], 1_000 if number == old.ledger_id else 2_000)

    orders = {tuple(row.ledger_id for row in Process(ground).worker.plan()) for _ in range(20)}

    assert {order[0] for order in orders} == {old.ledger_id}
    assert all(sorted(order) == sorted(ids) for order in orders)
    assert len(orders) > 5, "workers that begin at once do not meet"


def test_copies_are_made_on_a_rack_that_has_none(ground: Ground) -> None:
    """The other bookie that could take them has the racks of the copies that are left."""
    writer = written(ground)
    first, second, third = writer.metadata.last_fragment.ensemble
    beside, elsewhere = (b for b in (*ground.bookie_ids, ground.add_bookie()) if b not in (
        first, second, third
    ))  # fmt: skip
    for bookie, rack in ((second, "/a"), (third, "/b"), (beside, "/a"), (elsewhere, "/c")):
        ground.start(bookie, rack=rack)
    ground.stop(first, destroy=True)

    audited(ground).work()

    found = ground.context.store.read_ledger(LedgerId(writer.ledger_id))
    assert found.value.last_fragment.ensemble == (elsewhere, second, third)


def test_why_it_is_still_underreplicated_survives_the_worker_that_met_the_trouble(
    ground: Ground,
) -> None:
    writer, lost, process = published(ground, Quorum(4, 4, 2))
    process.work()

    process.die()

    row = row_of(ground, writer.ledger_id)
    assert (row["attempts"], row["live_copies"], row["missing_replicas"]) == (1, 3, [lost])
    needed, unattended = str(row["blocker"]).split("; ")
    assert needed == "a writable bookie outside its ensemble"
    assert unattended == "no replication worker runs: `spark-bookkeeper autorecovery start`"
    assert row["last_error"]
    assert row["next_try_at"]
    assert row["marked_at"]
    assert row["locked_by"] is None, "its lock went with it"
    tree = ground.context.store.underreplication
    assert tree.lock(LedgerId(writer.ledger_id), Holder("another"))
    assert row_of(ground, writer.ledger_id)["locked_by"] == "another"


def test_disabled_nothing_is_published_and_nothing_copied(ground: Ground) -> None:
    writers = [written(ground) for _ in range(3)]
    control = ground.context.store.underreplication
    process = Process(ground)
    ground.stop(victim_of(writers[0]), destroy=True)
    control.disable()
    process.audit()
    assert task_ids(ground) == []
    control.enable()
    process.runtime.sleep(process.audit())  # as one that is new
    process.audit()
    found = task_ids(ground)

    control.disable()
    with pytest.raises(DisabledError, match="autorecovery enable"):
        process.work()
    assert task_ids(ground) == found
    control.enable()
    process.work()
    assert_replicated(ground, *writers)


def disabled_in_the_middle(ground: Ground, ledgers: int) -> tuple[list[LedgerWriter], Process]:
    """A bookie is lost; whoever repairs has autorecovery disabled at the end of each task."""
    writers = written_on(ground, ground.bookie_ids[0], ledgers)

    def disable(place: str, operation: str, path: str) -> None:
        if operation == "remove_task":
            ground.context.store.underreplication.disable()

    ground.stop(ground.bookie_ids[0], destroy=True)
    return writers, audited(ground, "one", disable)


def test_disabled_in_the_middle_what_is_left_is_left(ground: Ground) -> None:
    writers, process = disabled_in_the_middle(ground, 3)
    tree = ground.context.store.underreplication
    before = len(task_ids(ground))
    assert before >= 2

    rows: list[object] = []
    with suppress(DisabledError):
        rows += process.work()

    assert len(task_ids(ground)) == before - 1
    tree.enable()
    assert tree.locks() == {}
    for _ in range(before):
        tree.enable()
        with suppress(DisabledError):
            process.work()
    tree.enable()
    assert_replicated(ground, *writers)


def test_disabled_in_the_middle_a_round_by_hand_tells_what_it_did_and_what_is_left(
    ground: Ground,
) -> None:
    _, process = disabled_in_the_middle(ground, 6)  # more than one batch

    report = rereplicate(process.context, process.worker)

    rows = [row for row in report.rows if row.action == "task"]
    done = {row.ledger_id for row in rows if row.status is Outcome.REPLICATED}
    left = {row.ledger_id for row in rows if row.status is Outcome.LEFT}
    assert done
    assert left == set(task_ids(ground))
    assert all("disabled" in (row.reason or "") for row in rows if row.ledger_id in left)
    with pytest.raises(DisabledError):
        rereplicate(process.context, process.worker)


def test_a_foreign_auditor_that_marks_everything_does_no_harm(ground: Ground) -> None:
    writers = [written(ground) for _ in range(3)]
    before = [ground.context.store.read_ledger(LedgerId(w.ledger_id)) for w in writers]
    for writer in writers:
        ground.context.store.underreplication.mark(
            LedgerId(writer.ledger_id), writer.metadata.last_fragment.ensemble, 1
        )

    rows = Process(ground).work()

    assert {(row.action, row.status) for row in rows} == {("task", "replicated")}
    assert [ground.context.store.read_ledger(LedgerId(w.ledger_id)) for w in writers] == before
    assert_replicated(ground, *writers)


def test_a_replica_that_is_there_and_damaged_is_made_whole_in_place(ground: Ground) -> None:
    writer = written(ground)
    bookie = victim_of(writer)
    damage(ground, bookie)
    ground.context.store.underreplication.mark(LedgerId(writer.ledger_id), [bookie], 1)

    rows = Process(ground).work()

    assert ("copy", "replicated", bookie) in {(r.action, r.status, r.target) for r in rows}
    assert task_ids(ground) == []
    entries = lifecycle.open_ledger(ground.context, writer.ledger_id, b"", None)
    assert len(list(entries.entries())) == 4


def test_a_bookie_that_goes_while_a_worker_works_keeps_the_task(ground: Ground) -> None:
    ground.add_bookie()
    writer = written(ground)
    lost, next_lost, _ = writer.metadata.last_fragment.ensemble

    def lose(place: str, operation: str, path: str) -> None:
        if operation == "write_ledger" and next_lost not in ground._down:
            ground.stop(next_lost, destroy=True)

    process = Process(ground, "one", lose)
    ground.stop(lost, destroy=True)
    Process(ground, "auditor").audit()  # and it does not look again

    process.work()
    assert task_ids(ground) == [writer.ledger_id]
    assert f"{next_lost} went meanwhile" in str(row_of(ground, writer.ledger_id)["last_error"])

    process.runtime.sleep(CONFIG.retry_first_ms / 1000 + 1)
    process.work()
    assert_replicated(ground, writer)


def test_a_replica_that_lacks_most_of_its_entries_is_made_whole_and_not_its_ends_alone(
    ground: Ground,
) -> None:
    """A check that looked at the first and the last entry published it."""
    writer = written(ground, count=10)
    bookie = writer.metadata.last_fragment.ensemble[0]
    for path in ground.files(bookie, "slots"):
        path.unlink()
    tree = ground.context.store.underreplication
    tree.mark(LedgerId(writer.ledger_id), [bookie], ground.context.cluster_ms())

    Process(ground).work()

    assert tree.read(LedgerId(writer.ledger_id)) is None
    client = ground.client(InlineRuntime())
    assert check_ledgers(client, LocalRunner(client), None, 100).is_complete


def test_a_bookie_where_the_ledger_was_deleted_takes_no_copy_and_the_task_stays(
    ground: Ground,
) -> None:
    """Its tombstone says nothing of the ledger, which is there."""
    writer = written(ground)
    lost = victim_of(writer)
    (free,) = set(ground.bookie_ids) - writer.metadata.bookies()
    key = ground.context.ledger(LedgerId(writer.ledger_id))[0].key
    ground.context.bookies.bookie(free).retire(key)
    ground.stop(lost, destroy=True)
    process = audited(ground)

    rows = process.work()

    assert task_ids(ground) == [writer.ledger_id]
    assert [row.status for row in rows if row.action == "copy"] == [Outcome.LEFT]
    assert f"was deleted on bookie {free}" in str(row_of(ground, writer.ledger_id)["last_error"])
    ground.add_bookie()
    process.audit()
    process.runtime.sleep(CONFIG.retry_most_ms / 1000 + 1)
    process.work()
    assert task_ids(ground) == []
    assert_replicated(ground, writer)


def test_a_member_where_the_ledger_was_deleted_is_not_called_whole(ground: Ground) -> None:
    writer = written(ground)
    bookie = victim_of(writer)
    key = ground.context.ledger(LedgerId(writer.ledger_id))[0].key
    ground.context.bookies.bookie(bookie).retire(key)
    for path in ground.files(bookie, "slots"):
        path.unlink()
    tree = ground.context.store.underreplication
    tree.mark(LedgerId(writer.ledger_id), [bookie], ground.context.cluster_ms())

    rows = Process(ground).work()

    assert [row.status for row in rows if row.action == "copy"] == [Outcome.LEFT]
    assert task_ids(ground) == [writer.ledger_id]


def test_a_bookie_that_goes_as_the_task_goes_is_published_also_where_the_note_stays(
    ground: Ground,
) -> None:
    """Nobody else would: an audit that found the task there has published nothing."""
    writer = written(ground)
    first, second, _ = writer.metadata.last_fragment.ensemble
    ledger_id = LedgerId(writer.ledger_id)
    tree, notes = ground.context.store.underreplication, Notes(ground.context.store.registers)
    tree.mark(ledger_id, [first], 1)
    notes.change(ledger_id, lambda note: replace(note, percentage=1))

    def goes(place: str, operation: str, path: str) -> None:
        if operation == "remove_task":
            tree.mark(ledger_id, [first], 2)
            ground.stop(second)
        if operation == "delete_register":
            raise MetadataUnavailableError("no answer")

    rows = Process(ground, "one", goes).work()

    assert there(tree.read(ledger_id)).value.missing == (second,)
    assert [row.reason for row in rows] == [f"{second} went meanwhile"]


def test_a_lock_whose_release_failed_is_released_also_while_it_is_disabled(ground: Ground) -> None:
    writer = written(ground)
    failing = [True]

    def silent(_place: str, operation: str, _path: str) -> None:
        if operation == "unlock" and failing:
            raise MetadataUnavailableError("no answer")

    ground.stop(writer.metadata.last_fragment.ensemble[0])
    process = audited(ground, "one", silent)
    process.work()
    tree = ground.context.store.underreplication
    assert list(tree.locks()) == [writer.ledger_id]
    failing.clear()
    tree.disable()

    with pytest.raises(DisabledError):
        process.work()

    assert list(tree.locks()) == []
