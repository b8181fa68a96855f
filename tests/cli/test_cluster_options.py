"""How a command reaches its cluster, and which ones wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from spark_bookkeeper.cli.bookie import start
from spark_bookkeeper.cli.shell import cluster_options
from spark_bookkeeper.cli.shell.cluster_options import SAID_AGAIN_SECONDS, patiently
from spark_bookkeeper.connection import Connection
from spark_bookkeeper.errors import MetadataError, MetadataUnavailableError, NoClusterError
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.testing.ground import InlineRuntime
from tests.cli.conftest import Call


def test_who_waits_for_zookeeper_says_so_at_once_and_then_each_minute() -> None:
    runtime = InlineRuntime()
    said: list[float] = []

    def connect() -> str:
        runtime.sleep(10)
        if runtime.slept < 3 * SAID_AGAIN_SECONDS:
            raise MetadataUnavailableError("no ZooKeeper answers")
        return "connected"

    assert patiently(connect, lambda _: said.append(runtime.slept), runtime) == "connected"
    assert len(said) == 3
    assert said[0] == 10
    assert all(60 <= b - a <= 72 for a, b in pairwise(said))


@pytest.mark.parametrize("error", [NoClusterError("no cluster there"), MetadataError("refused")])
def test_what_no_waiting_mends_is_raised(error: MetadataError) -> None:
    def connect() -> None:
        raise error

    with pytest.raises(type(error)):
        patiently(connect, lambda _: None, InlineRuntime())


@pytest.mark.parametrize("command", [["bookie", "list"], ["ledger", "list"]])
def test_who_is_refused_has_changed_nothing(
    call: Call, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, command: Sequence[str]
) -> None:
    def open_store(*_: object, **__: object) -> None:
        raise MetadataError("every ZooKeeper refused who this is")

    monkeypatch.setattr(Connection, "open_store", open_store)

    called = call(*command)

    assert called.code == 2
    assert "refused who this is" in called.err


@pytest.fixture
def zookeeper_is_away(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """It answers nobody; somebody presses Ctrl-C at the third attempt."""
    attempts: list[None] = []

    def open_store(*_: object, **__: object) -> None:
        attempts.append(None)
        if len(attempts) == 3:
            raise KeyboardInterrupt
        raise MetadataUnavailableError("no ZooKeeper answers")

    monkeypatch.setattr(cluster_options, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(Connection, "open_store", open_store)
    monkeypatch.setattr(start, "start_logging", lambda *_, **__: None)  # of all later tests, too
    return attempts


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["bookie", "start", "--bookie-id", "127.0.0.1:3190", "--root", "ROOT"], 1),
        (["autorecovery", "start", "--engine", "local"], 1),
        (["autorecovery", "start", "--engine", "local", "--once"], 2),
        (["bookie", "list"], 2),
    ],
)
def test_what_runs_on_waits_for_zookeeper_and_nothing_else_does(
    call: Call, tmp_path: Path, zookeeper_is_away: list[None], command: Sequence[str], code: int
) -> None:
    called = call(*[word.replace("ROOT", str(tmp_path)) for word in command])

    assert called.code == code
    assert len(zookeeper_is_away) == (3 if code == 1 else 1)
    assert called.err.count("waiting for ZooKeeper") == (code == 1)
    assert list(tmp_path.iterdir()) == []
