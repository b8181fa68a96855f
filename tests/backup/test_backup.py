"""A cluster, a log or a ledger in a directory, and back: the same bytes under the same ids."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from spark_bookkeeper.backup.folder import BackupFolder
from spark_bookkeeper.backup.forgetting import forget_restores
from spark_bookkeeper.backup.restoring import restore
from spark_bookkeeper.backup.saving import BackupReport, backup
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.deletion import delete_ledger
from spark_bookkeeper.cluster.collection import Collection, collect_garbage
from spark_bookkeeper.cluster.diagnosis import Diagnosis
from spark_bookkeeper.cluster.restored import restore_diagnoses
from spark_bookkeeper.errors import (
    BookieFullError,
    EntryUnreadableError,
    InvalidArgumentError,
    LedgerExistsError,
    NoSuchLedgerError,
    NoSuchLogError,
)
from spark_bookkeeper.logs import truncation
from spark_bookkeeper.logs.logs import create_log, open_log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.metadata import restores
from spark_bookkeeper.metadata.consumers import Consumer, consumers, publish
from spark_bookkeeper.metadata.update import update_ledger
from spark_bookkeeper.protocol.archive import archived_of
from spark_bookkeeper.protocol.collection import COLLECTED, being_removed, with_collection
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.log import Position
from spark_bookkeeper.protocol.metadata import DigestType, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.check_ledgers import check_ledgers
from spark_bookkeeper.replication.report import Outcome, Row
from spark_bookkeeper.replication.runner import Item, LocalRunner, Progress, Result, Step
from spark_bookkeeper.testing.ground import Ground, InlineRuntime, KillAt, Killed
from spark_bookkeeper.testing.lake import (
    archive,
    bytes_ledger,
    entries_of,
    metadata_of,
    release,
    rows_ledger,
)
from spark_bookkeeper.testing.memory_store import MemoryStore

ItemT = TypeVar("ItemT", bound=Item)
ResultT = TypeVar("ResultT", bound=Result)

FORMS: list[dict[str, Any]] = [
    {"digest_type": digest_type, "password": b"secret", "compression": compression}
    for digest_type, compression in zip(DigestType, ("zstd", None, "lz4", None), strict=True)
]


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path / "old", runtime=InlineRuntime())


@pytest.fixture
def empty(tmp_path: Path) -> Ground:
    """Another cluster, with more bookies."""
    return Ground(tmp_path / "new", bookies=5, runtime=InlineRuntime())


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "backup")


def run(
    job: Callable[..., BackupReport],
    context: ClientContext,
    folder: str,
    *args: Any,
    **options: Any,
) -> BackupReport:
    return job(context, LocalRunner(context), folder, *args, **options)


def without_lac(entries: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Every copy that is made says what was confirmed when it was made."""
    return [(*entry[:2], *entry[3:]) for entry in entries]


def statuses(report: BackupReport) -> set[Outcome]:
    return {row.status for row in report.rows}


def a_log(ground: Ground, name: str = "orders") -> list[bytes]:
    log = create_log(ground.context, name, LogOptions(Quorum(3, 2, 2)))
    with log.become_writer() as writer:
        for number in range(9):
            writer.append(b"%d" % number)
            if number % 3 == 2:
                writer.roll()
    return [entry.payload for entry in log.entries()]


