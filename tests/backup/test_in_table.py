"""A cluster in a Delta table and the directory beside it, and back: nothing is different."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_bookkeeper.backup import restoring_entries
from spark_bookkeeper.backup.folder import BackupFolder, beside_table
from spark_bookkeeper.backup.in_table import CLOCKS_MS
from spark_bookkeeper.backup.restoring import restore
from spark_bookkeeper.backup.saving import BackupReport, backup
from spark_bookkeeper.backup.snapshot import HEADER_KEY, decode_snapshot, encode_snapshot
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.delta import proof
from spark_bookkeeper.delta.archive import ArchiveReport
from spark_bookkeeper.errors import BookieUnavailableError, BookKeeperError, InvalidArgumentError
from spark_bookkeeper.logs.logs import open_log
from spark_bookkeeper.metadata.update import update_ledger
from spark_bookkeeper.protocol.accepted_loss import accepted_loss_of
from spark_bookkeeper.protocol.archive import archived_of
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.check_ledgers import check_ledgers
from spark_bookkeeper.replication.report import Outcome, Row
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.table.rows import TableRows
from spark_bookkeeper.testing.ground import TABLE, Ground, InlineRuntime, Killed
from tests.backup.clusters import (
    FORMS,
    a_log,
    assert_came_back,
    assert_log_came_back,
    contents,
    in_directory,
    in_table,
    killed_at,
    of,
    put_back,
    reads_of_bookies,
    refused,
)
from tests.client.test_accepted_loss import recovered
from tests.client.test_recovery import half_written
from tests.support.lake import (
    archive,
    bytes_ledger,
    metadata_of,
    release,
    rows_ledger,
    save_in_table,
)
from tests.support.rows import wait_for_every_copy
from tests.worlds import Losing, failing

NULLS = [None, 1, None]


COLUMNS = {
    "bool": pa.array([True, None, False]),
    "small": pa.array(NULLS, pa.int8()),
    "unsigned": pa.array([65535, None, 0], pa.uint16()),
    "float": pa.array([1.5, None, float("nan")], pa.float32()),
    "text": pa.array(["", None, "ö"]),
    "large": pa.array(["a", None, "b"], pa.large_string()),
    "at": pa.array(NULLS, pa.timestamp("us", "UTC")),
    "decimal": pa.array(NULLS, pa.decimal128(20, 3)),
    "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": None}]),
    "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    "nested": pa.array([[{"a": [1, 2]}], None, [None]]),
}


# There and back


def test_every_form_of_ledger_comes_back_byte_for_byte(
    ground: Ground, empty: Ground, lake: Path
) -> None:
    rows = pa.table({"first": [1, 2, 3], **COLUMNS})
    taken = [bytes_ledger(ground, 7, Quorum(4, 2, 1), **form) for form in FORMS]
    taken += [rows_ledger(ground, rows, **form) for form in FORMS]
    finest = pa.table({"fine": pa.array([1_001], pa.timestamp("ns", "UTC"))})
    others = [
        rows_ledger(ground, finest),  # Delta has microseconds
        rows_ledger(ground, pa.table({"first": ["another type"]})),
        rows_ledger(ground, pa.table({"_entry_id": [1]})),
    ]
    without = bytes_ledger(ground, 0, labels={"name": b"empty", "x": b"\xff"})
    everything = [*taken, *others, without]
    before = contents(ground, everything)

    saved = save_in_table(ground.client(), lake)
    report = put_back(empty, lake)

    assert {row.status for row in saved.rows} == {Outcome.SAVED}, saved.rows
    assert {row.status for row in report.rows} == {Outcome.RESTORED}, report.rows
    assert {row.ledger_id for row in saved.rows if row.target == str(lake)} == set(taken)
    assert in_directory(lake) == set(others)
    for ledger_id in others:
        assert "does not stand for it" in str(of(saved, ledger_id).reason)
    assert "'fine'" in str(of(saved, others[0]).reason)
    assert contents(empty, everything) == before
    assert_came_back(ground, empty, everything)


@pytest.mark.full
def test_ledgers_and_a_log_by_name(ground: Ground, empty: Ground, lake: Path) -> None:
    """The end of the log is open, and its last entry not yet known to be confirmed."""
    payloads = a_log(ground)
    single, other = bytes_ledger(ground), bytes_ledger(ground)
    log = open_log(ground.context, "orders")
    with log.become_writer() as writer:
        for number in range(3):
            writer.append(b"open %d" % number)
        *_, opened = log.ledgers()

        assert save_in_table(ground.client(), lake, [single]).snapshot == 1
        assert save_in_table(ground.client(), lake, None, "orders").snapshot == 2

    assert set(in_table(lake)) == {single, *log.ledgers()[:3]}
    assert in_directory(lake) == {opened}
    assert put_back(empty, lake, snapshot=1).is_complete
    assert other not in empty.context.store.ledger_ids()
    assert put_back(empty, lake, log="orders").is_complete
    assert_log_came_back(ground, empty, [*payloads, b"open 0", b"open 1"])
    with pytest.raises(InvalidArgumentError, match=f"no ledger {other}"):
        put_back(empty, lake, ledger_ids=[other])


def test_a_second_run_adds_only_what_is_new_and_reads_nothing_again(
    ground: Ground, empty: Ground, lake: Path
) -> None:
    first = [bytes_ledger(ground) for _ in range(3)]
    finest = rows_ledger(ground, pa.table({"fine": pa.array([1_001], pa.timestamp("ns"))}))
    save_in_table(ground.client(), lake)
    version = DeltaTable(str(lake)).version()
    ground.forget()

    again = save_in_table(ground.client(), lake)

    assert {row.entries for row in again.rows} == {0}
    assert reads_of_bookies(ground) == 0
    assert not any(s.path.endswith(".parquet") for s in ground.steps if s.place == TABLE)
    assert DeltaTable(str(lake)).version() == version, "the table is not asked to take anything"
    assert of(again, finest).reason == "in the directory beside the table, as before"
    planned = save_in_table(ground.client(), lake, dry_run=True).rows
    assert {row.ledger_id for row in planned if row.target == str(lake)} == set(first)
    second = bytes_ledger(ground, 3)

    report = save_in_table(ground.client(), lake)

    assert {row.ledger_id: row.entries for row in report.rows if row.entries} == {second: 3}
    assert in_table(lake) == {**dict.fromkeys(first, 20), finest: 3, second: 3}
    assert beside_table(ground.context, str(lake)).snapshots.numbers() == [1, 2, 3]
    assert put_back(empty, lake).is_complete
    everything = [*first, finest, second]
    assert contents(empty, everything) == contents(ground, everything)


def test_a_ledger_that_was_open_goes_into_the_table_when_it_is_closed(
    ground: Ground, empty: Ground, lake: Path
) -> None:
    writer = lifecycle.create_ledger(ground.context, Quorum(3, 3, 2))
    for number in range(5):
        writer.append(b"%d" % number)
    wait_for_every_copy(writer)
    first = save_in_table(ground.client(), lake)
    assert in_directory(lake) == {writer.ledger_id}
    writer.append(b"5")
    writer.close()

    second = save_in_table(ground.client(), lake)

    assert "last add confirmed" in str(of(first, writer.ledger_id).reason)
    assert in_table(lake) == {writer.ledger_id: 6}
    assert (of(second, writer.ledger_id).entries, of(second, writer.ledger_id).reason) == (6, None)
    assert put_back(empty, lake, snapshot=1).is_complete
    assert metadata_of(empty, writer.ledger_id).last_entry_id == 3


def test_many_small_ledgers_cost_as_many_reads_of_the_table_as_one(tmp_path: Path) -> None:
    costs = {}
    for ledgers in (1, 6):
        ground = Ground(tmp_path / f"old {ledgers}", runtime=InlineRuntime())
        empty = Ground(tmp_path / f"new {ledgers}", runtime=InlineRuntime())
        for _ in range(ledgers):
            bytes_ledger(ground, 3)
        save_in_table(ground.client(), tmp_path / f"lake {ledgers}")

        assert put_back(empty, tmp_path / f"lake {ledgers}").is_complete

        costs[ledgers] = Counter(
            step.operation
            for step in empty.steps
            if step.place == TABLE and step.path.endswith(".parquet")
        )
    assert costs[6] == costs[1]


def lose(ground: Ground, ledger_id: LedgerId) -> None:
    """All copies of a ledger."""
    found = [
        path
        for bookie in ground.bookie_ids
        for path in ground.root(bookie).rglob("*")
        if path.is_file() and f"/{ledger_id}-" in str(path)
    ]
    assert found
    for path in found:
        path.unlink()


def test_a_ledger_is_known_however_many_snapshots_of_others_there_are_since(
    ground: Ground, empty: Ground, lake: Path
) -> None:
    lost, other = bytes_ledger(ground), bytes_ledger(ground)
    before = contents(ground, [lost, other])
    save_in_table(ground.client(), lake)
    for _ in range(6):
        save_in_table(ground.client(), lake, [other])
    lose(ground, lost)

    report = save_in_table(ground.client(), lake)

    assert report.is_complete, report.unfinished
    assert of(report, lost).target == str(lake)
    assert put_back(empty, lake).is_complete
    assert contents(empty, [lost, other]) == before


def test_snapshots_that_are_older_than_a_ledger_are_not_searched_for_it(
    ground: Ground, lake: Path
) -> None:
    old = bytes_ledger(ground)
    save_in_table(ground.client(), lake)
    for _ in range(5):
        save_in_table(ground.client(), lake, [old])
    ground.runtime.sleep(3 * CLOCKS_MS / 1000)
    new = bytes_ledger(ground)
    ground.forget()

    save_in_table(ground.client(), lake, [new])

    searched = [s for s in ground.steps if "snapshots/" in s.path and s.path.endswith(".arrow")]
    assert sum(step.operation == "read" for step in searched) == 1


# What passes


def in_directory_by_newest(ground: Ground, lake: Path) -> set[int]:
    """The ledgers for which the table does not stand, by the newest snapshot."""
    _, taken = beside_table(ground.context, str(lake)).snapshots.read()
    return {each.ledger_id for each in taken.ledgers if each.index is None}


@pytest.mark.parametrize("is_known", [False, True])
def test_a_table_that_cannot_be_read_now_ends_the_run_and_sends_nothing_into_the_directory(
    ground: Ground, lake: Path, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers = {bytes_ledger(ground) for _ in range(2)}
    if is_known:
        save_in_table(ground.client(), lake)
    before = beside_table(ground.context, str(lake)).snapshots.numbers()

    def fail(*_: object) -> None:
        raise BookieUnavailableError("the bucket answers 503", bookie_id="archive-x:1")

    with monkeypatch.context() as patch:
        patch.setattr(TableRows, "files_of_each", fail)
        with pytest.raises(BookieUnavailableError, match="503"):
            save_in_table(ground.client(), lake)
    assert beside_table(ground.context, str(lake)).snapshots.numbers() == before
    assert in_directory(lake) == set()

    report = save_in_table(ground.client(), lake)

    assert {row.ledger_id for row in report.rows if row.target == str(lake)} == ledgers


def test_so_many_ledgers_are_proven_together_at_the_most(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "BATCH_LEDGERS", 2)
    ledgers = [ground.context.ledger(bytes_ledger(ground, 1))[0] for _ in range(5)]

    assert [len(batch) for batch in proof.batches_to_prove(ledgers)] == [2, 2, 1]


@pytest.mark.parametrize(
    "phase",
    [
        "reading it back from the table",
        pytest.param("comparing with the table", marks=pytest.mark.full),
    ],
)
def test_what_tasks_that_failed_left_out_is_saved_and_goes_into_the_table_later(
    ground: Ground, empty: Ground, lake: Path, phase: str
) -> None:
    ledgers = {bytes_ledger(ground) for _ in range(2)}
    context = ground.client()

    first = save_in_table(context, lake, runner=Losing(context, phase, "the executor was lost"))
    assert in_directory_by_newest(ground, lake) == ledgers
    second = save_in_table(ground.client(), lake)

    assert first.is_complete, first.unfinished
    assert all("asked again by the next run: the executor" in str(r.reason) for r in first.rows)
    assert {row.ledger_id for row in second.rows if row.target == str(lake)} == ledgers
    assert in_directory_by_newest(ground, lake) == set()
    for number in (1, 2):
        new = Ground(empty.directory / str(number), bookies=5, runtime=InlineRuntime())
        assert put_back(new, lake, snapshot=number).is_complete
        assert contents(new, sorted(ledgers)) == contents(ground, sorted(ledgers))


def test_what_the_archive_did_not_come_to_goes_into_the_table_later(
    ground: Ground, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger_id = bytes_ledger(ground)

    def conflict(*_: object) -> ArchiveReport:
        reason = "others changed the table five times meanwhile"
        rows = (Row(ledger_id, "archive", Outcome.LEFT, reason),)
        return ArchiveReport("archive_to_delta", rows)

    with monkeypatch.context() as patch:
        patch.setattr("tests.support.lake._add", conflict)
        first = save_in_table(ground.client(), lake)

    assert (first.is_complete, of(first, ledger_id).target) == (True, None)
    assert of(save_in_table(ground.client(), lake), ledger_id).target == str(lake)


def test_a_release_that_cannot_read_the_table_advises_no_other_one(
    ground: Ground, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, unknown = bytes_ledger(ground), bytes_ledger(ground)
    archive(ground.context, lake, [known])

    def fail(*_: object) -> None:
        raise BookieUnavailableError("the bucket answers 503", bookie_id="archive-x:1")

    with monkeypatch.context() as patch:
        patch.setattr(TableRows, "files_of_each", fail)
        (row,) = release(ground.client(), lake, [known])
    assert (row.status, row.reason) == (
        Outcome.LEFT,
        "the bucket answers 503. Nothing was released",
    )
    (row,) = release(ground.client(), lake, [unknown])
    assert str(row.reason).endswith("it is to be archived first. Nothing was released")
    rows = DeltaTable(str(lake)).to_pyarrow_table()
    write_deltalake(str(lake), rows.slice(1), mode="overwrite")
    (row,) = release(ground.client(), lake, [known])
    assert str(row.reason).endswith("Nothing was released: archive it to another table")


def test_a_restore_that_goes_on_verifies_what_is_there_once(
    ground: Ground, empty: Ground, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers = [bytes_ledger(ground, 3) for _ in range(2)]
    save_in_table(ground.client(), lake)
    context = empty.client(None, failing("create_ledger", Killed))
    with pytest.raises(Killed):
        restore(context, LocalRunner(context), str(lake))
    asked: Counter[LedgerId] = Counter()
    real = restoring_entries._lacking

    def counted(context: ClientContext, ledger: Ledger, *range_: int) -> Any:
        asked[ledger.ledger_id] += 1
        return real(context, ledger, *range_)

    monkeypatch.setattr(restoring_entries, "_lacking", counted)

    assert put_back(empty, lake).is_complete

    assert asked == dict.fromkeys(ledgers, 1)
    assert contents(empty, ledgers) == contents(ground, ledgers)


# Beside other uses of the table


def test_ledgers_that_are_archived_and_backed_up_are_in_the_table_once(
    ground: Ground, empty: Ground, lake: Path
) -> None:
    ledgers = [bytes_ledger(ground) for _ in range(3)]
    archive(ground.context, lake, ledgers[:2])

    assert save_in_table(ground.client(), lake).is_complete

    assert in_table(lake) == dict.fromkeys(ledgers, 20)
    release(ground.context, lake, ledgers, keep=1)
    assert put_back(empty, lake).is_complete
    assert contents(empty, ledgers) == contents(ground, ledgers)


@pytest.mark.parametrize("where", [pytest.param("lake", marks=pytest.mark.full), "other lake"])
def test_a_released_cluster_is_saved_from_its_table(
    ground: Ground, empty: Ground, tmp_path: Path, where: str
) -> None:
    ledgers = [bytes_ledger(ground) for _ in range(2)]
    before = contents(ground, ledgers)
    archive(ground.context, tmp_path / "lake", ledgers)
    release(ground.context, tmp_path / "lake", ledgers, keep=0)

    saved = save_in_table(ground.client(), tmp_path / where)

    assert saved.is_complete, saved.unfinished
    assert {row.target for row in saved.rows} == {str(tmp_path / where)}
    assert in_table(tmp_path / where) == dict.fromkeys(ledgers, 20)
    if where != "lake":
        shutil.rmtree(tmp_path / "lake")
    assert put_back(empty, tmp_path / where).is_complete
    assert contents(empty, ledgers) == before
    assert not any(archived_of(metadata_of(empty, ledger_id)) for ledger_id in ledgers)


def test_a_ledger_with_an_accepted_hole_comes_back_with_its_mark(
    tmp_path: Path, empty: Ground, lake: Path
) -> None:
    """A table lists every entry, so it is in the directory beside it."""
    ground = Ground(tmp_path / "seven", bookies=7, runtime=InlineRuntime())
    writer = half_written(ground, Quorum(5, 3, 2), 1, [2, 3])
    for bookie in writer.metadata.last_fragment.ensemble[1:3]:
        ground.format(bookie)  # all that had entry 1
    loss = accepted_loss_of(recovered(ground, writer).custom_metadata)
    bytes_ledger(ground)  # the table has one

    reports = [
        save_in_table(ground.client(), lake),
        save_in_table(ground.client(), lake, verify=True),
        put_back(empty, lake, dry_run=True),
        put_back(empty, lake),
    ]
    (kept,) = release(ground.client(), lake, [writer.ledger_id])

    rows = [of(report, writer.ledger_id) for report in reports]
    assert [str(row.status) for row in rows] == ["saved", "saved", "planned", "restored"]
    assert {row.reason for row in rows} == {str(loss)}
    assert [row.entries for row in rows] == [2, 0, 2, 2]
    assert (str(loss) in str(kept.reason), "1..1 may be missing" in str(loss)) == (True, True)
    assert accepted_loss_of(metadata_of(empty, writer.ledger_id).custom_metadata) == loss
    client = empty.client()
    assert check_ledgers(client, LocalRunner(client), None, 100).is_complete


def test_a_ledger_of_which_bookies_lost_all_copies_stays_in_the_backup(
    ground: Ground, empty: Ground, lake: Path
) -> None:
    ledger_id = bytes_ledger(ground)
    before = contents(ground, [ledger_id])
    save_in_table(ground.client(), lake)
    for bookie in ground.bookie_ids:
        ground.stop(bookie, destroy=True)

    for verify in (False, True):
        assert save_in_table(ground.client(), lake, verify=verify).is_complete

    assert put_back(empty, lake).is_complete
    assert contents(empty, [ledger_id]) == before


# What goes wrong


def test_a_run_that_was_cancelled_puts_no_snapshot_and_is_repeated(
    ground: Ground, empty: Ground, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bytes_ledger(ground)

    def cancelled(*_: object) -> None:
        raise BookKeeperError("archiving was cancelled")

    with monkeypatch.context() as patch:
        patch.setattr("tests.support.lake._add", cancelled)
        with pytest.raises(BookKeeperError, match="was cancelled"):
            save_in_table(ground.client(), lake)
    with pytest.raises(InvalidArgumentError, match="no run ended"):
        put_back(empty, lake)

    assert save_in_table(ground.client(), lake).is_complete
    assert put_back(empty, lake).is_complete


def test_metadata_that_say_another_length_are_told(ground: Ground, lake: Path) -> None:
    ledger_id = bytes_ledger(ground)
    update_ledger(ground.context.store, ledger_id, lambda old: replace(old, length_bytes=1_000_000))

    (row,) = save_in_table(ground.client(), lake).rows

    assert row.status is Outcome.DAMAGED
    assert "1000000 bytes" in str(row.reason)


def test_a_plan_changes_nothing(ground: Ground, empty: Ground, lake: Path) -> None:
    closed = bytes_ledger(ground)
    opened = lifecycle.create_ledger(ground.context, Quorum(3, 3, 2)).ledger_id

    plan = save_in_table(ground.client(), lake, dry_run=True)

    assert not lake.exists()
    assert {row.ledger_id: row.target for row in plan.rows} == {closed: str(lake), opened: None}
    save_in_table(ground.client(), lake)
    assert {row.status for row in put_back(empty, lake, dry_run=True).rows} == {Outcome.PLANNED}
    assert not list(empty.context.store.ledger_ids())


def test_without_room_beside_the_table_nothing_is_said_to_be_saved(
    ground: Ground, lake: Path
) -> None:
    """The rows are in the table then, and the next run finds them."""
    bytes_ledger(ground)

    def kill(place: str, operation: str, path: str) -> None:
        if path.startswith("snapshots/") and path.endswith(".arrow"):
            raise Killed

    with pytest.raises(Killed):
        save_in_table(ground.client(None, kill), lake)
    version = DeltaTable(str(lake)).version()

    assert save_in_table(ground.client(), lake).snapshot == 2
    assert DeltaTable(str(lake)).version() == version


# Snapshots


def as_format(number: int, data: bytes) -> bytes:
    """A snapshot as another version writes it; 1 had no ``index``."""
    table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
    header = json.loads(table.schema.metadata[HEADER_KEY])
    told = {HEADER_KEY: json.dumps({**header, "format": number}).encode()}
    if number == 1:
        table = table.drop_columns(["index"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema.with_metadata(told)) as writer:
        writer.write_table(table.replace_schema_metadata(told))
    return bytes(memoryview(sink.getvalue()))


def test_snapshots_of_the_version_before_are_read(ground: Ground, tmp_path: Path) -> None:
    ledger_id = bytes_ledger(ground)
    backup(ground.context, LocalRunner(ground.context), str(tmp_path / "plain"))
    _, snapshot = BackupFolder(ground.context, str(tmp_path / "plain")).snapshots.read()
    data = encode_snapshot(snapshot)

    assert decode_snapshot(data) == decode_snapshot(as_format(1, data)) == snapshot
    assert [(each.ledger_id, each.index) for each in snapshot.ledgers] == [(ledger_id, None)]
    assert "format 3, and this version knows 1 to 2" in refused(
        lambda: decode_snapshot(as_format(3, data))
    )


# Killed


def killed(ground: Ground, numbers: Iterable[int], which: str) -> int:
    """Of a ledger too that the table does not take; each row of the others is there once."""
    rows_ledger(ground, pa.table({"fine": pa.array([1_001], pa.timestamp("ns"))}))

    def back(context: ClientContext, lake: Path) -> BackupReport:
        found = DeltaTable(str(lake)).to_pyarrow_table(columns=["_ledger_id", "_entry_id", "_row"])
        places = list(zip(*found.to_pydict().values(), strict=True))
        assert len(set(places)) == len(places)
        return restore(context, LocalRunner(context), str(lake))

    return killed_at(ground, numbers, which, save_in_table, back)


@pytest.mark.parametrize(("which", "number"), [("backup", 121), ("restore", 40)])
def test_killed_at_some_step_and_repeated_it_is_whole(
    ground: Ground, which: str, number: int
) -> None:
    assert killed(ground, [number], which) == 1


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("which", "first", "step"),
    [
        pytest.param("backup", 0, 2, marks=pytest.mark.slow),
        pytest.param("backup", 1, 2, marks=pytest.mark.exhaustive),
        pytest.param("restore", 0, 1, marks=pytest.mark.slow),
    ],
)
def test_killed_at_any_step_and_repeated_it_is_whole(
    ground: Ground, which: str, first: int, step: int
) -> None:
    assert killed(ground, count(first, step), which) > 60 // step
