"""What temporary clusters leave behind when their process is killed, and who removes it."""

from __future__ import annotations

import fcntl
import tempfile
from pathlib import Path

import pytest

from spark_bookkeeper.local_cluster.leftovers import PREFIX, mark, temporary_directory


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary directories are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def cluster(said_by_holder: str = "1 birth") -> Path:
    """A temporary cluster, as its ZooKeeper leaves it."""
    directory = temporary_directory()
    mark(directory, is_temporary=True)
    (directory / "zookeeper").mkdir()
    (directory / "zookeeper" / "lock").write_text(said_by_holder)
    return directory


@pytest.mark.usefixtures("place")
def test_the_directory_of_a_killed_cluster_is_removed_by_the_next_one() -> None:
    killed = cluster()

    following = temporary_directory()

    assert not killed.exists()
    assert following.is_dir()


@pytest.mark.usefixtures("place")
def test_the_directory_of_a_cluster_that_runs_stays() -> None:
    running = cluster()
    with open(running / "zookeeper" / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        temporary_directory()

        assert running.is_dir()


@pytest.mark.usefixtures("place")
def test_the_directory_of_a_cluster_that_is_about_to_start_stays() -> None:
    starting, bare = cluster(said_by_holder=""), temporary_directory()

    temporary_directory()

    assert starting.is_dir()
    assert bare.is_dir()


@pytest.mark.usefixtures("place")
def test_a_temporary_cluster_that_somebody_started_again_by_its_name_stays() -> None:
    kept = cluster()
    mark(kept, is_temporary=False)

    temporary_directory()

    assert kept.is_dir()


def test_a_cluster_that_was_given_its_directory_stays(place: Path) -> None:
    given = place / f"{PREFIX}mine"
    (given / "zookeeper").mkdir(parents=True)
    (given / "zookeeper" / "lock").write_text("1 birth")
    link = place / f"{PREFIX}link"
    target = cluster().rename(place / "elsewhere")
    link.symlink_to(target)

    temporary_directory()

    assert given.is_dir()
    assert target.is_dir()
