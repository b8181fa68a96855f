"""A cluster in a Delta table and the directory beside it, and back: nothing is different."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_bookkeeper.backup import restoring_entries
from spark_bookkeeper.backup.folder import BESIDE_TABLE, BackupFolder, beside_table
from spark_bookkeeper.backup.in_table import CLOCKS_MS
from spark_bookkeeper.backup.restoring import restore
from spark_bookkeeper.backup.saving import BackupReport, backup
from spark_bookkeeper.backup.snapshot import HEADER_KEY, decode_snapshot, encode_snapshot
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.read.fetch import Fetcher
from spark_bookkeeper.cluster.collection import Collection, collect_garbage
from spark_bookkeeper.delta import backup_table, proof
from spark_bookkeeper.delta.archive import OWNER, ArchiveReport, check_place
from spark_bookkeeper.errors import (
    BookieUnavailableError,
    BookKeeperError,
    InvalidArgumentError,
)
from spark_bookkeeper.logs.logs import create_log, open_log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.metadata.consumers import Consumer, consumers, publish
from spark_bookkeeper.metadata.update import update_ledger
from spark_bookkeeper.protocol.archive import archived_of
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.log import Position
from spark_bookkeeper.protocol.metadata import DigestType
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.check_ledgers import check_ledgers
from spark_bookkeeper.replication.report import Outcome, Row
from spark_bookkeeper.replication.runner import Failure, ItemT, LocalRunner, Progress, ResultT, Step
from spark_bookkeeper.table import table_bookie
from spark_bookkeeper.table.rows import TableRows
from spark_bookkeeper.testing.ground import TABLE, Ground, InlineRuntime, KillAt, Killed
from spark_bookkeeper.testing.lake import (
    archive,
    bytes_ledger,
    entries_of,
    metadata_of,
    release,
    rows_ledger,
    save_in_table,
)

FORMS: list[dict[str, Any]] = [
    {"digest_type": digest_type, "password": b"secret", "compression": compression}
    for digest_type, compression in zip(DigestType, ("zstd", None, "lz4", None), strict=True)
]

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


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path / "old", runtime=InlineRuntime())


@pytest.fixture
def empty(tmp_path: Path) -> Ground:
    """Another cluster, with more bookies."""
    return Ground(tmp_path / "new", bookies=5, runtime=InlineRuntime())


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Where a table will be."""
    return tmp_path / "lake"


def put_back(ground: Ground, place: Path | str, **options: Any) -> BackupReport:
    context = ground.client()
    return restore(context, LocalRunner(context), str(place), **options)


def contents(ground: Ground, ledger_ids: Sequence[LedgerId]) -> list[list[tuple[Any, ...]]]:
    """Of ledgers, without what was confirmed when a copy was made: each says its own."""
    context = ground.client()
    return [[(*e[:2], *e[3:]) for e in entries_of(context, i)] for i in ledger_ids]


def beside(lake: Path) -> Path:
    return lake / BESIDE_TABLE


def in_directory(lake: Path) -> set[int]:
    """The ledgers of which there are copies beside the table."""
    return {int(path.name.partition("-")[0]) for path in beside(lake).glob("ledgers/*")}


def in_table(lake: Path) -> Counter[int]:
    """The rows that the table has of each ledger."""
    return Counter(
        DeltaTable(str(lake)).to_pyarrow_table(columns=["_ledger_id"])["_ledger_id"].to_pylist()
    )


def optimize(lake: Path) -> None:
    DeltaTable(str(lake)).optimize.compact()


def vacuum(lake: Path) -> None:
    DeltaTable(str(lake)).vacuum(0, enforce_retention_duration=False, dry_run=False)


def of(report: BackupReport, ledger_id: int) -> Row:
    (row,) = [row for row in report.rows if row.ledger_id == ledger_id]
    return row


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
    for ledger_id in everything:
        old, new = metadata_of(ground, ledger_id), metadata_of(empty, ledger_id)
        for name in ("quorum", "state", "digest_type", "password", "ctime_ms", "length_bytes"):
            assert getattr(old, name) == getattr(new, name)
        kept = {k: v for k, v in old.custom_metadata.items() if "incarnations" not in k}
        assert kept.items() <= new.custom_metadata.items()
    checked = check_ledgers(empty.context, LocalRunner(empty.context), None, percentage=100)
    assert checked.is_complete


