"""Whatever happens to the table of a backup, or was at its place before, is told and mended."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_bookkeeper.backup import restoring_entries
from spark_bookkeeper.backup.folder import BESIDE_TABLE
from spark_bookkeeper.backup.saving import backup
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.read.fetch import Fetcher
from spark_bookkeeper.delta import backup_table
from spark_bookkeeper.delta.archive import OWNER, ArchiveReport, check_place
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.replication.report import Outcome, Row
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.table import table_bookie
from spark_bookkeeper.testing.ground import TABLE, Ground
from tests.backup.clusters import (
    beside,
    contents,
    in_directory,
    in_table,
    of,
    optimize,
    put_back,
    reads_of_bookies,
    refused,
    vacuum,
)
from tests.support.lake import archive, bytes_ledger, rows_ledger, save_in_table
from tests.worlds import Losing, there


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


@pytest.mark.parametrize("how", ["changed", pytest.param("deleted", marks=pytest.mark.full)])
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

    monkeypatch.setattr("tests.support.lake._add", as_archived)  # delta-rs reads none
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
    ground: Ground, empty: Ground, lake: Path, is_rule_out: bool, monkeypatch: pytest.MonkeyPatch
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
    return [e.batch().to_pylist() for e in Fetcher(context, ledger).fetch(EntryId(0), there(last))]


# Places that are something else


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
