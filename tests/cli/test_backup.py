"""A cluster in a directory, and back, as a person types it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from spark_bookkeeper.cli import backup as cli_backup
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.metadata import restores
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.log import Position
from spark_bookkeeper.session import BookKeeper
from tests.cli.conftest import Call
from tests.support.sessions import connect_without_spark
from tests.twins import twins


@dataclass
class Places:
    """A cluster that is backed up, and an empty one with other bookies."""

    old: LocalCluster
    new: LocalCluster
    directory: Path

    def folder(self, name: str) -> str:
        return str(self.directory / name)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    directory = tmp_path_factory.mktemp("backup")
    with (
        twins(),
        LocalCluster(directory / "old", bookies=3) as old,
        LocalCluster(directory / "new", bookies=4) as new,
    ):
        yield Places(old, new, directory)


@pytest.fixture
def old(places: Places) -> Iterator[BookKeeper]:
    with connect_without_spark(places.old.metadata_uri) as bk:
        yield bk


@pytest.fixture
def new(places: Places) -> Iterator[BookKeeper]:
    with connect_without_spark(places.new.metadata_uri) as bk:
        yield bk


@pytest.fixture
def on_old(places: Places, call_at: Callable[[str], Call]) -> Call:
    return call_at(places.old.metadata_uri)


@pytest.fixture
def on_new(places: Places, call_at: Callable[[str], Call]) -> Call:
    return call_at(places.new.metadata_uri)


def a_ledger(bk: BookKeeper, *, entries: int = 20) -> int:
    with bk.create_ledger(password=b"secret", digest_type="MAC", name="single") as writer:
        for number in range(entries):
            writer.append(b"entry %d" % number)
    return writer.ledger_id


def a_log(bk: BookKeeper, name: str) -> list[Position]:
    log = bk.create_log(name)
    with log.become_writer() as writer:
        places = [writer.append(b"%d" % number) for number in range(2)]
        writer.roll()
        return [*places, writer.append(b"2")]


def positions_of(bk: BookKeeper, log: str) -> list[Position]:
    return [Position(e.ledger_id, e.entry_id) for e in bk.open_log(log).entries()]


def payloads(bk: BookKeeper, ledger_id: int) -> list[bytes]:
    return [entry.payload for entry in bk.open_ledger(ledger_id, b"secret").entries()]


def test_ledger_log_and_cluster_come_back_with_their_ids_and_positions(
    places: Places, old: BookKeeper, new: BookKeeper, on_old: Call, on_new: Call
) -> None:
    first, log_positions = a_ledger(old), a_log(old, "orders")
    last, more_positions = a_ledger(old), a_log(old, "visits")
    before = payloads(old, first)
    one, log, everything = map(places.folder, ("one", "log", "everything"))

    # A plan copies nothing; a ledger, a log, the cluster; what is there is copied once.
    planned = on_old("--json", "cluster", "backup", everything, "--dry-run", "--no-spark")
    assert (planned.code, Path(everything).exists()) == (0, False)
    assert {row["status"] for row in planned.json["rows"]} == {"planned"}
    called = on_old("cluster", "backup", one, first, "--no-spark")
    assert (called.code, "saved" in called.out) == (0, True)
    assert on_old("cluster", "backup", log, "--log", "orders", "--no-spark").code == 0
    whole = on_old("--json", "cluster", "backup", everything, "--no-spark")
    assert (whole.code, whole.json["complete"]) == (0, True)
    assert whole.json["ledgers"] == len(list(old.context.store.ledger_ids()))
    again = on_old("--json", "cluster", "backup", everything, "--verify", "--no-spark")
    assert (again.code, again.json["entries"]) == (0, 0)

    # Into the empty cluster: one log, then the ledger of an id below it, then all the rest.
    planned = on_new("--json", "cluster", "restore", everything, "--dry-run", "--no-spark")
    assert (planned.code, list(new.context.store.ledger_ids())) == (0, [])
    assert {row["status"] for row in planned.json["rows"]} == {"planned"}
    assert on_new("cluster", "restore", log, "--no-spark").code == 0
    assert positions_of(new, "orders") == log_positions
    assert on_new("cluster", "restore", everything, "--log", "visits", "--no-spark").code == 0
    assert on_new("cluster", "restore", everything, first, "--no-spark").code == 0
    restored = on_new("--json", "cluster", "restore", everything, "--no-spark")
    assert (restored.code, restored.json["complete"]) == (0, True)
    again = on_new("cluster", "restore", everything, "--dry-run")
    assert (again.code, "planned 0   there already 8" in again.out) == (0, True), again.out

    assert list(new.context.store.ledger_ids()) == list(old.context.store.ledger_ids())
    assert positions_of(new, "visits") == more_positions
    assert payloads(new, first) == payloads(new, last) == before
    checked = on_new("--json", "ledger", "check", "--percentage", 100, "--no-spark")
    assert {row["status"] for row in checked.json["rows"]} == {"healthy"}
    with new.open_log("orders").become_writer() as writer:
        place = writer.append(b"next")
    assert place.ledger_id > max(old.context.store.ledger_ids())
    jobs = {row["job"]: row["state"] for row in new.jobs_arrow().to_pylist()}
    assert jobs["restore"] == "complete"
    assert not restores.begun(new.context.store.registers)


def test_what_cannot_be_done_says_what_why_and_what_to_do(
    places: Places,
    old: BookKeeper,
    new: BookKeeper,
    on_old: Call,
    on_new: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger_id = new.context.store.generate_ledger_id()
    while old.context.store.generate_ledger_id() < ledger_id:
        pass
    saved, folder = a_ledger(old), places.folder("hurt")
    assert on_old("cluster", "backup", folder, saved, "--no-spark").code == 0

    def refused(called: Call, *arguments: object, code: int = 2) -> str:
        """What a person reads, on one line."""
        answer = called("cluster", *arguments, "--no-spark")
        assert answer.code == code, answer
        return " ".join((answer.err if code == 2 else answer.out).split())

    # No backup, another cluster's, half a one, and what no backup has.
    (places.directory / "home").mkdir()
    (places.directory / "home" / "diary.txt").write_text("dear")
    said = refused(on_new, "restore", places.folder("nothing"))
    assert f"{places.folder('nothing')} is no backup" in said
    assert "cluster backup" in said
    assert "of cluster" in (said := refused(on_new, "backup", folder))
    assert "another directory" in said
    assert "'nothing://there'" in (said := refused(on_old, "backup", "nothing://there"))
    assert "bookie" not in said
    options: list[tuple[str, ...]] = [(), ("--dry-run",)]
    for option in options:
        assert "no ledger 123456" in refused(on_old, "backup", folder, 123456, *option)
        assert "diary.txt" in refused(on_old, "backup", places.folder("home"), *option)
        assert "of cluster" in refused(on_new, "backup", folder, *option)
    assert len(list(Path(folder).glob("snapshots/*.arrow"))) == 1
    assert "has no ledger 123456" in refused(on_new, "restore", folder, 123456)
    assert "has no snapshot 7" in refused(on_new, "restore", folder, "--snapshot", 7)
    assert "has no log 'none'" in refused(on_new, "restore", folder, "--log", "none")
    half = shutil.copytree(folder, places.folder("half"), dirs_exist_ok=True)
    for snapshot in Path(half).glob("snapshots/*"):
        snapshot.unlink()
    assert "run `spark-bookkeeper cluster backup` again" in refused(on_new, "restore", half)

    # A table, and what is none.
    lake = places.directory / "lake"
    write_deltalake(str(lake), pa.table({"id": [1]}))
    assert "cluster backup --table" in refused(on_old, "backup", lake)
    assert "leave --no-spark out" in refused(on_old, "backup", lake, "--table")
    assert "without the directory _spark_bookkeeper/backup" in refused(on_new, "restore", lake)

    # A file of it is damaged, or missing.
    (copy,) = Path(folder).glob("ledgers/*/copies/*.arrow")
    good = copy.read_bytes()
    copy.write_bytes(good.replace(b"entry 19", b"entry 91"))
    hurt = on_new("--json", "cluster", "restore", folder, "--no-spark")
    assert hurt.code == 1
    (row,) = hurt.json["rows"]
    assert (row["ledger_id"], row["status"]) == (saved, "left")
    assert copy.name in row["reason"]
    assert f"the backup at {folder}" in row["reason"]
    assert "cluster backup --verify" in row["reason"]
    copy.unlink()
    missing = on_new("--json", "cluster", "restore", folder, "--dry-run", "--no-spark")
    assert (missing.code, missing.json["rows"][0]["status"]) == (1, "left")
    assert on_old("cluster", "backup", folder, saved, "--verify", "--no-spark").code == 0

    # What was begun is seen, and given up.
    assert f"not there: 1 ledger ({saved})" in " ".join(on_new("cluster", "health").out.split())
    kept = on_new("--json", "bookie", "gc", "--yes")
    assert not [row for row in kept.json["rows"] if row["status"] == "deleted"]
    assert "--yes is of --forget" in refused(on_new, "restore", folder, "--yes")
    assert "[URI]" in on_new("cluster", "restore", "--help").out
    wrong = on_new("cluster", "restore", "--forget", folder)
    assert (wrong.code, "takes ids" in wrong.err) == (2, True)
    plan = on_new("--json", "cluster", "restore", "--forget", "--dry-run")
    assert (plan.code, {row["ledger_id"] for row in plan.json["rows"]}) == (0, {saved})
    assert on_new("cluster", "restore", "--forget").code == 1  # nobody says yes

    def yes_and_another_begins(_: str) -> None:
        restores.begin(new.context.store.registers, LedgerId(10**6), b"another")

    with monkeypatch.context() as patched:
        patched.setattr(cli_backup, "confirm", yes_and_another_begins)
        assert on_new("cluster", "restore", "--forget", "--no-spark").code == 0
    assert restores.begun(new.context.store.registers) == [10**6]
    restores.end(new.context.store.registers, LedgerId(10**6))
    none = on_new("cluster", "restore", "--forget", "--no-spark")  # nobody is asked
    assert (none.code, "nothing to do" in none.out) == (0, True)
    assert "has used ledger id" in refused(on_new, "restore", folder, code=1)

    # An id that another ledger has.
    other = a_ledger(old)
    with new.create_ledger(ledger_id=other) as writer:
        writer.append(b"mine")
    assert on_old("cluster", "backup", folder, other, "--no-spark").code == 0
    said = refused(on_new, "restore", folder, code=1)
    assert f"the cluster has another ledger {other}" in said
    assert "empty cluster" in said
    assert [entry.payload for entry in new.open_ledger(other).entries()] == [b"mine"]


def test_a_path_may_be_relative(
    places: Places, old: BookKeeper, on_old: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = a_ledger(old)
    monkeypatch.chdir(places.directory)

    assert on_old("cluster", "backup", "./bk", saved, "--no-spark").code == 0
    planned = on_old("cluster", "restore", "bk", "--dry-run", "--no-spark")
    wrong = on_old("cluster", "restore", "s3x://foo", "--no-spark")

    assert list((places.directory / "bk" / "snapshots").iterdir())
    assert (planned.code, "snapshot 1, which has 1 ledger" in planned.err) == (0, True)
    assert (wrong.code, "no backup can be at 's3x://foo'" in wrong.err) == (2, True)
    assert "bookie backup-" not in wrong.err


def test_the_report_is_one_value_on_stdout_and_its_rows_a_file(
    places: Places, old: BookKeeper, on_old: Call, tmp_path: Path
) -> None:
    saved = a_ledger(old)

    called = on_old(
        *("--json", "cluster", "backup", places.folder("quiet"), saved, "--no-spark"),
        *("--report-file", tmp_path / "report.jsonl"),
    )

    assert called.json["report_file"] == str(tmp_path / "report.jsonl")
    assert called.json["complete"]
    (row,) = map(json.loads, (tmp_path / "report.jsonl").read_text().splitlines())
    assert (row["ledger_id"], row["status"]) == (saved, "saved")