def test_every_form_of_ledger_comes_back_byte_for_byte(
    ground: Ground, empty: Ground, folder: str
) -> None:
    rows = pa.table({"id": [1, None, 3], "text": ["a", "b", None]})
    ledgers = [bytes_ledger(ground, 7, Quorum(4, 2, 1), **form) for form in FORMS]
    ledgers += [rows_ledger(ground, rows, **form) for form in FORMS]
    ledgers.append(bytes_ledger(ground, 0, labels={"name": b"empty", "x": b"\xff"}))
    before = [without_lac(entries_of(ground.context, i)) for i in ledgers]

    saved = run(backup, ground.context, folder)
    report = run(restore, empty.context, folder)

    assert statuses(saved) == {Outcome.SAVED}
    assert statuses(report) == {Outcome.RESTORED}
    assert [without_lac(entries_of(empty.client(), i)) for i in ledgers] == before
    for ledger_id in ledgers:
        old, new = metadata_of(ground, ledger_id), metadata_of(empty, ledger_id)
        for name in ("quorum", "state", "digest_type", "password", "ctime_ms", "length_bytes"):
            assert getattr(old, name) == getattr(new, name)
        kept = {k: v for k, v in old.custom_metadata.items() if "incarnations" not in k}
        assert kept.items() <= new.custom_metadata.items()
    checked = check_ledgers(empty.context, LocalRunner(empty.context), None, percentage=100)
    assert checked.is_complete


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
    log = open_log(ground.context, "orders")
    ledgers = log.ledgers()
    life = open_log(ground.context, "orders")._nonce
    position = Position(ledgers[1], EntryId(1))
    publish(ground.context.store.registers, "orders", Consumer("etl", life, position, 1))
    bytes_ledger(ground)  # not of the log

    run(backup, ground.context, folder, log="orders")
    report = run(restore, empty.context, folder)

    assert report.is_complete, report.unfinished
    again = open_log(empty.context, "orders")
    assert again.ledgers() == ledgers
    assert [entry.payload for entry in again.entries()] == payloads
    places = [[(e.ledger_id, e.entry_id) for e in each.entries()] for each in (again, log)]
    assert places[0] == places[1]
    (consumer,) = consumers(empty.context.store.registers, "orders", life)
    assert consumer.position == position
    with again.become_writer() as writer:
        place = writer.append(b"next")
    assert place.ledger_id > ledgers[-1]
    assert [entry.payload for entry in again.entries()] == [*payloads, b"next"]
    assert len(list(empty.context.store.ledger_ids())) == len(again.ledgers())
    assert run(restore, empty.context, folder).is_complete  # and what was added stays
    assert [entry.payload for entry in again.entries()] == [*payloads, b"next"]


def test_a_whole_cluster_has_its_logs(ground: Ground, empty: Ground, folder: str) -> None:
    expected = {name: a_log(ground, name) for name in ("clicks", "orders")}

    run(backup, ground.context, folder)
    run(restore, empty.context, folder)

    for name, payloads in expected.items():
        log = open_log(empty.context, name)
        assert [entry.payload for entry in log.entries()] == payloads


def test_a_released_ledger_is_saved_from_its_table_and_restored_to_bookies(
    ground: Ground, empty: Ground, folder: str, tmp_path: Path
) -> None:
    ledger_id = bytes_ledger(ground)
    before = without_lac(entries_of(ground.context, ledger_id))
    archive(ground.context, tmp_path / "lake", [ledger_id])
    release(ground.context, tmp_path / "lake", [ledger_id], keep=0)

    run(backup, ground.context, folder)
    run(restore, empty.context, folder)

    assert without_lac(entries_of(empty.context, ledger_id)) == before
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
    assert without_lac(entries_of(empty.context, ledger_id)) == without_lac(
        entries_of(ground.context, ledger_id)
    )


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
    assert (own.status, "it was there already" in str(own.reason)) == (Outcome.RESTORED, True)
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
    ground: Ground,
    empty: Ground,
    folder: str,
    is_rule_out: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if is_rule_out:
        monkeypatch.setattr(restores, "is_under_way", lambda *_: False)
    ledger_id = bytes_ledger(ground, 7)
    before = without_lac(entries_of(ground.context, ledger_id))
    run(backup, ground.context, folder)

    report = restore(empty.context, _CollectingRunner(empty.context), folder)

    assert statuses(report) == {Outcome.RESTORED}
    if is_rule_out:
        with pytest.raises(EntryUnreadableError):
            entries_of(empty.client(), ledger_id)
        return
    assert without_lac(entries_of(empty.client(), ledger_id)) == before
    assert not empty.context.store.registers.names(restores.RESTORES_PARENT)
    delete_ledger(empty.context, ledger_id)
    collected = collect_garbage(empty.context, wish=Collection())
    assert {row.status for row in collected.rows} == {Outcome.DELETED}


# Part after part


def test_logs_are_restored_one_after_the_other(ground: Ground, empty: Ground, folder: str) -> None:
    names = ("clicks", "orders", "visits")
    expected = {name: a_log(ground, name) for name in names}
    single = bytes_ledger(ground)
    run(backup, ground.context, folder)

    for name in ("visits", "clicks", "orders"):  # the last ids first
        report = run(restore, empty.context, folder, log=name)
        assert report.is_complete, report.unfinished
    other = bytes_ledger(empty)
    assert run(restore, empty.context, folder, [single]).is_complete

    for name in names:
        log = open_log(empty.context, name)
        assert [entry.payload for entry in log.entries()] == expected[name]
        with log.become_writer() as writer:
            writer.append(b"next")
        assert log.ledgers() == sorted(log.ledgers())
    assert other not in ground.context.store.ledger_ids()


