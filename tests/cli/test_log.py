"""``spark-bookkeeper log``, as a person and a program use it."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from datetime import time, timedelta
from decimal import Decimal
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spark_bookkeeper as sbk
from spark_bookkeeper.client.read.reader import Entry
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.logs.log import Log
from spark_bookkeeper.logs.writer import LogWriter
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from tests.cli.conftest import Call


@pytest.mark.integration
def test_a_log_from_its_creation_to_its_end(call: Call, numbers: Path) -> None:
    assert call("log", "create", "story", "-e", 4).code == 0
    first = call("log", "append", "story", numbers, "--json").json
    second = call("log", "append", "story", numbers, "--json").json

    assert first["ledger_id"] < second["ledger_id"]
    listed = {row["log"]: row for row in call("log", "list", "--json").json["logs"]}
    assert listed["story"] == {
        "log": "story",
        "ledgers": 2,
        "newest_ledger_id": second["ledger_id"],
        "state": "CLOSED",
    }
    assert str(second["ledger_id"]) in call("log", "show", "story").out
    lines = numbers.read_text().splitlines()
    rows = call("log", "read", "story", "--json").json["rows"]
    assert [row["payload"] for row in rows] == lines * 2
    assert rows[0]["position"] == f"{first['ledger_id']}:0:0"
    start = f"{second['ledger_id']}:1"
    assert call("log", "read", "story", "--start", start, "--json", "--limit", 1).json["rows"] == [
        {"position": f"{start}:0", "payload": lines[1]}
    ]
    assert call("log", "truncate", "story", start, "--yes", "--json").json["deleted"] == [
        first["ledger_id"]
    ]
    gone = call("log", "read", "story", "--start", f"{first['ledger_id']}:0")
    assert (gone.code, "truncated" in gone.err) == (2, True)
    assert call("log", "delete", "story", "--yes", "--json").json["deleted"] == [
        second["ledger_id"]
    ]
    assert call("log", "read", "story").code != 0


def test_rows_go_into_a_log_of_their_schema(call: Call, tmp_path: Path) -> None:
    table = pa.table({"n": [1, 2, 3]})
    pq.write_table(table, tmp_path / "rows.parquet")

    call("log", "create", "typed", "--schema-of", tmp_path / "rows.parquet")
    call("log", "append", "typed", tmp_path / "rows.parquet")

    rows = call("log", "read", "typed", "--json").json["rows"]
    assert [row["n"] for row in rows] == [1, 2, 3]
    assert [row["position"].split(":")[2] for row in rows] == ["0", "1", "2"]


def test_a_follower_prints_what_there_is_and_goes_on(call: Call, numbers: Path) -> None:
    call("log", "create", "followed")
    call("log", "append", "followed", numbers)

    shown = call("log", "read", "followed", "--follow", "--limit", 3)

    assert [line.split()[-1] for line in shown.out.splitlines()] == (
        numbers.read_text().splitlines()[:3]
    )


def test_ctrl_c_ends_a_follower_as_it_is_meant_to(
    call: Call, numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("log", "create", "until-ctrl-c")
    call("log", "append", "until-ctrl-c", numbers)

    def interrupted(log: Log, start: str | None = None) -> Iterator[Entry]:
        yield from islice(log.entries(start), 2)
        raise KeyboardInterrupt

    monkeypatch.setattr(Log, "tail", interrupted)
    shown = call("log", "read", "until-ctrl-c", "--follow")

    assert (shown.code, shown.err) == (0, "")
    assert [line.split()[-1] for line in shown.out.splitlines()] == ["0", "1"]


def test_an_append_that_cannot_be_deposes_no_writer(
    call: Call, cluster: LocalCluster, numbers: Path, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"n": [1, 2, 3]}), tmp_path / "rows.parquet")
    call("log", "create", "kept", "--schema-of", tmp_path / "rows.parquet")
    call("log", "create", "of-bytes")
    with sbk.connect(cluster.metadata_uri) as bk, bk.open_log("kept").become_writer() as writer:
        with bk.open_log("of-bytes").become_writer() as other:
            done = call("log", "append", "of-bytes", numbers, tmp_path / "rows.parquet")
            other.append(b"goes on")
        assert (done.code, "n: int64" in done.err) == (2, True)
        writer.append(pa.table({"n": [0]}))
        for said, *files in (
            ("nothing was appended", numbers),
            ("nothing was appended", tmp_path / "rows.parquet", numbers),
            ("nothing was changed", tmp_path / "none"),
        ):
            done = call("log", "append", "kept", *files)
            assert (done.code, said in done.err) == (2, True), done.err
        writer.append(pa.table({"n": [1]}))


def test_an_append_says_where_it_came_to(
    call: Call, numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("log", "create", "cut-off")
    (tmp_path / "empty").touch()
    assert "nothing was appended" in call("log", "append", "cut-off", tmp_path / "empty").out
    call("log", "create", "rolling", "--roll-bytes", 1, "--roll-entries", 10)
    last = call("log", "append", "rolling", numbers, "--json").json["last_position"]
    (row,) = call("log", "read", "rolling", "--start", last, "--json").json["rows"]
    assert row == {"position": last, "payload": "99"}

    def interrupted(writer: LogWriter) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LogWriter, "flush", interrupted)
    done = call("log", "append", "cut-off", numbers)
    assert (done.code, "whoever appends to the log next closes it" in done.err) == (1, True)
    assert "acknowledged up to" in done.err


def test_programs_get_all_of_every_value(call: Call, cluster: LocalCluster) -> None:
    rows = pa.table(
        {
            "position": ["mine"],
            "entry_id": pa.array([77], pa.int64()),
            "blob": pa.array([bytes(range(156, 256))], pa.binary()),
            "price": pa.array([Decimal("1.50")], pa.decimal128(9, 2)),
            "at": pa.array([time(6, 30)], pa.time64("us")),
            "took": pa.array([timedelta(seconds=90)], pa.duration("us")),
            "ratios": pa.array([[math.nan, math.inf, 0.5]], pa.list_(pa.float64())),
        }
    )
    with sbk.connect(cluster.metadata_uri) as bk:
        log = bk.create_log("of-all-kinds", schema=rows.schema)
        with log.become_writer() as writer:
            ledger_id = writer.append(rows).ledger_id
    values = {
        "position": "mine",
        "entry_id": 77,
        "blob": bytes(range(156, 256)).hex(),
        "price": "1.50",
        "at": "06:30:00",
        "took": "0:01:30",
        "ratios": ["NaN", "Infinity", 0.5],
    }

    (row,) = call("log", "read", "of-all-kinds", "--json").json["rows"]
    assert row == {"_position": f"{ledger_id}:0:0", **values}
    (row,) = call("ledger", "read", ledger_id, "--json").json["rows"]
    assert row == {"_entry_id": 0, **values}
    assert "_position" in call("log", "read", "of-all-kinds").out
    assert call("ledger", "read", ledger_id).out.count("77") == 1


def test_rows_are_read_and_ledgers_truncated_by_time(
    call: Call, cluster: LocalCluster, numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("log", "create", "timed")
    first, second = (
        call("log", "append", "timed", numbers, "--json").json["ledger_id"] for _ in range(2)
    )
    with sbk.connect(cluster.metadata_uri) as bk:
        begun = next(bk.open_log("timed").entries(f"{second}:0")).appended_at
    assert begun is not None

    def ledgers(*arguments: object) -> list[int]:
        rows = call("log", "read", "timed", "--json", *arguments).json["rows"]
        return [int(row["position"].split(":")[0]) for row in rows]

    local = begun.astimezone().replace(tzinfo=None)
    zulu = begun.isoformat().replace("+00:00", "Z")
    for told in (begun.isoformat(), zulu, local.isoformat(" ")):
        assert ledgers("--start-time", told) == [second] * 100
        assert ledgers("--end-time", told) == [first] * 100
    assert len(ledgers("--start-time", "1h", "--end-time", "2099-01-01")) == 200
    assert ledgers("--end-time", "1h") == []
    followed = call("log", "read", "timed", "--follow", "--limit", 1, "--start-time", zulu)
    assert followed.out.startswith(f"{second}:0:0")
    turned = call("log", "read", "timed", "--start-time", "2099-01-01", "--end-time", "1h")
    assert (turned.code, "Exchange them" in turned.err) == (2, True)

    nothing = {"log": "timed", "dry_run": False, "planned": [], "deleted": []}
    assert call("log", "truncate", "timed", "--older-than", "7d", "--json").json == nothing
    with monkeypatch.context() as patch:
        in_a_month = ThreadRuntime().wall_ms() + 30 * 86_400_000
        patch.setattr(ThreadRuntime, "wall_ms", lambda _: in_a_month)
        seen = call("log", "truncate", "timed", "--older-than", "7d", "--dry-run", "--json").json
    assert seen == {**nothing, "dry_run": True}, "this machine's clock is ahead"
    seen = call("log", "truncate", "timed", "--before-time", zulu, "--dry-run", "--json").json
    assert [each["ledger_id"] for each in seen["planned"]] == [first]
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    refused = call("log", "truncate", "timed", "--end-time", zulu)
    assert (refused.code, "Nothing was changed" in refused.err) == (1, True)
    done = call("log", "truncate", "timed", "--before-time", zulu, "--yes", "--json").json
    assert done["deleted"] == [first]
    assert ledgers() == [second] * 100


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("truncate", "nowhere"), "--older-than 7d"),
        (("truncate", "nowhere", "7:0", "--older-than", "7d"), "said once"),
        (("truncate", "nowhere", "--older-than", "7d", "--before-time", "7d"), "said once"),
        (("truncate", "nowhere", "--older-than", "7"), "12h, 7d"),
        (("read", "nowhere", "--start-time", "yesterday"), "2026-11-22T06:30:00Z"),
        (("read", "nowhere", "--start", "7:0", "--start-time", "1h"), "in two ways"),
        (("read", "nowhere", "--end", "7:0", "--end-time", "1h"), "in two ways"),
        (("read", "nowhere", "--follow", "--end-time", "1h"), "no end"),
        (("create", "a/b"), "orders-2024"),
        (("create", "x", "--name", "y"), "many"),
        (("append", "nowhere", "/no/such/file"), "is not a file; nothing was changed"),
        (("read", "nowhere"), "no log 'nowhere'"),
        (("truncate", "nowhere", "soon"), "7:12:0"),
        (("truncate", "nowhere", f"{'9' * 5000}:0"), "7:12:0"),
        (("consumers", "nowhere"), "no log 'nowhere'"),
        (("delete", "nowhere", "--yes"), "no log 'nowhere'"),
        (("read", "nowhere", "--follow", "--json"), "no end"),
    ],
)
def test_a_wrong_call_ends_with_2_and_says_why(
    call: Call, arguments: tuple[str, ...], said: str
) -> None:
    done = call("log", *arguments)

    assert (done.code, said in done.err) == (2, True), done.err


def test_named_followers_are_shown_and_forgotten(
    call: Call, cluster: LocalCluster, numbers: Path
) -> None:
    call("log", "create", "followed", "--retain-seconds", 3600, "--retain-for", "etl")
    assert "no named followers" in call("log", "consumers", "followed").out
    written = call("log", "append", "followed", numbers, "--json").json
    with sbk.connect(cluster.metadata_uri) as bk:
        bk.open_log("followed").publish("etl", f"{written['ledger_id']}:1")

    (row,) = call("log", "consumers", "followed", "--json").json["consumers"]
    lines = len(numbers.read_text().splitlines())
    assert (row["consumer"], row["entries_behind"]) == ("etl", lines - 1)
    assert f"{written['ledger_id']}:1" in call("log", "consumers", "followed").out
    forget = ("log", "consumers", "followed", "--forget", "etl")
    assert "would be forgotten" in call(*forget, "--dry-run").out
    assert len(call(*forget, "--dry-run", "--json").json["consumers"]) == 1
    assert "is forgotten" in call(*forget).out
    assert call("log", "consumers", "followed", "--json").json["consumers"] == []
