"""Which work a command hands to Spark, and which it does itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_bookkeeper.cli.autorecovery import work
from spark_bookkeeper.cli.shell import engine, output
from spark_bookkeeper.cli.shell.engine import SMALL_BYTES, SMALL_ENTRIES, SMALL_LEDGERS, is_small
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.runtime.progress import Lines
from spark_bookkeeper.session.handle import ClusterHandle
from tests.cli.conftest import Call
from tests.support.sessions import connect_without_spark


@pytest.fixture
def on_spark(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs that were handed to Spark, which are done here all the same."""
    jobs: list[str] = []

    class Frames:
        def __init__(self, bk: ClusterHandle) -> None:
            self._bk = bk

        def runner(self, job: str, hosts: object = None) -> LocalRunner:
            jobs.append(job)
            return LocalRunner(self._bk.context)

        from_arrow = None

    monkeypatch.setattr(ClusterHandle, "frames", property(Frames))
    return jobs


@pytest.mark.parametrize(
    ("sizes", "small"),
    [
        ([], True),
        ([(1, 1)] * SMALL_LEDGERS, True),
        ([(1, 1)] * (SMALL_LEDGERS + 1), False),
        ([(1, SMALL_BYTES)], True),
        ([(1, SMALL_BYTES), (1, 1)], False),
        ([(SMALL_ENTRIES, 1)], True),
        ([(8_376, 67_008)] * 100, False),
    ],
)
def test_work_is_small_by_its_ledgers_and_their_entries_and_bytes(
    sizes: list[tuple[int, int]], small: bool
) -> None:
    assert is_small(sizes) is small


def test_small_work_starts_no_spark_and_large_work_does_unless_it_is_told(
    cluster: LocalCluster,
    call: Call,
    numbers: Path,
    tmp_path: Path,
    on_spark: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    some, other = (call("ledger", "append", numbers, "--json").json["ledger_id"] for _ in "12")
    bookie = call("ledger", "show", some, "--json").json["bookies"][0]
    saved = str(tmp_path / "saved")
    commands: list[tuple[Any, ...]] = [
        ("cluster", "backup", saved, some, other),
        ("ledger", "check"),
        ("ledger", "recover", "--yes"),
        ("ledger", "repair", some, other),
        ("autorecovery", "rereplicate"),
        ("bookie", "rebalance", "--yes"),
        ("bookie", "drain", bookie, "--yes"),
    ]
    assert [(each, on_spark) for each in commands if call(*each).code == 2] == []
    assert on_spark == []
    for each in commands[:4]:
        assert (each, call(*each, "--spark").code) != (each, 2)
    assert on_spark == ["backup", "check_ledgers", "recover_ledgers", "repair_ledgers"]

    on_spark.clear()
    with monkeypatch.context() as patch:
        patch.setattr(engine, "SMALL_ENTRIES", 1)
        call("ledger", "check", some)
        call("cluster", "restore", saved)
    assert on_spark == ["check_ledgers", "restore"], "of their entries, as metadata and backup tell"

    monkeypatch.setattr(engine, "SMALL_LEDGERS", 1)
    on_spark.clear()
    for each in (*commands, ("cluster", "restore", saved)):
        call(*each)
        call(*each, "--no-spark")
    told = ["backup", "check_ledgers", "repair_ledgers", "rebalance", "restore"]
    assert on_spark == told, "no ledger names the drained one any more, and none is published"
    on_spark.clear()
    with connect_without_spark(cluster.metadata_uri) as bk:
        for ledger_id in (some, other):
            bk.context.store.underreplication.mark(ledger_id, [bookie], 0)
    assert call("autorecovery", "audit").code == 0
    assert on_spark == [], "it reads metadata only"
    call("autorecovery", "rereplicate")
    assert on_spark == ["rereplicate"]
    monkeypatch.setattr(work, "LEDGERS_FOR_SPARK", 1)
    call("autorecovery", "audit")
    assert on_spark == ["rereplicate", "audit"]
    on_spark.clear()
    assert call("ledger", "check", some).code == 0
    assert (call("ledger", "recover").code, on_spark) == (0, [])  # none of all of them is open
    monkeypatch.setattr(engine, "READ_LEDGERS", 1)
    assert (call("ledger", "recover").code, on_spark) == (0, ["recover_ledgers"])


def test_progress_says_where_the_work_is_done(
    call: Call, numbers: Path, on_spark: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []

    class Told(Lines):
        def phase(self, what: str, *so_far: Any) -> None:
            shown.append(what)

    monkeypatch.setattr(output, "shown", Told)
    ledger_id = call("ledger", "append", numbers, "--json").json["ledger_id"]
    for told, where in (("--no-spark", "in this process"), ("--spark", "on Spark")):
        shown.clear()
        assert call("ledger", "check", ledger_id, told).code == 0
        assert {what.split(", ")[1] for what in shown} == {where}, shown