def a_log(ground: Ground) -> list[bytes]:
    """Three ledgers and some entries of a fourth, with a consumer."""
    log = create_log(ground.context, "orders", LogOptions(Quorum(3, 2, 2)))
    with log.become_writer() as writer:
        for number in range(9):
            writer.append(b"%d" % number)
            if number % 3 == 2:
                writer.roll()
    position = Position(log.ledgers()[1], EntryId(1))
    life = open_log(ground.context, "orders")._nonce
    publish(ground.context.store.registers, "orders", Consumer("etl", life, position, 1))
    return [entry.payload for entry in log.entries()]


def test_a_log_with_an_open_end_comes_back_with_positions_and_consumers(
    ground: Ground, empty: Ground, lake: Path
) -> None:
    payloads = a_log(ground)
    log = open_log(ground.context, "orders")
    with log.become_writer() as writer:
        for number in range(3):
            writer.append(b"open %d" % number)
        opened = log.ledgers()[-1]

        saved = save_in_table(ground.client(), lake)
        report = put_back(empty, lake)

    assert saved.is_complete, saved.unfinished
    assert report.is_complete, report.unfinished
    assert in_directory(lake) == {opened}
    again = open_log(empty.context, "orders")
    expected = [*payloads, b"open 0", b"open 1"]
    assert [entry.payload for entry in again.entries()] == expected
    assert again.ledgers() == log.ledgers()
    places = [[(e.ledger_id, e.entry_id) for e in each.entries()] for each in (log, again)]
    assert places[0][: len(expected)] == places[1]
    (consumer,) = consumers(empty.context.store.registers, "orders", log._nonce)
    assert consumer.position == Position(log.ledgers()[1], EntryId(1))
    with again.become_writer() as writer:
        assert writer.append(b"next").ledger_id > opened


def test_ledgers_and_a_log_by_name(ground: Ground, empty: Ground, lake: Path) -> None:
    payloads = a_log(ground)
    single, other = bytes_ledger(ground), bytes_ledger(ground)

    assert save_in_table(ground.client(), lake, [single]).snapshot == 1
    assert save_in_table(ground.client(), lake, None, "orders").snapshot == 2

    assert set(in_table(lake)) == {single, *open_log(ground.context, "orders").ledgers()[:3]}
    assert put_back(empty, lake, snapshot=1).is_complete
    assert other not in empty.context.store.ledger_ids()
    assert put_back(empty, lake, log="orders").is_complete
    assert [e.payload for e in open_log(empty.context, "orders").entries()] == payloads
    with pytest.raises(InvalidArgumentError, match=f"no ledger {other}"):
        put_back(empty, lake, ledger_ids=[other])


def reads_of_bookies(ground: Ground) -> int:
    """Of files that have entries."""
    wanted = ("/parts/", "/slots/", "/copies/")
    return sum(
        step.operation.startswith("read") and any(kind in step.path for kind in wanted)
        for step in ground.steps
        if step.place in ground.bookie_ids
    )


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
    first = save_in_table(ground.client(), lake)
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
    for count in (1, 12):
        ground = Ground(tmp_path / f"old {count}", runtime=InlineRuntime())
        empty = Ground(tmp_path / f"new {count}", runtime=InlineRuntime())
        for _ in range(count):
            bytes_ledger(ground, 3)
        save_in_table(ground.client(), tmp_path / f"lake {count}")

        assert put_back(empty, tmp_path / f"lake {count}").is_complete

        costs[count] = Counter(
            step.operation
            for step in empty.steps
            if step.place == TABLE and step.path.endswith(".parquet")
        )
    assert costs[12] == costs[1]


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


