"""Ledgers in a Delta table: each row once, whatever is killed, repeated or done at once."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import spark_bookkeeper as sbk
from spark_bookkeeper.cli.main import run
from spark_bookkeeper.cli.shell.jobs import run_job
from spark_bookkeeper.delta import archive as archive_module
from spark_bookkeeper.delta.archive import Archive
from spark_bookkeeper.delta.pieces import SMALL_BYTES
from spark_bookkeeper.delta.sums import PLACE_COLUMNS
from spark_bookkeeper.protocol.accepted_loss import ACCEPTED_LOSS, AcceptedLoss
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.replication.report import Report
from spark_bookkeeper.testing.ground import Killed

pytestmark = [pytest.mark.delta]


def ledger_of(bk: sbk.BookKeeper, frame: Any, **options: Any) -> int:
    with bk.create_ledger(schema=frame.schema, **options) as writer:
        writer.append(frame)
    return int(writer.ledger_id)


def statuses(report: Report) -> list[str]:
    return [str(row.status) for row in report.rows]


def rows_of(path: Path) -> pa.Table:
    """What a reader sees that is neither Spark nor ours."""
    return (
        DeltaTable(str(path)).to_pyarrow_table().sort_by([(c, "ascending") for c in PLACE_COLUMNS])
    )


def test_ledgers_are_in_the_table_row_for_row_and_in_order(
    bk: sbk.BookKeeper, tmp_path: Path
) -> None:
    frame = bk.spark.range(1000).selectExpr(
        "id", "cast(id as string) text", "map('k', id) pairs", "if(id % 3 = 0, null, id / 7) part"
    )
    ledgers = [ledger_of(bk, frame, entry_target_bytes=4096) for _ in range(2)]

    report = bk.archive_to_delta(str(tmp_path / "table"), ledgers)

    assert report.unfinished == []
    assert statuses(report) == ["archived"] * 2
    table = rows_of(tmp_path / "table")
    for ledger_id in ledgers:
        mine = table.filter(pa.compute.equal(table["_ledger_id"], ledger_id))
        ledger = bk.open_ledger(ledger_id).read_arrow()
        assert mine.drop_columns(list(PLACE_COLUMNS)).to_pylist() == ledger.to_pylist()
        entries = list(bk.open_ledger(ledger_id).entries())
        expected = [(e.entry_id, row) for e in entries for row in range(e.batch.num_rows)]
        assert (
            list(zip(*mine.select(PLACE_COLUMNS[1:]).to_pydict().values(), strict=True)) == expected
        )


def test_another_engine_counts_the_same(bk: sbk.BookKeeper, tmp_path: Path) -> None:
    ledger_id = ledger_of(bk, bk.spark.range(500))
    bk.archive_to_delta(str(tmp_path / "table"), [ledger_id])

    import duckdb  # here alone: it complains at the end of every process that has imported it

    files = DeltaTable(str(tmp_path / "table")).file_uris()
    with duckdb.connect() as engine:
        found = engine.execute(
            "select count(*), sum(id), count(distinct (_ledger_id, _entry_id, _row)) "
            "from read_parquet(?)",
            [files],
        ).fetchall()

    assert found == [(500, 124_750, 500)]


def test_no_table_is_made_in_the_directory_of_a_backup(bk: sbk.BookKeeper, tmp_path: Path) -> None:
    ledger_id = ledger_of(bk, bk.spark.range(10))
    bk.backup(str(tmp_path), [ledger_id])

    with pytest.raises(sbk.InvalidArgumentError, match="is the directory of a backup"):
        bk.archive_to_delta(str(tmp_path), [ledger_id])


def test_archiving_again_adds_only_what_is_new(bk: sbk.BookKeeper, tmp_path: Path) -> None:
    path = tmp_path / "table"
    first = ledger_of(bk, bk.spark.range(10))
    bk.archive_to_delta(str(path), [first])
    second = ledger_of(bk, bk.spark.range(10, 30))

    plan = bk.archive_to_delta(str(path), [first, second], dry_run=True)
    report = bk.archive_to_delta(str(path), [first, second])
    again = bk.archive_to_delta(str(path), [first, second])

    assert statuses(plan) == ["archived", "planned"]
    assert statuses(report) == statuses(again) == ["archived"] * 2
    assert sorted(rows_of(path)["id"].to_pylist()) == list(range(30))
    assert DeltaTable(str(path)).version() == 1  # two commits in all


def test_a_kill_after_the_commit_and_before_the_report_changes_nothing(
    bk: sbk.BookKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "table")
    ledger_id = ledger_of(bk, bk.spark.range(100))
    bk.archive_to_delta(path, [ledger_id])

    # The next run does not see that the ledger is there, as if it had looked just before.
    with monkeypatch.context() as patch:
        patch.setattr(Archive, "_known", lambda *_: {})
        report = bk.archive_to_delta(path, [ledger_id])

    assert statuses(report) == ["archived"]
    assert sorted(rows_of(Path(path))["id"].to_pylist()) == list(range(100))


# Many small ledgers


def tiny(bk: sbk.BookKeeper, count: int, entries: int = 3) -> list[int]:
    """Closed ledgers of bytes; entries and ledgers are told apart by their bytes."""
    made = []
    for _ in range(count):
        with bk.create_ledger() as writer:
            for number in range(entries):
                writer.append(b"%d of %d" % (number, writer.ledger_id))
        made.append(int(writer.ledger_id))
    return made


def large(bk: sbk.BookKeeper) -> int:
    """A ledger that is a commit of its own."""
    with bk.create_ledger() as writer:
        writer.append(bytes(SMALL_BYTES))
        writer.append(b"its end")
    return int(writer.ledger_id)


def places_of(path: Path) -> list[tuple[int, int]]:
    """Ledger and entry of each row of a table of bytes, of which each entry is a row."""
    if not DeltaTable.is_deltatable(str(path)):
        return []
    found = rows_of(path).select(["_ledger_id", "_entry_id"]).to_pydict()
    return list(zip(*found.values(), strict=True))


def commits_of(path: Path) -> list[int]:
    """How many ledgers each commit of an archive was about, oldest first."""
    told = [json.loads(c["userMetadata"]) for c in reversed(DeltaTable(str(path)).history())]
    about = [each["spark_bookkeeper"] for each in told]
    return [len(each.get("ledger_ids", [0])) for each in about]


def test_small_ledgers_share_a_commit_and_a_large_one_has_its_own(
    bk: sbk.BookKeeper, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    before, alone, behind = tiny(bk, 5), large(bk), tiny(bk, 3)
    asked = [*before, alone, *behind]

    report = bk.archive_to_delta(str(path), asked)
    again = bk.archive_to_delta(str(path), [*asked, *(more := tiny(bk, 2))])

    assert [row.ledger_id for row in report.rows] == asked
    assert statuses(report) == ["archived"] * 9
    assert statuses(again) == ["archived"] * 11
    assert sorted(commits_of(path)) == [1, 2, 8]
    expected = {(i, e) for i in (*before, *behind, *more) for e in range(3)}
    assert sorted(places_of(path)) == sorted(expected | {(alone, 0), (alone, 1)})
    payloads = rows_of(path).filter(pa.compute.field("_ledger_id") == before[3])["payload"]
    assert payloads.to_pylist() == [b"%d of %d" % (number, before[3]) for number in range(3)]


def test_killed_at_any_step_and_repeated_every_row_is_there_once(
    bk: sbk.BookKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table"
    log = bk.create_log("killed-at-any-step")
    with log.become_writer() as writer:
        for payload in (b"1", b"2", bytes(SMALL_BYTES + 1), b"3", b"4"):
            writer.append(payload)
            writer.append(b"its end")
            writer.roll()
    left = 0

    def step() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed

    def steps_around(owner: object, name: str) -> None:
        work = getattr(owner, name)

        def stepped(*args: Any, **options: Any) -> Any:
            step()
            done = work(*args, **options)
            step()
            return done

        monkeypatch.setattr(owner, name, stepped)

    steps_around(Archive, "_write")
    steps_around(archive_module, "sums")
    kills, report = 0, None
    while report is None:
        left = kills + 1
        try:
            report = bk.archive_to_delta(str(path), log=log.name)
        except Killed:
            kills += 1
        found = places_of(path)
        assert len(found) == len(set(found))
        assert len(found) == 2 * len({ledger_id for ledger_id, _ in found})

    assert kills > 6
    assert statuses(report) == ["archived"] * 6  # the last ledger is empty
    assert commits_of(path) == [2, 1, 2]
    assert len(places_of(path)) == 10


def test_an_archive_that_commits_while_another_writes_makes_it_look_again(
    bk: sbk.BookKeeper, tmp_path: Path
) -> None:
    path, has_begun, may_end = tmp_path / "table", tmp_path / "begun", tmp_path / "end"
    bk.archive_to_delta(str(path), tiny(bk, 1))
    ledgers = tiny(bk, 4)

    def held(batches: Any) -> Any:
        has_begun.touch()
        wait_for(may_end)
        yield from batches

    def read(ranges: Any, schema: pa.Schema) -> Any:
        frame = bk.frames.read(bk.context, schema, ranges, places=PLACE_COLUMNS)
        return frame.coalesce(1).mapInArrow(held, frame.schema)

    slow = Archive(bk.context, bk.spark, read, str(path))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(slow.add, [LedgerId(i) for i in ledgers])
        try:
            wait_for(has_begun, waiting)
            other = bk.archive_to_delta(str(path), ledgers[:3])
        finally:
            may_end.touch()
        report = waiting.result()

    assert statuses(other) == ["archived"] * 3
    assert statuses(report) == ["archived"] * 4
    assert len(places_of(path)) == len(set(places_of(path))) == 15
    assert commits_of(path) == [1, 3, 1]


def wait_for(path: Path, touched_by: Future[Any] | None = None) -> None:
    """Until there is such a file; who should touch it and has ended will not any more."""
    while not path.exists():
        if touched_by is not None and touched_by.done():
            touched_by.result()
            raise AssertionError(f"{path} was not touched")
        threading.Event().wait(0.02)


def test_rows_deleted_since_the_run_began_are_not_put_back(
    bk: sbk.BookKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table"
    bk.archive_to_delta(str(path), tiny(bk, 1))
    ledgers = tiny(bk, 2)

    def meanwhile() -> None:
        bk.archive_to_delta(str(path), ledgers[:1])
        where = f"_ledger_id = {ledgers[0]} AND _entry_id = 1"
        bk.spark.sql(f"DELETE FROM delta.`{path}` WHERE {where}")

    after_first_look(monkeypatch, meanwhile)
    report = bk.archive_to_delta(str(path), ledgers)

    assert statuses(report) == ["damaged", "archived"]
    assert (ledgers[0], 1) not in places_of(path)
    assert len(places_of(path)) == len(set(places_of(path))) == 8


def test_what_was_added_while_the_table_only_grew_or_after_is_not_added_again(
    bk: sbk.BookKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table"
    bk.archive_to_delta(str(path), tiny(bk, 1))
    ledgers = tiny(bk, 3)
    set_append_only(bk, path, "true")
    write = Archive._write

    def write_and_go_on(self: Archive, batch: Any, log: Any, mode: str, options: Any) -> None:
        write(self, batch, log, mode, options)
        if mode == "append":  # the first of them was added: another run, which may replace again
            monkeypatch.setattr(Archive, "_write", write)
            set_append_only(bk, path, "false")
            bk.archive_to_delta(str(path), ledgers[1:])

    monkeypatch.setattr(Archive, "_write", write_and_go_on)
    report = bk.archive_to_delta(str(path), ledgers)

    assert statuses(report) == ["archived"] * 3
    assert len(places_of(path)) == len(set(places_of(path))) == 12


def set_append_only(bk: sbk.BookKeeper, path: Path, value: str) -> None:
    bk.spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.appendOnly' = {value})")


def after_first_look(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> None:
    """Have something done when the next run has looked at the table for the first time."""
    known = Archive._known

    def look(self: Archive, ledger_ids: Sequence[LedgerId]) -> Any:
        found = known(self, ledger_ids)
        monkeypatch.setattr(Archive, "_known", known)
        meanwhile()
        return found

    monkeypatch.setattr(Archive, "_known", look)


def test_a_table_of_another_cluster_is_refused_and_nothing_is_written_nor_dropped(
    bk: sbk.BookKeeper, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    mine = tiny(bk, 3)
    with sbk.local(bookies=3, spark=bk.spark) as other:
        theirs = tiny(other, 1)
        other.archive_to_delta(str(path), theirs)
        for options in ({}, {"dry_run": True}, {"release": True, "keep": 0}):
            with pytest.raises(sbk.InvalidArgumentError, match="nothing was archived"):
                bk.archive_to_delta(str(path), mine, **options)
        assert statuses(other.archive_to_delta(str(path), theirs)) == ["archived"]

    assert DeltaTable(str(path)).version() == 0
    assert bk.check_ledgers(mine).is_complete


def test_a_table_that_another_cluster_makes_meanwhile_is_refused_as_well(
    bk: sbk.BookKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table"
    mine = tiny(bk, 3)
    with sbk.local(bookies=3, spark=bk.spark) as other:
        theirs = tiny(other, 1)
        after_first_look(monkeypatch, lambda: other.archive_to_delta(str(path), theirs))

        report = bk.archive_to_delta(str(path), mine)

    assert statuses(report) == ["left"] * 3
    assert "Archive to another table" in str(report.rows[0].reason)
    assert DeltaTable(str(path)).version() == 0


def test_a_table_of_an_earlier_version_does_not_say_whose_it_is_and_is_taken(
    bk: sbk.BookKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table"
    first, second = tiny(bk, 2)
    with monkeypatch.context() as patch:
        patch.setattr(archive_module, "OWNER", "as before")
        bk.archive_to_delta(str(path), [first])

    report = bk.archive_to_delta(str(path), [first, second])

    assert statuses(report) == ["archived"] * 2
    assert len(places_of(path)) == 6


def test_of_small_ledgers_that_go_together_only_the_lost_one_is_left(
    bk: sbk.BookKeeper, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    ledgers = tiny(bk, 5)
    assert bk.cluster is not None
    for directory in bk.cluster.directory.glob(f"**/ledgers/{ledgers[2]}-*"):
        shutil.rmtree(directory)

    report = bk.archive_to_delta(str(path), ledgers)

    assert statuses(report) == ["archived", "archived", "left", "archived", "archived"]
    assert f"ledger {ledgers[2]}" in str(report.rows[2].reason)
    assert len(places_of(path)) == 12


def test_a_table_that_only_grows_takes_small_ledgers_one_by_one(
    bk: sbk.BookKeeper, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    bk.archive_to_delta(str(path), tiny(bk, 1))
    bk.spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.appendOnly' = true)")
    ledgers = tiny(bk, 3)

    report = bk.archive_to_delta(str(path), ledgers)

    assert statuses(report) == ["archived"] * 3
    assert len(places_of(path)) == 12
    assert DeltaTable(str(path)).version() == 4


# What became of the table


def test_a_table_that_lost_rows_is_told_from_one_that_has_them(
    bk: sbk.BookKeeper, tmp_path: Path
) -> None:
    path = str(tmp_path / "table")
    ledger_id = ledger_of(bk, bk.spark.range(100))
    bk.archive_to_delta(path, [ledger_id])
    bk.spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 7")
    bk.spark.sql(f"UPDATE delta.`{path}` SET id = 8 WHERE id = 9")

    (row,) = bk.archive_to_delta(path, [ledger_id]).rows

    assert row.status.value == "damaged"
    assert "99 rows of this ledger, which has 100" in str(row.reason)


def test_ledgers_that_are_not_closed_empty_or_gone(bk: sbk.BookKeeper, tmp_path: Path) -> None:
    open_one = bk.create_ledger()
    with bk.create_ledger() as empty:
        pass

    report = bk.archive_to_delta(
        str(tmp_path / "table"), [empty.ledger_id, open_one.ledger_id, 987_654]
    )

    assert statuses(report) == ["archived", "pending", "gone"]
    assert not report.is_complete
    open_one.close()


def test_holes_that_were_accepted_are_left_out_and_the_commit_says_so(
    bk: sbk.BookKeeper, tmp_path: Path
) -> None:
    with bk.create_ledger() as writer:
        for number in range(3):
            writer.append(b"%d" % number)
    loss = AcceptedLoss("ann@host", 7, (BookieId("a:1"),), ((EntryId(1), EntryId(1)),))
    store, found = bk.context.store, bk.context.store.read_ledger(writer.ledger_id)
    marked = found.value.with_custom(**{ACCEPTED_LOSS: loss.encode()})
    store.write_ledger(writer.ledger_id, marked, found)

    for told in (str(loss), "it was in the table, and is the same"):
        (row,) = bk.archive_to_delta(str(tmp_path / "table"), [writer.ledger_id]).rows
        assert (row.status, row.reason, row.entries) == ("archived", told, 2)

    table = DeltaTable(str(tmp_path / "table"))
    assert sorted(table.to_pyarrow_table()["_entry_id"].to_pylist()) == [0, 2]
    assert str(loss) in table.history()[-1]["userMetadata"]


def test_a_log_is_archived_up_to_its_open_ledger(bk: sbk.BookKeeper, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    log = bk.create_log("archived", schema=bk.spark.range(1).schema)
    writer = log.become_writer()
    for n in range(3):
        writer.append(bk.spark.range(n * 10, n * 10 + 10))
        writer.roll()
    writer.append(bk.spark.range(30, 40))

    first = bk.archive_to_delta(path, log="archived")
    writer.close()
    second = bk.archive_to_delta(path, log="archived")

    assert statuses(first) == ["archived"] * 3 + ["pending"]
    assert second.is_complete
    assert sorted(rows_of(Path(path))["id"].to_pylist()) == list(range(40))


def test_columns_that_come_later_are_merged(bk: sbk.BookKeeper, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    narrow = ledger_of(bk, bk.spark.range(3))
    wide = ledger_of(bk, bk.spark.range(3, 6).selectExpr("id", "'x' as mark"))

    bk.archive_to_delta(path, [narrow, wide])
    report = bk.archive_to_delta(path, [narrow, wide])

    assert statuses(report) == ["archived"] * 2
    assert rows_of(Path(path))["mark"].to_pylist() == [None] * 3 + ["x"] * 3


def test_the_command_and_the_job_do_the_same(
    bk: sbk.BookKeeper, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "table")
    ledger_id = ledger_of(bk, bk.spark.range(7))
    arguments = [path, str(ledger_id), "--json"]

    first = run(["--metadata-uri", bk.metadata_uri, "ledger", "archive", *arguments])
    said = json.loads(capsys.readouterr().out)
    again = run_job("archive_to_delta", [bk.metadata_uri, *arguments])

    assert (first, again) == (0, 0)
    assert (said["job"], said["complete"], said["entries"] > 0) == ("archive_to_delta", True, True)
    assert rows_of(Path(path))["id"].to_pylist() == list(range(7))


def test_a_ledger_without_the_maps_that_others_have_is_the_same_in_the_table(
    bk: sbk.BookKeeper, tmp_path: Path
) -> None:
    with_map = ledger_of(bk, bk.spark.range(3).selectExpr("id", "map('k', id) pairs"))
    without = ledger_of(bk, bk.spark.range(3))

    report = bk.archive_to_delta(str(tmp_path / "table"), [with_map, without])

    assert statuses(report) == ["archived"] * 2, report.unfinished


def test_a_column_with_the_name_of_a_place_is_refused(bk: sbk.BookKeeper, tmp_path: Path) -> None:
    ledger_id = ledger_of(bk, bk.spark.range(3).selectExpr("id as _row"))

    (row,) = bk.archive_to_delta(str(tmp_path / "table"), [ledger_id]).rows

    assert row.status.value == "left"
    assert "'_row'" in str(row.reason)


def test_exactly_one_of_ledgers_and_log_is_taken(bk: sbk.BookKeeper, tmp_path: Path) -> None:
    with pytest.raises(sbk.InvalidArgumentError, match="log"):
        bk.archive_to_delta(str(tmp_path / "table"), [1], log="both")