def test_a_kept_id_has_one_life(ground: Ground, empty: Ground, folder: str) -> None:
    single = bytes_ledger(ground)
    a_log(ground)
    run(backup, ground.context, folder)
    run(restore, empty.context, folder, log="orders")
    with pytest.raises(LedgerExistsError):
        lifecycle.create_ledger(empty.context, Quorum(3, 3, 2), ledger_id=single)
    assert run(restore, empty.context, folder, [single]).is_complete

    delete_ledger(empty.context, single)

    (row,) = run(restore, empty.context, folder, [single]).rows
    assert row.status is Outcome.LEFT
    assert f"has used ledger id {single} before" in str(row.reason)
    assert "empty cluster" in str(row.reason)


def test_an_id_that_the_cluster_has_used_is_said_before_anything_is_copied(
    ground: Ground, empty: Ground, folder: str
) -> None:
    ledger_id = bytes_ledger(ground)
    run(backup, ground.context, folder)
    delete_ledger(empty.context, bytes_ledger(empty))
    collect_garbage(empty.context, wish=Collection())

    for dry_run in (True, False):
        (row,) = run(restore, empty.context, folder, dry_run=dry_run).rows
        assert (row.ledger_id, row.status) == (ledger_id, Outcome.LEFT)
        assert "has used ledger id" in str(row.reason)
    assert not any(empty.files(bookie) for bookie in empty.bookie_ids)


def test_a_dry_run_tells_what_a_run_would_leave(
    ground: Ground, empty: Ground, folder: str, tmp_path: Path
) -> None:
    whole, half = bytes_ledger(ground), bytes_ledger(ground)
    a_log(ground)
    run(backup, ground.context, folder)
    (copy,) = Path(folder).glob(f"ledgers/{half}-*/copies/*.arrow")
    copy.unlink()

    report = run(restore, empty.context, folder, dry_run=True)

    said = {row.ledger_id: row for row in report.rows}
    assert said[whole].status is Outcome.PLANNED
    assert said[half].status is Outcome.LEFT
    assert "--verify" in str(said[half].reason)
    assert "log 'orders'" in str(report.rows[-1].reason)
    small = Ground(tmp_path / "small", bookies=2, runtime=InlineRuntime())
    assert statuses(run(restore, small.context, folder, [whole], dry_run=True)) == {Outcome.LEFT}


# Given up


def abandoned(ground: Ground, empty: Ground, folder: str) -> int:
    """A restore that died when the copies of its ledger were there."""
    ledger_id = bytes_ledger(ground, 7)
    run(backup, ground.context, folder)

    def kill(place: str, operation: str, path: str) -> None:
        if operation == "create_ledger":
            raise Killed

    dying = empty.client(None, kill)
    with pytest.raises(Killed):
        run(restore, dying, folder)
    dying.store.close()
    return ledger_id


def restore_findings(ground: Ground) -> list[Diagnosis]:
    return list(restore_diagnoses(ground.client()))


def test_a_restore_that_is_given_up_is_collected(
    ground: Ground, empty: Ground, folder: str
) -> None:
    ledger_id = abandoned(ground, empty, folder)
    (found,) = restore_findings(empty)
    assert (found.verdict, "--forget" in str(found.remedy)) == ("warning", True)
    kept = collect_garbage(empty.context, wish=Collection())
    assert {row.status for row in kept.rows} == {Outcome.LEFT}

    plan = forget_restores(empty.context, dry_run=True)
    report = forget_restores(empty.context, [LedgerId(ledger_id)])

    assert statuses(plan) == {Outcome.PLANNED}
    assert statuses(report) == {Outcome.NO_LONGER_NEEDED}
    assert [row.bytes for row in report.rows] == [row.bytes for row in plan.rows]
    collected = collect_garbage(empty.context, wish=Collection())
    assert {row.status for row in collected.rows} == {Outcome.DELETED}
    for row in report.rows:
        assert row.bytes == sum(r.bytes for r in collected.rows if r.source == row.source) > 0
    assert not any(empty.files(bookie) for bookie in empty.bookie_ids)
    assert not restore_findings(empty)
    assert not forget_restores(empty.context).rows
    with pytest.raises(InvalidArgumentError, match="no restore of ledger"):
        forget_restores(empty.context, [LedgerId(ledger_id)])


def test_giving_up_that_is_killed_at_any_step_is_repeated(
    ground: Ground, empty: Ground, folder: str
) -> None:
    abandoned(ground, empty, folder)
    for number in range(100):
        dying = empty.client(None, KillAt(number))
        try:
            forget_restores(dying)
        except Killed:
            dying.store.close()
            collect_garbage(empty.client(), wish=Collection())
            continue
        break
    assert number > 5

    assert not restores.begun(empty.context.store.registers)
    collect_garbage(empty.context, wish=Collection())
    assert not any(empty.files(bookie) for bookie in empty.bookie_ids)