class Failing(LocalRunner):
    """Of whose first step of a name every task fails."""

    def __init__(self, context: ClientContext, phase: str) -> None:
        super().__init__(context)
        self.phase = phase

    def run(
        self, step: Step[ItemT, ResultT], items: Sequence[ItemT], progress: Progress
    ) -> Iterator[ResultT]:
        if step.phase == self.phase:
            return iter([step.failed(item, Failure("the executor was lost")) for item in items])
        return super().run(step, items, progress)


def test_so_many_ledgers_are_proven_together_at_the_most(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "BATCH_LEDGERS", 2)
    ledgers = [ground.context.ledger(bytes_ledger(ground, 1))[0] for _ in range(5)]

    assert [len(batch) for batch in proof.batches_to_prove(ledgers)] == [2, 2, 1]


@pytest.mark.parametrize("phase", ["comparing with the table", "reading it back from the table"])
def test_what_tasks_that_failed_left_out_is_saved_and_goes_into_the_table_later(
    ground: Ground, empty: Ground, lake: Path, phase: str
) -> None:
    ledgers = {bytes_ledger(ground) for _ in range(2)}
    context = ground.client()

    first = save_in_table(context, lake, runner=Failing(context, phase))
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
        patch.setattr("spark_bookkeeper.testing.lake._add", conflict)
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

    def kill(place: str, operation: str, path: str) -> None:
        if operation == "create_ledger":
            raise Killed

    context = empty.client(None, kill)
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


# Whatever happens to the table


def test_it_is_restored_after_optimize_and_vacuum(
    ground: Ground, empty: Ground, lake: Path
) -> None:
    ledgers = [bytes_ledger(ground) for _ in range(3)]
    for ledger_id in ledgers:
        save_in_table(ground.client(), lake, [ledger_id])
    save_in_table(ground.client(), lake)
    before = set(lake.glob("*.parquet"))
    optimize(lake)
    vacuum(lake)

    report = put_back(empty, lake)

    assert not before & set(lake.glob("*.parquet"))
    assert report.is_complete, report.unfinished
    assert contents(empty, ledgers) == contents(ground, ledgers)


def test_files_that_were_rewritten_are_noted_by_the_next_run_which_asks_no_bookie(
    ground: Ground, empty: Ground, lake: Path
) -> None:
    ledgers = [bytes_ledger(ground) for _ in range(3)]
    for ledger_id in ledgers:
        save_in_table(ground.client(), lake, [ledger_id])
    save_in_table(ground.client(), lake)
    optimize(lake)
    ground.forget()

    report = save_in_table(ground.client(), lake)

    assert {row.entries for row in report.rows} == {0}
    assert reads_of_bookies(ground) == 0
    assert [len(list(lake.glob(f"_spark_bookkeeper/{i}-*/*.arrow"))) for i in ledgers] == [2] * 3
    vacuum(lake)
    empty.forget()
    assert put_back(empty, lake).is_complete
    missed = [s.path for s in empty.steps if s.place == TABLE and s.path.endswith(".parquet")]
    assert {path for path in missed if not (lake / path).exists()} == set()
    assert contents(empty, ledgers) == contents(ground, ledgers)


def change(lake: Path, ledger_id: LedgerId, how: str) -> None:
    """Rows of one entry, for good."""
    if how == "deleted":
        DeltaTable(str(lake)).delete(f"_ledger_id = {ledger_id} AND _entry_id = 7")
    else:
        rows = DeltaTable(str(lake)).to_pyarrow_table()
        meant = (
            row["_ledger_id"] == ledger_id and row["_entry_id"] == 7 for row in rows.to_pylist()
        )
        payloads = rows["payload"].to_pylist()
        changed = [b"other" if yes else old for yes, old in zip(meant, payloads, strict=True)]
        at = rows.column_names.index("payload")
        rows = rows.set_column(
            at, rows.schema.field(at), pa.array(changed, rows.schema.field(at).type)
        )
        write_deltalake(str(lake), rows, mode="overwrite")
    vacuum(lake)


