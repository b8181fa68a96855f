"""``spark-bookkeeper ledger``, as a person and a program use it."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_bookkeeper.cli.ledger import deletion, work
from spark_bookkeeper.cli.ledger.data import rows_of
from spark_bookkeeper.cli.main import run
from spark_bookkeeper.cli.shell.output import Output
from spark_bookkeeper.cli.shell.settings import Settings
from spark_bookkeeper.client.read.reader import Entry, LedgerReader
from spark_bookkeeper.client.views import FRAGMENTS, LEDGERS, SLOTS
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.replication.report import Outcome, RecoveryReport, Row
from tests.cli.conftest import Call
from tests.support.sessions import connect_without_spark

REPORT_KEYS = [
    *("job", "dry_run", "ledgers", "ledgers_complete", "fragments", "entries", "bytes"),
    *("duration_ms", "complete", "rows"),
]

NESTED = pa.table(
    {
        "id": pa.array([1, 2, None], pa.int64()),
        "tags": pa.array([["a", None], None, []], pa.list_(pa.string())),
        "place": pa.array(
            [{"x": 1.5, "y": None}, None, {"x": None, "y": "z"}],
            pa.struct([("x", pa.float64()), ("y", pa.string())]),
        ),
    }
)


def open_ledger(call: Call, numbers: Path) -> int:
    """A ledger as a writer that crashed left it."""
    ledger_id: int = call("ledger", "append", numbers, "--leave-open", "--json").json["ledger_id"]
    return ledger_id


def part_of(cluster: LocalCluster, bookie: str, ledger_id: int) -> Path:
    """The first slot of a ledger on a bookie."""
    return next(cluster.root_of(bookie).glob(f"ledgers/{ledger_id}-*/slots/*.arrow"))


def test_lines_that_were_appended_are_read_back(call: Call, numbers: Path) -> None:
    done = call("ledger", "append", numbers, "-e", 4, "--acks", "--json").json

    read = call("ledger", "read", done["ledger_id"], "--json").json

    assert done["last_entry_id"] == 99
    assert done["state"] == "CLOSED"
    assert {ack["acknowledged"] for ack in done["acks"]} == {True}
    assert [(row["entry_id"], row["payload"]) for row in read["rows"]] == [
        (n, str(n)) for n in range(100)
    ]


def test_rows_of_a_ledger_are_read_by_time(call: Call, numbers: Path, tmp_path: Path) -> None:
    ledger_id = call("ledger", "append", numbers, "--json").json["ledger_id"]

    def rows(*arguments: object) -> int:
        return len(call("ledger", "read", ledger_id, "--json", *arguments).json["rows"])

    assert rows("--start-time", "1h", "--end-time", "2099-01-01") == 100
    assert rows("--start-time", "1h", "--last", 9) == 10
    assert rows("--first", 90, "--end-time", "2099-01-01") == 10
    assert rows("--start", 90, "--end", 95) == rows("--first", 90, "--last", 94) == 5
    assert (rows("--end-time", "1h"), rows("--start-time", "2099-01-01")) == (0, 0)
    file = tmp_path / "rows.parquet"
    done = call("ledger", "read", ledger_id, "--start-time", "1h", "-o", file, "--json").json
    assert (done["first_entry_id"], done["rows"]) == (0, 100)
    assert pq.ParquetFile(file).num_row_groups == 1, "entries of one row are written together"
    for wrong, said in (
        (("--first", 5, "--start-time", "1h"), "--start and --start-time"),
        (("--last", 5, "--end-time", "1h"), "--end or --last and --end-time"),
        (("--last", 5, "--end", 6), "--end and --last"),
        (("--start", 5, "--end", 5), "5"),
        (("--start-time", "1h", "--end-time", "2h"), "Exchange them"),
    ):
        refused = call("ledger", "read", ledger_id, *wrong)
        assert (refused.code, said in refused.err) == (2, True), refused.err


@pytest.mark.integration
def test_standard_input_becomes_a_ledger(cluster: LocalCluster, call: Call) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "spark_bookkeeper", "ledger", "append", "-", "--json"],
        input="one\ntwo\n",
        capture_output=True,
        text=True,
        check=False,
        env={"SPARK_BOOKKEEPER_METADATA_URI": cluster.metadata_uri, "PYTHONPATH": "."},
        cwd=Path(__file__).parents[2],
    )

    assert (done.returncode, '"last_entry_id": 1' in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_nested_rows_go_from_file_to_file_unchanged(
    call: Call, tmp_path: Path, suffix: str
) -> None:
    source, copy = tmp_path / "rows.parquet", tmp_path / f"copy{suffix}"
    pq.write_table(NESTED, source)

    ledger_id = call("ledger", "append", source, "--json").json["ledger_id"]
    done = call("ledger", "read", ledger_id, "--output", copy, "--json")

    found = pq.read_table(copy) if suffix == ".parquet" else pa.ipc.open_file(copy).read_all()
    assert done.json["rows"] == 3
    assert found.equals(NESTED)


def test_rows_for_a_person_are_cut_and_say_so(
    call: Call, numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger_id = call("ledger", "append", numbers, "--json").json["ledger_id"]

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    done = call("ledger", "read", ledger_id, "--first", 10, "--limit", 2)

    assert ("10" in done.out, "11" in done.out, "12" in done.out) == (True, True, False)
    assert "only 2 rows are shown" in done.err


def test_a_pipe_gets_lines_of_bytes_and_objects_of_rows(
    call: Call, numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(NESTED, tmp_path / "rows.parquet")
    lines = call("ledger", "append", numbers, "--json").json["ledger_id"]
    rows = call("ledger", "append", tmp_path / "rows.parquet", "--json").json["ledger_id"]

    read = call("ledger", "read", lines)
    objects = call("ledger", "read", rows, "--limit", 2).out.splitlines()
    assert (read.out, read.err) == (numbers.read_text(), "")
    assert [json.loads(each) for each in objects] == [
        {"entry_id": 0, **row} for row in NESTED.to_pylist()[:2]
    ]
    followed = call("ledger", "read", lines, "--follow", "--first", 98)
    assert (followed.code, followed.out) == (0, "98\n99\n")
    file = tmp_path / "x.parquet"
    for wrong in (
        ("--follow", "--last", 3),
        ("--follow", "--json"),
        ("-o", "-", "--json"),
        ("--follow", "-o", file),
        *(("--unconfirmed", each) for each in ("--first=3", "--last=3", "--follow", "--recover")),
    ):
        assert call("ledger", "read", lines, *wrong).code == 2, wrong
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert call("ledger", "read", lines, "--limit", 2, "-o", "-").out == "0\n1\n"


def test_what_is_unconfirmed_is_read_apart_and_its_ledger_is_left_alone(
    call: Call, numbers: Path, tmp_path: Path
) -> None:
    ledger_id = open_ledger(call, numbers)
    read = ("ledger", "read", ledger_id)

    behind, told = call(*read, "--unconfirmed"), call(*read, "--unconfirmed", "--json").json
    in_file = call(*read, "--unconfirmed", "-o", tmp_path / "x.arrow", "--json").json

    assert (lac := told["last_add_confirmed"]) < 99, "its writer told nobody of the last one"
    assert f"reading what is behind entry {lac}, acknowledged or not" in behind.err
    assert call(*read).out + behind.out == numbers.read_text()
    assert [row["unconfirmed_entry_id"] for row in told["rows"]] == [*range(lac + 1, 100)]
    assert in_file["first_entry_id"] == lac + 1
    assert call("ledger", "show", ledger_id, "--json").json["state"] == "OPEN"


def test_ctrl_c_ends_a_follower_as_it_is_meant_to(
    call: Call, numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger_id = call("ledger", "append", numbers, "--json").json["ledger_id"]

    def interrupted(reader: LedgerReader, *, first: int) -> Iterator[Entry]:
        yield from reader.entries(first, first + 1)
        raise KeyboardInterrupt

    monkeypatch.setattr(LedgerReader, "tail", interrupted)
    shown = call("ledger", "read", ledger_id, "--follow", "--start", 5)
    assert (shown.code, shown.out, shown.err) == (0, "5\n6\n", "")


def test_what_nobody_reads_any_more_is_not_read_from_the_bookies(
    cluster: LocalCluster, call: Call, numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger_id = call("ledger", "append", numbers, "--json").json["ledger_id"]
    read: list[int] = []
    entries = LedgerReader.entries

    def counted(*arguments: Any, **named: Any) -> Iterator[Entry]:
        for entry in entries(*arguments, **named):
            read.append(entry.entry_id)
            yield entry

    monkeypatch.setattr(LedgerReader, "entries", counted)
    # Nobody reads what is printed, as behind `| head -2` when the second line was shown.
    end, start = os.pipe()
    os.close(end)
    with os.fdopen(start, "w") as pipe:
        monkeypatch.setattr("sys.stdout", pipe)
        done = run(["--metadata-uri", cluster.metadata_uri, "ledger", "read", str(ledger_id)])
    assert (done, read) == (141, [0])


def test_programs_are_told_of_ledgers_by_the_names_of_the_columns(
    call: Call, numbers: Path
) -> None:
    call("ledger", "append", numbers, "--name", "counted")

    named = call("ledger", "list", "--name", "counted", "--json").json["ledgers"]

    assert named
    assert {tuple(row) for row in named} == {tuple(LEDGERS.names)}
    assert {row["custom_metadata"]["name"] for row in named} == {"counted"}
    assert call("ledger", "list", "--name", "nobody", "--json").json == {"ledgers": []}


def test_a_ledger_is_called_by_its_name_or_by_its_id(
    call: Call, numbers: Path, tmp_path: Path
) -> None:
    one = call("ledger", "append", numbers, "--name", "the one", "--json").json["ledger_id"]
    two = [
        call("ledger", "append", numbers, "--name", "2 of them", "--json").json["ledger_id"]
        for _ in range(2)
    ]
    for verb in ("show", "read", "recover", "check", "repair", "diff", "history"):
        by_id, by_name = (call("ledger", verb, each, "--json") for each in (one, "the one"))
        assert by_name.code == 0
        assert {**by_name.json, "duration_ms": 0} == {**by_id.json, "duration_ms": 0}
        several, none = (call("ledger", verb, each) for each in ("2 of them", "no one"))
        assert (several.code, f"{two[0]}, {two[1]}" in several.err) == (2, True), verb
        assert (none.code, "ledger list" in none.err, "--name" in none.err) == (2, True, True)
    assert call("bookie", "compact", "--ledger", "the one", "--json").code == 0
    assert call("cluster", "backup", tmp_path / "b", "the one", "--json").json["ledgers"] == 1
    assert call("ledger", "delete", "the one", "--yes", "--json").json["deleted"] == [one]


def test_a_ledger_is_shown_as_a_picture_of_its_fragments(call: Call, numbers: Path) -> None:
    ledger_id = call("ledger", "append", numbers, "-e", 4, "--json").json["ledger_id"]

    shown = call("ledger", "show", ledger_id).out

    assert "E=4 Qw=3 Qa=2" in shown
    assert "0..99" in shown
    assert shown.count("██ ··") + shown.count("·· ██") >= 4


def test_a_ledger_is_told_to_programs_with_its_fragments_and_slots(
    call: Call, numbers: Path
) -> None:
    ledger_id = call("ledger", "append", numbers, "--json").json["ledger_id"]

    told = call("ledger", "show", ledger_id, "--slots", "--json").json

    assert (told["state"], told["last_entry_id"]) == ("CLOSED", 99)
    assert {tuple(row) for row in told["fragments"]} == {tuple(FRAGMENTS.names)}
    assert {tuple(row) for row in told["slots"]} == {tuple(SLOTS.names)}


def test_reading_an_open_ledger_leaves_it_open_unless_recovery_is_asked_for(
    call: Call, numbers: Path
) -> None:
    ledger_id = open_ledger(call, numbers)

    looked = call("ledger", "read", ledger_id, "--json")
    state = call("ledger", "show", ledger_id, "--json").json["state"]
    read = call("ledger", "read", ledger_id, "--recover", "--json").json

    assert "is not closed" in looked.err
    assert state == "OPEN"
    assert (read["is_closed"], len(read["rows"])) == (True, 100)


def test_recovery_closes_a_ledger_and_has_nothing_to_do_the_second_time(
    call: Call, numbers: Path
) -> None:
    ledger_id = open_ledger(call, numbers)

    plan = call("ledger", "recover", ledger_id, "--dry-run", "--json")
    first = call("ledger", "recover", ledger_id, "--no-spark", "--json")
    second = call("ledger", "recover", ledger_id, "--no-spark", "--json")

    assert [list(done.json) for done in (plan, first, second)] == [REPORT_KEYS] * 3
    assert [done.json["rows"][0]["status"] for done in (plan, first, second)] == [
        "planned",
        "closed",
        "no longer needed",
    ]
    assert (plan.code, first.code, second.code) == (0, 0, 0)


def test_recovering_every_open_ledger_asks_first(call_own: Call, numbers: Path) -> None:
    ledger_id = open_ledger(call_own, numbers)

    asked = call_own("ledger", "recover", "--no-spark")
    assert "close 1 ledger, stopping its writer?" in asked.err
    state = call_own("ledger", "show", ledger_id, "--json").json["state"]
    done = call_own("ledger", "recover", "--no-spark", "--yes", "--json")

    assert (asked.code, f"ledger {ledger_id}: OPEN" in asked.err, state) == (1, True, "OPEN")
    assert (done.code, done.json["ledgers"]) == (0, 1)


@pytest.mark.parametrize("verb", ["recover", "check", "repair", "fence"])
def test_a_ledger_that_was_named_and_is_not_there_is_a_wrong_call(
    call: Call, numbers: Path, verb: str
) -> None:
    ledger_id = open_ledger(call, numbers)

    done = call("ledger", verb, ledger_id, "987654")

    assert (done.code, "there is no ledger 987654" in done.err, done.out) == (2, True, "")
    assert call("ledger", "show", ledger_id, "--json").json["state"] == "OPEN"


def test_deleting_asks_first_and_may_be_repeated(
    call: Call, numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    ledger_id = call("ledger", "append", numbers, "--json").json["ledger_id"]

    asked = call("ledger", "delete", ledger_id)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    no = call("ledger", "delete", ledger_id)
    shown = call("ledger", "show", ledger_id)
    done = call("ledger", "delete", ledger_id, "--yes", "--json")
    again = call("ledger", "delete", ledger_id, "--yes", "--json")

    assert (asked.code, "last entry 99" in asked.err, shown.code) == (1, True, 0)
    assert "Nothing was changed; --yes does it without asking" in asked.err
    assert (no.code, no.err.strip().endswith("not confirmed. Nothing was changed")) == (1, True)
    assert (done.code, done.json) == (0, {"deleted": [ledger_id], "not_found": []})
    assert (again.code, again.json) == (0, {"deleted": [], "not_found": [ledger_id]})


def test_fencing_asks_first_and_says_how_many_bookies_took_it(
    call: Call, numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    fence = ("ledger", "fence", open_ledger(call, numbers))

    planned, no = call(*fence, "--dry-run"), call(*fence)
    done, again = call(*fence, "--yes"), call(*fence, "--yes", "--json")

    assert (planned.code, "a dry run: nothing was changed" in planned.out) == (0, True)
    assert (no.code, "OPEN" in no.err, "Nothing was changed" in no.err) == (1, True, True)
    assert "was OPEN: 3 of 3 bookies fenced; its writer is stopped" in done.out
    (row,) = again.json["rows"]
    assert (row["state"], len(row["fenced"]), row["is_stopped"]) == ("IN_RECOVERY", 3, True)
    size = call("ledger", "delete", fence[-1], "--even-if-alive", "--dry-run").out
    assert "1 ledger with at least 0 bytes would go" in size, "nobody knows how many"
    gone = open_ledger(call, numbers)
    monkeypatch.setattr(deletion, "confirm", lambda _: call("ledger", "delete", gone, "--yes"))
    assert call(*fence, gone).code == 1, "something was changed"


def test_damage_is_named_repaired_and_gone(
    cluster: LocalCluster, call: Call, numbers: Path
) -> None:
    ledger_id = call("ledger", "append", numbers, "--json").json["ledger_id"]
    bookie = call("ledger", "show", ledger_id, "--json").json["bookies"][0]
    path = part_of(cluster, bookie, ledger_id)
    data = bytearray(path.read_bytes())
    for offset in range(len(data) // 3, len(data) - 8, 97):
        data[offset] ^= 0xFF
    path.chmod(0o644)
    path.write_bytes(data)

    found = call("ledger", "check", ledger_id, "--percentage", 100, "--no-spark", "--json")
    compared = call("ledger", "diff", ledger_id, "--json")
    plan = call("ledger", "repair", ledger_id, "--no-spark", "--dry-run", "--json")
    repaired = call("ledger", "repair", ledger_id, "--no-spark", "--json")
    after = call("ledger", "check", ledger_id, "--percentage", 100, "--no-spark", "--json")

    assert [done.json["dry_run"] for done in (found, plan, repaired)] == [False, True, False]
    bad = [row["source"] for row in found.json["rows"] if row["status"] != "healthy"]
    assert (found.code, bad) == (1, [bookie])
    assert (compared.code, compared.json["different"] != []) == (1, True)
    assert [row["status"] for row in plan.json["rows"]] == ["planned"]
    assert [row["status"] for row in repaired.json["rows"]] == ["replicated"]
    assert (after.code, after.json["complete"]) == (0, True)
    assert call("ledger", "diff", ledger_id).code == 0


def test_an_empty_ledger_is_closed_read_and_checked(call: Call) -> None:
    made = call("ledger", "create", "--json").json

    assert (made["state"], made["last_entry_id"]) == ("CLOSED", -1)
    assert call("ledger", "read", made["ledger_id"], "--json").json["rows"] == []
    assert call("ledger", "check", made["ledger_id"], "--no-spark").code == 0
    assert call("ledger", "diff", made["ledger_id"]).code == 0


def test_wrong_calls_say_what_is_wrong_and_change_nothing(
    call: Call, numbers: Path, tmp_path: Path
) -> None:
    secret = call("ledger", "append", numbers, "--password", "s3cret", "--json").json["ledger_id"]
    before = call("ledger", "list", "--json").json
    wrong: dict[str, list[object]] = {
        "there is no ledger 987654": ["ledger", "show", "987654"],
        "no ledger with the name 'abc'": ["ledger", "check", "abc"],
        "'1_0' is not a valid ledger id": ["ledger", "check", "1_0"],
        "987654": ["ledger", "check", "987654", "--no-spark"],
        "is not a file": ["ledger", "append", tmp_path / "nothing.txt"],
        "takes any file": ["ledger", "append", numbers, "--as", "rows"],
        "is not its own": ["ledger", "read", secret, "--password", "other"],
        "127.0.0.1:3181": ["ledger", "create", "-e", "9"],
        "are one label": ["ledger", "create", "--name", "a", "--label", "name=b"],
        "'--ensemble-size' / '-e': 0": ["ledger", "create", "-e", "0"],
        "end it in .parquet or .arrow": [
            "ledger", "read", secret, "--password", "s3cret", "--output", "rows.csv"
        ],
    }  # fmt: skip

    ended = {text: call(*arguments) for text, arguments in wrong.items()}

    assert {text: done.code for text, done in ended.items()} == dict.fromkeys(wrong, 2)
    assert [text for text, done in ended.items() if text not in done.err] == []
    assert call("ledger", "list", "--json").json == before


def test_files_of_other_columns_are_refused_before_anything_is_written(
    call: Call, tmp_path: Path
) -> None:
    one, two = tmp_path / "one.parquet", tmp_path / "two.parquet"
    pq.write_table(pa.table({"a": [1]}), one)
    pq.write_table(pa.table({"a": ["x"]}), two)
    before = call("ledger", "list", "--json").json

    done = call("ledger", "append", one, two)

    assert done.code == 2
    assert all(said in done.err for said in ("a: int64", "a: string", f"{two} after {one}: "))
    two.write_bytes(b"PAR1")
    assert "after" not in call("ledger", "append", one, two).err, "it is not the columns"
    assert call("ledger", "list", "--json").json == before


def damaged(path: Path) -> Path:
    """A file whose schema can be read, and of whose rows only the first."""
    pq.write_table(pa.table({"n": range(1_000)}), path, row_group_size=500)
    offset = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    data = path.read_bytes()
    path.write_bytes(data[:offset] + b"\xff" * 64 + data[offset + 64 :])
    return path


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_what_fails_beside_a_file_is_not_said_of_the_file(tmp_path: Path, suffix: str) -> None:
    path, rows = tmp_path / f"rows.{suffix}", pa.table({"n": range(10)})
    if suffix == "parquet":
        pq.write_table(rows, path)
    else:
        with pa.ipc.new_file(path, rows.schema) as file:
            file.write_table(rows)

    def take() -> None:
        with rows_of(str(path)) as (schema, tables):
            assert schema == rows.schema
            assert next(tables) == rows
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left"):
        take()
    path.write_bytes(b"")
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        take()


def test_a_file_that_is_damaged_in_the_middle_leaves_something_undone(
    call: Call, tmp_path: Path
) -> None:
    path = damaged(tmp_path / "rows.parquet")
    call("log", "create", "damaged", "--schema-of", path)

    done = call("ledger", "append", path)
    logged = call("log", "append", "damaged", path)

    for each in (done, logged):
        assert (each.code, f"{path} cannot be read" in each.err) == (1, True), each
    assert "not closed; `spark-bookkeeper --metadata-uri zk" in " ".join(done.err.split())


def test_a_file_that_may_not_be_read_is_refused_before_anything_is_made(
    call: Call, numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = call("ledger", "list", "--json").json
    monkeypatch.setattr(os, "access", lambda *_: False)

    done = call("ledger", "append", numbers)

    assert (done.code, "may not be read" in done.err) == (2, True)
    assert call("ledger", "list", "--json").json == before


def test_a_zookeeper_that_is_not_there_is_said_to_be_so(
    call_at: Callable[[str], Call], tmp_path: Path
) -> None:
    conf = tmp_path / "client.toml"
    conf.write_text("metadata_timeout_ms = 500\n", encoding="utf-8")

    done = call_at("zk://127.0.0.1:1/ledgers")("ledger", "list", "--conf", conf)

    assert (done.code, done.err.lower().count("nothing was changed")) == (2, 1)


def test_a_loss_is_shown_and_asked_for_before_it_is_accepted(
    own_cluster: LocalCluster, call_own: Call, numbers: Path
) -> None:
    ledger_id = open_ledger(call_own, numbers)
    lost = call_own("ledger", "show", ledger_id, "--json").json["fragments"][0]["ensemble"][:2]
    for bookie in lost:
        own_cluster.stop_bookie(bookie, destroy=True)
    accept = ("ledger", "recover", ledger_id, "--no-spark", "--accept-loss")

    refused = call_own(*accept, "--json")
    named = [word for bookie in lost for word in ("--gone", bookie)]
    plan = call_own(*accept, *named, "--dry-run", "--json")
    asked = call_own(*accept, *named)
    done = call_own(*accept, *named, "--yes", "--json")
    shown = call_own("ledger", "show", ledger_id).out
    with (
        connect_without_spark(own_cluster.metadata_uri) as bk,
        pytest.raises(InvalidArgumentError, match="accept_loss=report"),
    ):
        bk.recover_ledgers([ledger_id], accept_loss=True)
    found = {f["check"]: f for f in call_own("cluster", "health", "--json").json["findings"]}

    assert (refused.code, refused.json["rows"][0]["status"]) == (1, "left")
    assert [row["status"] for row in plan.json["rows"]] == ["planned", "given up"]
    assert (asked.code, "Give these entries up?" in asked.err) == (1, True)
    assert (done.code, [row["status"] for row in done.json["rows"]]) == (0, ["closed", "given up"])
    assert f"may be missing, lost with {', '.join(lost)}" in " ".join(shown.split())
    assert found["accepted losses"]["verdict"] == "warning"
    assert str(ledger_id) in found["accepted losses"]["detail"]


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--accept-loss"], "name the ledgers"), (["0", "--gone", "host:1"], "goes with accept_loss")],
)
def test_a_loss_is_accepted_of_ledgers_that_are_named(
    call_own: Call, numbers: Path, options: list[str], said: str
) -> None:
    open_ledger(call_own, numbers)

    done = call_own("ledger", "recover", "--no-spark", "--yes", *options)

    assert done.code == 2
    assert said in done.err


def test_a_loss_that_was_shown_to_nobody_is_not_accepted(
    own_cluster: LocalCluster, call_own: Call, numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger could be closed whole when it was looked at, and no more when it was recovered."""
    ledger_id = open_ledger(call_own, numbers)
    lost = call_own("ledger", "show", ledger_id, "--json").json["fragments"][0]["ensemble"][:2]
    look = work._ask_about_losses

    def looked_at(settings: Settings, plan: RecoveryReport) -> None:
        look(settings, plan)
        for bookie in lost:
            own_cluster.stop_bookie(bookie, destroy=True)

    monkeypatch.setattr(work, "_ask_about_losses", looked_at)
    named = [word for bookie in lost for word in ("--gone", bookie)]
    done = call_own("ledger", "recover", ledger_id, "--no-spark", "--accept-loss", *named, "--json")

    (row,) = done.json["rows"]
    assert (done.code, row["status"]) == (1, "left")
    assert "may be missing now, and the loss that was accepted is of no entry" in row["reason"]
    assert row["reason"].endswith(f"--accept-loss {' '.join(named)}`"), "as it was called"


def test_of_very_many_losses_a_person_is_shown_some(capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(None, Output())
    rows = (Row(7, "recover", Outcome.PLANNED, "would be kept", 0, n) for n in range(1000))

    work._ask_about_losses(settings, RecoveryReport("recover", tuple(rows), True, 1))
    assert capsys.readouterr().err.count("would be kept") == 40
