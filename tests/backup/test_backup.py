"""A cluster, a log or a ledger in a directory, and back: the same bytes under the same ids."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from spark_bookkeeper.agent.collection import Collection, collect_garbage
from spark_bookkeeper.backup.folder import BackupFolder
from spark_bookkeeper.backup.restoring import restore
from spark_bookkeeper.backup.saving import BackupReport, backup
from spark_bookkeeper.backup.saving_entries import runs_of
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.deletion import delete_ledger
from spark_bookkeeper.errors import (
    BookieFullError,
    EntryUnreadableError,
    InvalidArgumentError,
    NoSuchLogError,
)
from spark_bookkeeper.logs import truncation
from spark_bookkeeper.logs.logs import create_log, open_log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.metadata import restores
from spark_bookkeeper.metadata.update import update_ledger
from spark_bookkeeper.protocol.archive import archived_of
from spark_bookkeeper.protocol.collection import COLLECTED, being_removed, with_collection
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.metadata import LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.report import Outcome, Row
from spark_bookkeeper.replication.runner import ItemT, LocalRunner, Progress, ResultT, Step
from spark_bookkeeper.testing.ground import Ground
from tests.backup.clusters import (
    FORMS,
    a_log,
    assert_came_back,
    assert_log_came_back,
    contents,
    killed_at,
    run,
    statuses,
)
from tests.support.lake import (
    archive,
    bytes_ledger,
    entries_of,
    metadata_of,
    release,
    rows_ledger,
)
from tests.support.rows import wait_for_every_copy


def test_every_form_of_ledger_comes_back_byte_for_byte(
    ground: Ground, empty: Ground, folder: str
) -> None:
    rows = pa.table({"id": [1, None, 3], "text": ["a", "b", None]})
    ledgers = [bytes_ledger(ground, 7, Quorum(4, 2, 1), **form) for form in FORMS]
    ledgers += [rows_ledger(ground, rows, **form) for form in FORMS]
    ledgers.append(bytes_ledger(ground, 0, labels={"name": b"empty", "x": b"\xff"}))
    before = contents(ground, ledgers)

    saved = run(backup, ground.context, folder)
    report = run(restore, empty.context, folder)

    assert statuses(saved) == {Outcome.SAVED}
    assert statuses(report) == {Outcome.RESTORED}
    assert contents(empty, ledgers) == before
    assert_came_back(ground, empty, ledgers)


def test_how_far_it_is_is_told_in_both_directions(
    ground: Ground, empty: Ground, folder: str
) -> None:
    a_log(ground)
    told: list[tuple[str, int, int]] = []

    def tell(phase: str, done: int, total: int, size_bytes: int) -> None:
        told.append((phase, done, total))

    run(backup, ground.context, folder, progress=tell)
    run(restore, empty.context, folder, progress=tell)

    assert {phase: (done, total) for phase, done, total in told} == {
        "copying ledgers": (3, 3),  # the fourth has no entries
        "restoring ledgers": (3, 3),
        "passing over the ids of restored ledgers": (4, 4),
    }


class _NamingRunner(LocalRunner):
    """Notes what each item would be called if it took long, and of which job it is."""

    names: set[tuple[str | None, str]]

    def run(
        self, step: Step[ItemT, ResultT], items: Sequence[ItemT], progress: Progress
    ) -> Iterator[ResultT]:
        self.names = {(step.job, item.name()) for item in items}
        return super().run(step, items, progress)


def test_what_takes_long_has_a_name_in_both_directions(
    ground: Ground, empty: Ground, folder: str
) -> None:
    ledger_id = bytes_ledger(ground)
    runners = _NamingRunner(ground.context), _NamingRunner(empty.context)

    backup(ground.context, runners[0], folder)
    restore(empty.context, runners[1], folder)

    for job, runner in zip(("backup", "restore"), runners, strict=True):
        assert runner.names == {(job, f"ledger {ledger_id} from entry 0")}


def test_a_second_run_copies_only_what_is_new(ground: Ground, folder: str) -> None:
    first = bytes_ledger(ground)
    run(backup, ground.context, folder)
    second = bytes_ledger(ground, 3)

    report = run(backup, ground.context, folder)

    assert {row.ledger_id: row.entries for row in report.rows} == {first: 0, second: 3}
    assert BackupFolder(ground.context, folder).snapshots.numbers() == [1, 2]


def test_an_open_ledger_is_saved_up_to_its_lac_and_goes_on(
    ground: Ground, empty: Ground, folder: str
) -> None:
    writer = lifecycle.create_ledger(ground.context, Quorum(3, 3, 2))
    for number in range(5):
        writer.append(b"%d" % number)
    wait_for_every_copy(writer)
    first = run(backup, ground.context, folder)
    writer.append(b"5")
    writer.close()

    assert [(row.entries, "last add confirmed" in str(row.reason)) for row in first.rows] == [
        (4, True)
    ]
    report = run(restore, empty.context, folder, snapshot=1)
    assert "closed at entry 3" in str(report.rows[0].reason)
    restored = metadata_of(empty, writer.ledger_id)
    assert (restored.state, restored.last_entry_id) == (LedgerState.CLOSED, 3)
    assert [r.entries for r in run(backup, ground.context, folder).rows] == [2]


def test_a_log_comes_back_with_positions_and_consumers_and_is_written_on(
    ground: Ground, empty: Ground, folder: str
) -> None:
    payloads = a_log(ground)
    bytes_ledger(ground)  # not of the log

    run(backup, ground.context, folder, log="orders")
    report = run(restore, empty.context, folder)

    assert report.is_complete, report.unfinished
    assert_log_came_back(ground, empty, payloads)
    again = open_log(empty.context, "orders")
    assert len(list(empty.context.store.ledger_ids())) == len(again.ledgers())
    assert run(restore, empty.context, folder).is_complete  # and what was added stays
    assert [entry.payload for entry in again.entries()] == [*payloads, b"next"]


def test_a_released_ledger_is_saved_from_its_table_and_restored_to_bookies(
    ground: Ground, empty: Ground, folder: str, tmp_path: Path
) -> None:
    ledger_id = bytes_ledger(ground)
    before = contents(ground, [ledger_id])
    archive(ground.context, tmp_path / "lake", [ledger_id])
    release(ground.context, tmp_path / "lake", [ledger_id], keep=0)

    run(backup, ground.context, folder)
    run(restore, empty.context, folder)

    assert contents(empty, [ledger_id]) == before
    restored = metadata_of(empty, ledger_id)
    assert archived_of(restored) is None
    assert len(restored.bookies()) == 3


def test_what_was_being_removed_in_the_old_cluster_keeps_no_bookie_of_the_new_one_from_copies(
    ground: Ground, empty: Ground, folder: str
) -> None:
    ledger_id = bytes_ledger(ground)
    unnamed = next(
        b for b in ground.bookie_ids if b not in metadata_of(ground, ledger_id).bookies()
    )
    update_ledger(
        ground.context.store,
        ledger_id,
        lambda old: with_collection(old, unnamed, "incarnation", "of one that was killed"),
    )
    assert being_removed(metadata_of(ground, ledger_id), [unnamed])

    run(backup, ground.context, folder)
    run(restore, empty.context, folder)

    restored = metadata_of(empty, ledger_id)
    assert COLLECTED not in restored.custom_metadata
    assert being_removed(restored, [unnamed]) == {}


def test_what_was_deleted_since_is_not_in_the_newest_snapshot(
    ground: Ground, empty: Ground, folder: str
) -> None:
    kept, deleted = bytes_ledger(ground), bytes_ledger(ground)
    run(backup, ground.context, folder)
    delete_ledger(ground.context, deleted)
    run(backup, ground.context, folder)

    run(restore, empty.context, folder)

    assert list(empty.context.store.ledger_ids()) == [kept]


def test_a_restore_says_which_snapshot_it_takes_and_what_an_older_one_has_besides(
    ground: Ground, empty: Ground, folder: str
) -> None:
    named, other = bytes_ledger(ground), bytes_ledger(ground)
    whole = run(backup, ground.context, folder)
    part = run(backup, ground.context, folder, [named])

    plan = run(restore, empty.context, folder, dry_run=True)
    report = run(restore, empty.context, folder)
    older = run(restore, empty.context, folder, snapshot=1)

    assert (whole.snapshot, whole.remark) == (1, "snapshot 1, which has 2 ledgers")
    assert part.snapshot == 2
    assert "a restore takes it" in str(part.remark)
    said = "snapshot 2, which has 1 ledger (snapshot 1 has 2, of which this one lacks 1)"
    assert plan.remark == report.remark == said
    assert report.totals()["snapshot"] == 2
    assert (older.snapshot, older.remark) == (1, "snapshot 1, which has 2 ledgers")
    assert set(empty.context.store.ledger_ids()) == {named, other}


def test_two_runs_at_once_have_a_snapshot_each(ground: Ground, empty: Ground, folder: str) -> None:
    named, other = bytes_ledger(ground), bytes_ledger(ground)
    run(backup, ground.context, folder, dry_run=True)
    others: list[BackupReport] = []

    def meanwhile(place: str, operation: str, path: str) -> None:
        # The other run ends between this one's look at the numbers and its snapshot.
        if path.startswith("snapshots/") and operation == "put_if_absent" and not others:
            others.append(run(backup, ground.client(), folder, [other]))

    report = run(backup, ground.client(None, meanwhile), folder, [named])

    assert [each.snapshot for each in others] == [1]
    assert report.snapshot == 2
    assert BackupFolder(ground.context, folder).snapshots.numbers() == [1, 2]
    assert {row.ledger_id for row in run(restore, empty.context, folder).rows} == {named}
    assert run(restore, empty.context, folder, snapshot=1).is_complete
    assert set(empty.context.store.ledger_ids()) == {named, other}


def test_a_run_that_found_nothing_puts_no_snapshot(
    ground: Ground, empty: Ground, folder: str
) -> None:
    run(backup, ground.context, folder)  # an empty cluster
    with pytest.raises(InvalidArgumentError, match="found something to save"):
        run(restore, empty.context, folder)
    bytes_ledger(ground)
    run(backup, ground.context, folder)

    report = run(backup, ground.context, folder, [LedgerId(12)])

    assert statuses(report) == {Outcome.GONE}
    assert (report.snapshot, report.remark) == (None, None)
    assert BackupFolder(ground.context, folder).snapshots.numbers() == [1]


# What goes wrong


def test_another_ledger_of_that_id_is_left_alone(
    ground: Ground, empty: Ground, folder: str
) -> None:
    bytes_ledger(ground)
    run(backup, ground.context, folder)
    other = bytes_ledger(empty, 2)
    before = metadata_of(empty, other)

    (row,) = run(restore, empty.context, folder).rows

    assert row.status is Outcome.LEFT
    assert "another ledger 0" in str(row.reason)
    assert metadata_of(empty, other) == before


def test_a_backup_is_of_one_cluster(ground: Ground, empty: Ground, folder: str) -> None:
    bytes_ledger(ground)
    run(backup, ground.context, folder)

    empty.cluster.instance_id = "another"
    for dry_run in (True, False):
        with pytest.raises(InvalidArgumentError, match="is of cluster"):
            run(backup, empty.context, folder, dry_run=dry_run)
    with pytest.raises(InvalidArgumentError, match="is no backup"):
        run(restore, empty.context, f"{folder}-none")
    with pytest.raises(InvalidArgumentError, match="no snapshot 7: it has snapshot 1"):
        run(restore, empty.context, folder, snapshot=7)


def full(*places: str) -> Callable[[str, str, str], None]:
    """A hook: there is no room left at these places."""

    def hook(place: str, operation: str, path: str) -> None:
        if place in places and operation in ("put_if_absent", "create", "write"):
            raise BookieFullError(f"bookie {place}: no space left", bookie_id=place)

    return hook


def test_without_room_it_says_where_and_goes_on_when_there_is_some(
    ground: Ground, empty: Ground, folder: str
) -> None:
    first = bytes_ledger(ground)
    run(backup, ground.context, folder)
    second = bytes_ledger(ground)

    rows = run(backup, ground.client(None, full(folder)), folder).rows
    assert [(row.ledger_id, row.status) for row in rows] == [
        (first, Outcome.SAVED),
        (second, Outcome.LEFT),
        (-1, Outcome.LEFT),
    ]
    assert f"no room for it in {folder}" in str(rows[1].reason)
    assert "make room there" in str(rows[1].reason)
    assert BackupFolder(ground.context, folder).snapshots.numbers() == [1]
    assert run(backup, ground.client(), folder).is_complete

    report = run(restore, empty.client(None, full(*empty.bookie_ids)), folder)
    assert statuses(report) == {Outcome.LEFT}
    assert all("repeat the restore" in str(row.reason) for row in report.rows)
    assert run(restore, empty.client(), folder).is_complete


def test_a_place_that_cannot_be_written_is_refused(ground: Ground, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for uri in (str(tmp_path / "file"), str(tmp_path / "file" / "below")):
        for dry_run in (True, False):
            with pytest.raises(InvalidArgumentError, match=uri):
                run(backup, ground.context, uri, dry_run=dry_run)


def test_a_plan_for_a_directory_that_may_not_be_written_is_refused(
    ground: Ground, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)

    with pytest.raises(InvalidArgumentError, match="Permission denied"):
        run(backup, ground.context, folder, dry_run=True)


def test_a_directory_with_something_else_is_refused(ground: Ground, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "diary.txt").write_text("dear")

    for dry_run in (True, False):
        with pytest.raises(InvalidArgumentError, match=r"diary\.txt"):
            run(backup, ground.context, str(tmp_path / "home"), dry_run=dry_run)


def test_damage_in_a_backup_is_found_and_mended_from_the_cluster(
    ground: Ground, empty: Ground, folder: str
) -> None:
    ledger_id = bytes_ledger(ground)
    run(backup, ground.context, folder)
    (copy,) = Path(folder).glob("ledgers/*/copies/*.arrow")
    data = bytearray(copy.read_bytes())
    at = data.index(b"entry 19")
    data[at] ^= 1
    copy.write_bytes(data)

    (row,) = run(restore, empty.context, folder).rows
    assert row.status is Outcome.LEFT
    assert "cannot be read from the backup" in str(row.reason)
    (mended,) = run(backup, ground.context, folder, verify=True).rows
    assert mended.entries > 0

    assert run(restore, empty.context, folder).is_complete
    assert contents(empty, [ledger_id]) == contents(ground, [ledger_id])


def test_a_damaged_snapshot_is_refused_and_an_earlier_one_taken(
    ground: Ground, empty: Ground, folder: str
) -> None:
    bytes_ledger(ground)
    run(backup, ground.context, folder)
    run(backup, ground.context, folder)
    newest = max(Path(folder).glob("snapshots/*.arrow"))
    newest.write_bytes(newest.read_bytes()[:-1])

    with pytest.raises(InvalidArgumentError, match="damaged"):
        run(restore, empty.context, folder)
    assert run(restore, empty.context, folder, snapshot=1).is_complete


def test_a_plan_changes_nothing(ground: Ground, empty: Ground, folder: str) -> None:
    bytes_ledger(ground)

    assert statuses(run(backup, ground.context, folder, dry_run=True)) == {Outcome.PLANNED}
    assert not Path(folder).exists()
    run(backup, ground.context, folder)
    assert statuses(run(restore, empty.context, folder, dry_run=True)) == {Outcome.PLANNED}
    assert list(empty.context.store.ledger_ids()) == []


def test_a_plan_of_a_restore_knows_the_logs_that_are_there(
    ground: Ground, empty: Ground, folder: str
) -> None:
    a_log(ground)
    run(backup, ground.context, folder)

    def of_log(cluster: Ground) -> Row:
        plan = run(restore, cluster.context, folder, dry_run=True)
        (row,) = [row for row in plan.rows if row.action == "restore log"]
        return row

    own = of_log(ground)
    assert (own.status, "it was there already" in str(own.reason)) == (Outcome.THERE_ALREADY, True)
    assert of_log(empty).status is Outcome.PLANNED
    create_log(empty.context, "orders", LogOptions(Quorum(3, 3, 2)))
    other = of_log(empty)
    assert (other.status, "another log of that name" in str(other.reason)) == (Outcome.LEFT, True)
    truncation.delete(ground.context, "orders")
    gone = of_log(ground)
    assert (gone.status, "was deleted here" in str(gone.reason)) == (Outcome.LEFT, True)
    assert "log delete" not in str(gone.reason)


def test_a_log_of_which_the_backup_lacks_a_ledger_is_not_restored(
    ground: Ground, empty: Ground, folder: str
) -> None:
    a_log(ground)
    first = min(ground.context.store.ledger_ids())
    for bookie in metadata_of(ground, first).bookies():
        ground.stop(bookie)
    saved = run(backup, ground.client(), folder)
    assert not saved.is_complete

    planned = run(restore, empty.context, folder, dry_run=True)
    report = run(restore, empty.context, folder)

    for each in (planned, report):
        (of_log,) = [row for row in each.rows if row.action == "restore log"]
        assert of_log.status is Outcome.LEFT
        assert f"ledger {first} is not in this snapshot" in str(of_log.reason)
    with pytest.raises(NoSuchLogError):
        open_log(empty.context, "orders")


class _CollectingRunner(LocalRunner):
    """Garbage is collected when the copies are there, and the metadata are not."""

    def run(
        self, step: Step[ItemT, ResultT], items: Sequence[ItemT], progress: Progress
    ) -> Iterator[ResultT]:
        results = list(super().run(step, items, progress))
        collect_garbage(self._context, wish=Collection())
        yield from results


@pytest.mark.parametrize("is_rule_out", [False, True])
def test_gc_restored_copies_without_metadata_are_no_garbage_while_they_are_restored(
    ground: Ground, empty: Ground, folder: str, is_rule_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_rule_out:
        monkeypatch.setattr(restores, "is_under_way", lambda *_: False)
    ledger_id = bytes_ledger(ground, 7)
    before = contents(ground, [ledger_id])
    run(backup, ground.context, folder)

    report = restore(empty.context, _CollectingRunner(empty.context), folder)

    assert statuses(report) == {Outcome.RESTORED}
    if is_rule_out:
        with pytest.raises(EntryUnreadableError):
            entries_of(empty.client(), ledger_id)
        return
    assert contents(empty, [ledger_id]) == before
    assert not empty.context.store.registers.names(restores.RESTORES_PARENT)
    delete_ledger(empty.context, ledger_id)
    collected = collect_garbage(empty.context, wish=Collection())
    assert {row.status for row in collected.rows} == {Outcome.DELETED}


# Killed


def killed(ground: Ground, numbers: Iterable[int], which: str) -> int:
    def save(context: ClientContext, place: Path) -> BackupReport:
        return run(backup, context, str(place))

    def back(context: ClientContext, place: Path) -> BackupReport:
        return run(restore, context, str(place))

    return killed_at(ground, numbers, which, save, back)


@pytest.mark.parametrize("which", ["backup", "restore"])
def test_killed_at_some_step_and_repeated_it_is_whole(ground: Ground, which: str) -> None:
    assert killed(ground, [40], which) == 1


@pytest.mark.slow
@pytest.mark.parametrize("which", ["backup", "restore"])
def test_killed_at_any_step_and_repeated_it_is_whole(ground: Ground, which: str) -> None:
    assert killed(ground, count(), which) > 30


def test_ids_are_told_as_ranges_however_many_there_are() -> None:
    found = [list(runs_of(ids)) for ids in ([], [3], [1, 2, 5, 7, 8], range(10**12))]

    assert found == [[], [(3, 3)], [(1, 2), (5, 5), (7, 8)], [(0, 10**12 - 1)]]