@pytest.mark.parametrize("how", ["deleted", "changed"])
def test_what_was_changed_in_the_table_is_refused_by_name_and_mended_by_a_verifying_run(
    ground: Ground, empty: Ground, lake: Path, how: str
) -> None:
    good, hurt = bytes_ledger(ground), bytes_ledger(ground)
    save_in_table(ground.client(), lake)
    change(lake, hurt, how)

    report = put_back(empty, lake)

    assert of(report, good).status is Outcome.RESTORED
    assert of(report, hurt).status is Outcome.LEFT
    said = str(of(report, hurt).reason)
    assert f"entry 7 of ledger {hurt} cannot be read from the table at {lake}" in said
    assert "changed since" in said
    assert "cluster backup --table --verify" in said
    assert "version 0" in said

    mended = save_in_table(ground.client(), lake, verify=True)

    assert mended.is_complete
    assert "does not stand for it" in str(of(mended, hurt).reason)
    assert in_directory(lake) == {hurt}
    assert of(mended, good).entries == 0
    assert put_back(empty, lake).is_complete
    assert contents(empty, [good, hurt]) == contents(ground, [good, hurt])


def delete_by_vector(lake: Path) -> None:
    """Rows of the newest file, as Spark writes it: which they are is not read."""
    commits = sorted((lake / "_delta_log").glob("*.json"))
    lines = [json.loads(line) for path in commits for line in path.read_text().splitlines()]
    add = [line["add"] for line in lines if "add" in line][-1]
    vector = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}
    told = [{"remove": {"path": add["path"]}}, {"add": {**add, "deletionVector": vector}}]
    path = lake / "_delta_log" / f"{len(commits):020d}.json"
    path.write_text("\n".join(map(json.dumps, told)))


