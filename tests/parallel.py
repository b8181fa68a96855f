"""Runs the tests in several processes: how many, which tests share one, what is made first.

``pytest-xdist`` starts the processes ("workers") and hands out the tests; ``-n 0`` runs all in
one process. Each worker has a Spark session and a ZooKeeper of its own, if its tests need them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Final

import pytest
from _pytest.unraisableexception import gc_collect_iterations_key
from typing_extensions import override
from xdist.scheduler import LoadGroupScheduling

from tests import class_archive
from tests.bytecode import pyc_of

TESTS: Final = Path(__file__).parent

ONE_WORKER: Final = ("tests/spark", "tests/delta", "tests/peer")
"""Folders whose tests share what takes seconds to start: a Spark session, a JVM of BookKeeper. The
folders in them hold tests that start processes of their own."""

FIRST: Final = (
    *("spark", "delta", "peer", "simulation", "integration", "tidy", "agent"),
    *("local_cluster", "doctor", "cli"),
)
"""Folders with the longest groups: a long group that begins last keeps all but one core idle."""


class Groups(LoadGroupScheduling):  # type: ignore[misc]  # xdist has no types
    """Sends all tests of a folder in ``ONE_WORKER``, or of a file elsewhere, to one worker.

    The groups come from the path, not from the mark ``xdist_group``, because that mark changes the
    id of a test: the id in a report could not be run.
    """

    @override
    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::", 1)[0]
        folder = os.path.dirname(path)
        return folder if folder in ONE_WORKER else path


def _folder(path: str) -> str:
    return path.removeprefix("tests/").split("/", 1)[0]


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two more than there are cores, since many tests wait; none for the tests of one file."""
    places = {argument.split("::", 1)[0] for argument in config.args}
    if len(places) == 1 and Path(*places).is_file():
        return 0
    return len(os.sched_getaffinity(0)) + 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Groups:
    config.option.loadscopereorder = False  # the order is that of ``pytest_collection_modifyitems``
    return Groups(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the folders in ``FIRST`` before the others."""
    if hasattr(config, "workerinput"):
        rank = {folder: number for number, folder in enumerate(FIRST)}
        items.sort(key=lambda item: rank.get(_folder(item.nodeid), len(FIRST)))


def pytest_configure(config: pytest.Config) -> None:
    class_archive.use(_archives(config))
    # At its end a worker of thousands of tests looks for garbage once, instead of five times.
    config.stash[gc_collect_iterations_key] = 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Make before a run of all tests what each worker would otherwise make for itself."""
    if [Path(argument).resolve() for argument in config.args] != [TESTS]:
        return
    is_written = pyc_of(next(TESTS.glob("*/test_*.py"))).exists()
    writing = [] if is_written else _write_bytecode()
    # Servers that are started before it is made do without it.
    Thread(target=class_archive.make_for_zookeeper, args=(_archives(config),)).start()
    if "not full" not in config.option.markexpr:
        class_archive.make_for_spark(_archives(config))
    for process in writing:
        process.wait()


def _archives(config: pytest.Config) -> Path:
    directory = config.rootpath / ".pytest_cache" / "java"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _write_bytecode() -> list[subprocess.Popen[bytes]]:
    """Begin to write the bytecode of all modules, a part of them on each core."""
    cores = len(os.sched_getaffinity(0))
    return [
        subprocess.Popen(
            [sys.executable, "-m", "tests.bytecode", f"{number}", f"{cores}"],
            stdin=subprocess.DEVNULL,
        )
        for number in range(cores)
    ]