def test_nothing_is_restored_while_restores_are_given_up(
    ground: Ground, empty: Ground, folder: str
) -> None:
    bytes_ledger(ground)
    run(backup, ground.context, folder)
    other = empty.client()

    with (
        restores.giving_up(other.store.ballots, "me", other.runtime),
        pytest.raises(InvalidArgumentError, match="being given up"),
    ):
        run(restore, empty.context, folder)

    assert run(restore, empty.context, folder).is_complete


def test_a_ledger_that_is_whole_stays_when_its_restore_is_forgotten(
    ground: Ground, empty: Ground, folder: str
) -> None:
    ledger_id = bytes_ledger(ground, 7)
    run(backup, ground.context, folder)
    run(restore, empty.context, folder)
    nonce = metadata_of(empty, ledger_id).nonce
    restores.begin(empty.context.store.registers, LedgerId(ledger_id), nonce or b"")

    report = forget_restores(empty.context)

    assert statuses(report) == {Outcome.RESTORED}
    collect_garbage(empty.context, wish=Collection())
    assert without_lac(entries_of(empty.client(), ledger_id)) == without_lac(
        entries_of(ground.context, ledger_id)
    )


class _ForgettingRunner(LocalRunner):
    """When the copies are there, and the metadata are not, somebody gives the restore up."""

    def run(
        self, step: Step[ItemT, ResultT], items: Sequence[ItemT], progress: Progress
    ) -> Iterator[ResultT]:
        results = list(super().run(step, items, progress))
        (found,) = restore_diagnoses(self._context)
        assert (found.verdict, "under way by" in found.detail) == ("ok", True)
        for dry_run in (True, False):
            with pytest.raises(InvalidArgumentError, match="a restore runs"):
                forget_restores(self._context, dry_run=dry_run)
        assert isinstance(self._context.store, MemoryStore)
        self._context.store.expire()  # the restore is cut off for so long that it counts as ended
        forget_restores(self._context)
        collect_garbage(self._context, wish=Collection())
        yield from results


@pytest.mark.parametrize("is_rule_out", [False, True])
def test_restore_given_up_a_restore_that_goes_on_makes_no_ledger_without_copies(
    ground: Ground,
    empty: Ground,
    folder: str,
    is_rule_out: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if is_rule_out:
        monkeypatch.setattr(MemoryStore, "use_up_ledger_id", lambda *_: None)
    ledger_id = bytes_ledger(ground, 7)
    run(backup, ground.context, folder)

    report = restore(empty.context, _ForgettingRunner(empty.context), folder)

    if is_rule_out:
        with pytest.raises(EntryUnreadableError):
            entries_of(empty.client(), ledger_id)
        return
    assert statuses(report) == {Outcome.LEFT}
    with pytest.raises(NoSuchLedgerError):
        empty.context.store.read_ledger(LedgerId(ledger_id))
    assert not restores.begun(empty.context.store.registers)


# Killed


def killed_at(directory: Path, number: int, which: str) -> bool:
    """Kill one of both jobs before an operation, repeat, and compare; whether it was killed."""
    ground = Ground(directory / "old", runtime=InlineRuntime())
    a_log(ground)
    ids = list(ground.context.store.ledger_ids())
    before = {i: without_lac(entries_of(ground.context, i)) for i in ids}
    empty = Ground(directory / "new", runtime=InlineRuntime())
    folder = str(directory / "backup")
    was_killed = False
    for job, target in ((backup, ground), (restore, empty)):
        if job.__name__ == which:
            try:
                run(job, target.client(None, KillAt(number)), folder)
            except Killed:
                was_killed = True
            collect_garbage(target.client(), wish=Collection())
        assert run(job, target.client(), folder).is_complete
    assert {i: without_lac(entries_of(empty.client(), i)) for i in ids} == before
    payloads = [entry.payload for entry in open_log(empty.context, "orders").entries()]
    assert payloads == [b"%d" % number for number in range(9)]
    return was_killed


@pytest.mark.parametrize("which", ["backup", "restore"])
def test_killed_at_some_steps_and_repeated_it_is_whole(tmp_path: Path, which: str) -> None:
    for number in range(3, 90, 29):
        killed_at(tmp_path / str(number), number, which)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["backup", "restore"])
def test_killed_at_any_step_and_repeated_it_is_whole(tmp_path: Path, which: str) -> None:
    number = 0
    while killed_at(tmp_path / str(number), number, which):
        number += 1
    assert number > 30