def test_a_file_from_which_rows_were_deleted_by_a_vector_stands_for_nothing(
    ground: Ground, empty: Ground, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = bytes_ledger(ground)
    save_in_table(ground.client(), lake)
    hurt = bytes_ledger(ground)
    save_in_table(ground.client(), lake)
    delete_by_vector(lake)

    def as_archived(context: ClientContext, lake: str, ids: Any, _: Any) -> ArchiveReport:
        rows = (Row(each, "archive", Outcome.ARCHIVED) for each in ids)
        return ArchiveReport("archive_to_delta", tuple(rows))

    monkeypatch.setattr("spark_bookkeeper.testing.lake._add", as_archived)  # delta-rs reads none
    report = save_in_table(ground.client(), lake)

    assert report.is_complete, report.unfinished
    assert of(report, good).target == str(lake)
    assert "deletion vector" in str(of(report, hurt).reason)
    assert in_directory(lake) == {hurt}
    assert put_back(empty, lake).is_complete
    assert contents(empty, [good, hurt]) == contents(ground, [good, hurt])


def test_rows_that_somebody_added_are_noticed_by_a_verifying_run(
    ground: Ground, empty: Ground, lake: Path
) -> None:
    good, twice = bytes_ledger(ground), bytes_ledger(ground)
    save_in_table(ground.client(), lake)
    rows = DeltaTable(str(lake)).to_pyarrow_table()
    of_one = rows.filter(pa.compute.equal(rows["_ledger_id"], twice))
    write_deltalake(str(lake), of_one, mode="append")

    report = save_in_table(ground.client(), lake, verify=True)
    optimize(lake)
    vacuum(lake)

    assert of(report, good).target == str(lake)
    assert "40 rows" in str(of(report, twice).reason)
    assert put_back(empty, lake).is_complete
    assert contents(empty, [good, twice]) == contents(ground, [good, twice])


@pytest.mark.parametrize("is_rule_out", [False, True])
def test_backup_after_proof_a_table_that_changed_stands_for_nothing_unproven(
    ground: Ground,
    empty: Ground,
    lake: Path,
    is_rule_out: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also without ``verify``: what a run says is saved can be restored."""
    if is_rule_out:

        def as_before(_: ClientContext, work: Any) -> list[Any]:
            return [backup_table._Looked(work.ledger_id, work.index)]

        looking = replace(backup_table._LOOKING, do=as_before)
        monkeypatch.setattr(backup_table, "_LOOKING", looking)
    good, hurt = bytes_ledger(ground), bytes_ledger(ground)
    save_in_table(ground.client(), lake)
    change(lake, hurt, "deleted")

    assert save_in_table(ground.client(), lake).is_complete
    report = put_back(empty, lake)

    assert report.is_complete is not is_rule_out
    assert of(report, hurt).status is (Outcome.LEFT if is_rule_out else Outcome.RESTORED)
    if not is_rule_out:
        assert contents(empty, [good, hurt]) == contents(ground, [good, hurt])


class Losing(LocalRunner):
    """Never hands on the last answer of one step."""

    def __init__(self, context: ClientContext, phase: str) -> None:
        super().__init__(context)
        self.phase = phase

    def run(
        self, step: Step[ItemT, ResultT], items: Sequence[ItemT], progress: Progress
    ) -> Iterator[ResultT]:
        answers = list(super().run(step, items, progress))
        yield from answers[: len(answers) - (step.phase == self.phase)]


@pytest.mark.parametrize("phase", ["comparing with the table", "reading it back from the table"])
@pytest.mark.parametrize("is_known", [False, True])
def test_no_snapshot_without_an_answer_for_every_piece(
    ground: Ground, lake: Path, phase: str, is_known: bool
) -> None:
    ledger_id = bytes_ledger(ground)
    if is_known:
        save_in_table(ground.client(), lake)
        rewritten = DeltaTable(str(lake)).to_pyarrow_table()
        write_deltalake(str(lake), rewritten, mode="overwrite")
        if phase.startswith("comparing"):
            shutil.rmtree(next(lake.glob(f"_spark_bookkeeper/{ledger_id}-*")))
    before = sorted(beside(lake).glob("snapshots/*.arrow"))
    context = ground.client()

    with pytest.raises(AssertionError, match="after-proof"):
        save_in_table(context, lake, runner=Losing(context, phase))

    assert sorted(beside(lake).glob("snapshots/*.arrow")) == before


def test_a_table_that_was_dropped_is_made_again(ground: Ground, empty: Ground, lake: Path) -> None:
    ledger_id = bytes_ledger(ground)
    save_in_table(ground.client(), lake)
    shutil.rmtree(lake / "_delta_log")
    for file in lake.glob("*.parquet"):
        file.unlink()

    for dry_run in (True, False):
        (row,) = put_back(empty, lake, dry_run=dry_run).rows
        assert row.status is Outcome.LEFT
        assert "there is no table" in str(row.reason)
        assert "released" not in str(row.reason)
    assert save_in_table(ground.client(), lake).is_complete
    assert in_table(lake) == {ledger_id: 20}
    assert put_back(empty, lake).is_complete


def test_a_plan_looks_for_the_files_of_the_table_or_for_those_that_came_after(
    ground: Ground, empty: Ground, lake: Path
) -> None:
    ledgers = [bytes_ledger(ground) for _ in range(2)]
    for ledger_id in ledgers:
        save_in_table(ground.client(), lake, [ledger_id])
    save_in_table(ground.client(), lake)

    def planned() -> list[Row]:
        return sorted(put_back(empty, lake, dry_run=True).rows, key=lambda row: row.ledger_id)

    optimize(lake)
    vacuum(lake)
    empty.forget()
    assert [row.status for row in planned()] == [Outcome.PLANNED] * 2
    looks = [s.path for s in empty.steps if s.place == TABLE and s.operation == "size"]
    assert len(looks) == len(set(looks)) > 0, "each file is looked for once"
    for file in lake.glob("*.parquet"):
        file.unlink()
    for row in planned():
        assert row.status is Outcome.LEFT
        assert "parquet is not there" in str(row.reason)


def test_a_table_that_was_moved_with_all_that_is_beside_it(
    ground: Ground, empty: Ground, lake: Path, tmp_path: Path
) -> None:
    ledger_id = bytes_ledger(ground)
    save_in_table(ground.client(), lake)
    lake.rename(tmp_path / "moved")

    assert put_back(empty, tmp_path / "moved").is_complete

    assert contents(empty, [ledger_id]) == contents(ground, [ledger_id])


@pytest.mark.parametrize("is_alone", [False, True])
def test_entries_that_come_back_in_other_bytes_are_told(
    ground: Ground, empty: Ground, lake: Path, is_alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another version of Arrow makes them; by itself, and together with neighbours."""
    rows = pa.table({"first": [1, 2, 3]})
    ledger_id = rows_ledger(ground, rows, entries=2)
    save_in_table(ground.client(), lake)
    before = open_rows(ground, ledger_id)
    real = table_bookie.rebuilt_bytes

    def other(*args: Any, **options: Any) -> bytes:
        return real(*args, **options) + bytes(8)

    monkeypatch.setattr(table_bookie, "rebuilt_bytes", other)
    if is_alone:
        monkeypatch.setattr(restoring_entries, "TOGETHER_ENTRIES", 0)

    (row,) = put_back(empty, lake).rows

    assert row.status is Outcome.RESTORED
    assert "of 2 of its entries the table gave other bytes" in str(row.reason)
    assert open_rows(empty, ledger_id) == before


def open_rows(ground: Ground, ledger_id: LedgerId) -> list[Any]:
    """The rows of each entry."""
    context = ground.client()
    ledger, found = context.ledger(ledger_id)
    last = found.value.last_entry_id
    assert last is not None
    return [e.batch().to_pylist() for e in Fetcher(context, ledger).fetch(EntryId(0), last)]


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


@pytest.mark.parametrize("where", ["lake", "other lake"])
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
        patch.setattr("spark_bookkeeper.testing.lake._add", cancelled)
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


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(InvalidArgumentError) as refusal:
        call()
    return refusal.value.message


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_place_that_is_something_else_is_refused(
    ground: Ground, empty: Ground, tmp_path: Path, dry_run: bool
) -> None:
    bytes_ledger(ground)
    lake, plain, home = (tmp_path / name for name in ("lake", "plain", "home"))
    save_in_table(ground.client(), lake)
    backup(ground.context, LocalRunner(ground.context), str(plain))
    home.mkdir()
    (home / "diary.txt").write_text("dear")
    foreign, others = tmp_path / "foreign", tmp_path / "others"
    write_deltalake(str(foreign), pa.table({"id": [1], "name": ["x"]}))
    owned = pa.field("_ledger_id", pa.int64(), metadata={OWNER: "another"})
    places = [pa.field(name, pa.int64()) for name in ("_entry_id", "_row")]
    write_deltalake(str(others), pa.table([[1], [0], [0]], schema=pa.schema([owned, *places])))
    before = sorted(tmp_path.rglob("*"))

    def told(place: Path, ground: Ground = ground) -> str:
        return refused(lambda: save_in_table(ground.client(), place, dry_run=dry_run))

    assert "in_table=True (`cluster backup --table`)" in refused(
        lambda: backup(ground.context, LocalRunner(ground.context), str(lake), dry_run=dry_run)
    )
    assert "without in_table (`--table`)" in told(plain)
    assert f"back up to {lake}" in told(beside(lake))
    for end in ("", "/", "//"):
        assert f"back up to {lake}" in refused(
            partial(backup, ground.context, LocalRunner(ground.context), f"{beside(lake)}{end}")
        )
    assert "diary.txt" in told(home)
    assert "no column _ledger_id" in told(foreign)
    assert "its columns are id, name" in told(foreign)
    assert "ledgers of cluster another" in told(others)
    empty.cluster.instance_id = "the new one"
    assert "is of cluster" in told(lake, empty)
    assert str(home / "diary.txt") in told(home / "diary.txt")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_backup_in_whose_directory_a_table_was_made_takes_no_backup_in_the_table(
    ground: Ground, lake: Path, dry_run: bool
) -> None:
    """A restore from there would take the other one."""
    ledger_id = bytes_ledger(ground)
    backup(ground.context, LocalRunner(ground.context), str(lake))
    archive(ground.context, lake, [ledger_id])

    said = refused(lambda: save_in_table(ground.client(), lake, dry_run=dry_run))

    assert "is the directory of a backup without a table" in said
    assert not beside(lake).exists()


def test_no_table_is_made_in_the_directory_of_a_backup(ground: Ground, lake: Path) -> None:
    bytes_ledger(ground)
    plain = lake.with_name("plain")
    backup(ground.context, LocalRunner(ground.context), str(plain))
    save_in_table(ground.client(), lake)

    for place in (plain, beside(lake)):
        assert "is the directory of a backup" in refused(
            partial(check_place, ground.context, str(place))
        )
    check_place(ground.context, str(lake))
    check_place(ground.context, str(lake / "nothing"))
    check_place(ground.context, "s3a://no-such-bucket/that/is/not/asked")


def test_a_table_whose_backup_is_not_beside_it_is_no_backup(
    ground: Ground, empty: Ground, lake: Path, tmp_path: Path
) -> None:
    ledger_id = bytes_ledger(ground)
    save_in_table(ground.client(), lake)
    shutil.move(beside(lake), tmp_path / "elsewhere")

    said = refused(lambda: put_back(empty, lake))
    (row,) = put_back(empty, tmp_path / "elsewhere").rows

    assert f"Delta table without the directory {BESIDE_TABLE}" in said
    assert f"cluster backup --table {lake}" in said
    assert row.status is Outcome.LEFT
    assert f"ledger {ledger_id} is in the table beside which this backup was made" in str(
        row.reason
    )
    shutil.move(tmp_path / "elsewhere", beside(lake))
    assert put_back(empty, f"{beside(lake)}/").is_complete  # who names the directory means both


def test_a_list_that_is_lost_is_named_and_made_again(
    ground: Ground, empty: Ground, lake: Path
) -> None:
    good, hurt = bytes_ledger(ground), bytes_ledger(ground)
    save_in_table(ground.client(), lake)
    (lost,) = lake.glob(f"_spark_bookkeeper/{hurt}-*/*.arrow")
    lost.unlink()

    for dry_run in (True, False):
        report = put_back(empty, lake, dry_run=dry_run)
        assert of(report, hurt).status is Outcome.LEFT
        assert lost.name in str(of(report, hurt).reason)
        assert of(report, good).status is not Outcome.LEFT

    assert save_in_table(ground.client(), lake).is_complete
    assert put_back(empty, lake).is_complete


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


def killed_at(directory: Path, number: int, which: str) -> bool:
    """Kill one of both jobs before an operation, repeat, and compare; whether it was killed."""
    ground = Ground(directory / "old", runtime=InlineRuntime())
    empty = Ground(directory / "new", runtime=InlineRuntime())
    lake = directory / "lake"
    payloads = a_log(ground)
    rows_ledger(ground, pa.table({"fine": pa.array([1_001], pa.timestamp("ns"))}))
    ids = list(ground.context.store.ledger_ids())
    before = contents(ground, ids)

    def save(context: ClientContext) -> BackupReport:
        return save_in_table(context, lake)

    def back(context: ClientContext) -> BackupReport:
        return restore(context, LocalRunner(context), str(lake))

    was_killed = False
    for name, job, target in (("backup", save, ground), ("restore", back, empty)):
        if name == which:
            try:
                job(target.client(None, KillAt(number)))
            except Killed:
                was_killed = True
            collect_garbage(target.client(), wish=Collection())
        report = job(target.client())
        assert report.is_complete, report.unfinished
    assert contents(empty, ids) == before
    assert [entry.payload for entry in open_log(empty.context, "orders").entries()] == payloads
    found = DeltaTable(str(lake)).to_pyarrow_table(columns=["_ledger_id", "_entry_id", "_row"])
    places = list(zip(*found.to_pydict().values(), strict=True))
    assert len(set(places)) == len(places), "each row is there once"
    return was_killed


@pytest.mark.parametrize("which", ["backup", "restore"])
def test_killed_at_some_steps_and_repeated_it_is_whole(tmp_path: Path, which: str) -> None:
    for number in range(5, 180, 58):
        killed_at(tmp_path / str(number), number, which)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("which", ["backup", "restore"])
def test_killed_at_any_step_and_repeated_it_is_whole(tmp_path: Path, which: str) -> None:
    number = 0
    while killed_at(tmp_path / str(number), number, which):
        number += 1
    assert number > 30
