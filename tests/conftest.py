"""What all tests share."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from spark_bookkeeper.bookie import probe
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.local_cluster import running_cluster
from spark_bookkeeper.runtime import unclosed
from spark_bookkeeper.storage import new_file, retry_policy
from spark_bookkeeper.storage.file_system import FileSystem
from tests.support.s3 import S3Server

pytest_plugins = ["tests.parallel", "tests.worlds"]

# A shared machine can stall any example for seconds, so no example has a deadline; on CI the
# examples are derived from the test itself, so that a run can be repeated.
settings.register_profile(
    "default",
    deadline=None,
    derandomize=os.environ.get("CI") == "true",
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("default")

# Hypothesis would parse every module of this project for constants to try: seconds in each worker.
vars(providers)["is_local_module_file"] = lambda _: False

# Nothing that is imported and collected becomes garbage (``pytest_collection_finish``).
gc.disable()

# Tests that were started in the background may have been told to ignore Ctrl-C, and so would every
# process that they start and then interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Every JVM of Spark here lives for minutes. Code compiled for hours costs it a third more. There is
# as much room for compiled code as usual: with the first option alone, the tests of Delta fill it.
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
    # A query runs once here, and compiling it takes longer than running it.
    " -Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
    " -Dspark.sql.shuffle.partitions=2",
)

# A machine that stands still for six seconds loses no bookie of a test.
running_cluster.SESSION_TIMEOUT_MS = 30_000

# A run starts hundreds of processes. Without bytecode each of them would compile the library again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Spark looks up the name of the machine, which need not have an address.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

# What whoever starts the tests has set for programs that they use themselves.
os.environ["COLUMNS"] = "80"
for name in ("FORCE_COLOR", "SPARK_BOOKKEEPER_METADATA_URI"):
    os.environ.pop(name, None)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was imported and collected is no garbage: nobody looks through it after each test."""
    gc.collect()
    gc.freeze()
    gc.enable()
    # pytest adds its handlers to Spark's loggers, and those give every handler a format of theirs.
    logs: Any = session.config.pluginmanager.get_plugin("logging-plugin")
    for handler in (logs.caplog_handler, logs.report_handler):
        handler.setFormatter = lambda _: None


@pytest.fixture(autouse=True)
def left_writers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Writers that a test leaves as a process leaves them that dies: none is closed, none warns.

    They are kept, and abandoned after the test. What becomes of dropped ones is tested in
    ``client/test_unclosed.py``, which has another fixture of this name.
    """
    kept: list[Any] = []

    def keep(runtime: Any, owner: object, work: unclosed.PendingWork) -> Callable[[], None]:
        kept.append(owner)
        return lambda: None

    with monkeypatch.context() as patch:
        patch.setattr(unclosed, "look_after", keep)
        yield
    for writer in kept:
        with suppress(BookKeeperError):
            writer.abandon()


@pytest.fixture(autouse=True)
def no_spark_is_left() -> Iterator[None]:
    """A test that has Spark started stops it: who asks for a session gets the one that runs."""
    before = running_spark()
    yield
    left = running_spark()
    if left is None or left is before:
        return
    left.stop()
    pytest.fail(f"left a running Spark behind, on {left.master}: stop it, or ask for none")


def running_spark() -> Any:
    """The Spark of this process, which has one at most; ``None`` while there is none."""
    context = sys.modules.get("pyspark.core.context")
    return None if context is None else context.SparkContext._active_spark_context


WAITING_FOR_DISKS = ("bookie", "storage", "benchmarks")
"""Directories whose tests sync as the library does, for they look at what it does with a disk. So
do the whole clusters of ``integration/`` outside the plain run: each takes five times as long."""

OUTSIDE_THE_PLAIN_RUN = ("full", "slow", "exhaustive", "peer")


@pytest.fixture(autouse=True)
def unsynced(request: pytest.FixtureRequest) -> Iterator[None]:
    """No disk is waited for, so that only those bookies are slow that a test makes slow.

    What is written is there for every process all the same: only a machine that stops would lose
    it, and no test stops one. What a disk holds then is tested in ``bookie/`` in memory. One test
    of a repair syncs 400 times, which takes longer than all else that it does. A partition that is
    formatted is probed with files of a KiB: eight of a MiB each were most of what it costs to start
    a cluster.
    """
    directory = request.path.relative_to(Path(__file__).parent).parts[0]
    is_whole = directory == "integration" and any(
        map(request.node.get_closest_marker, OUTSIDE_THE_PLAIN_RUN)
    )
    if directory in WAITING_FOR_DISKS or is_whole:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(new_file, "sync_content", os.fstat)  # what is closed is an error as ever
        patch.setattr(os, "fsync", os.fstat)
        patch.setattr(FileSystem, "sync", lambda _: None)
        patch.setattr(probe, "_CONTENT_BYTES", 1 << 10)
        yield


AS_ELSEWHERE = ("benchmarks", "integration", "simulation")
"""Directories in which a put is repeated after the pauses that it has elsewhere: they look at what
comes of time, and in a simulation that is none of ours."""


@pytest.fixture(autouse=True)
def unpaused(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A put that fails is repeated as often as ever, and at once.

    A bookie that a test takes away would be waited for, three quarters of a second each time.
    """
    directory = request.path.relative_to(Path(__file__).parent).parts[0]
    if directory not in AS_ELSEWHERE:
        monkeypatch.setattr(
            retry_policy, "PAUSES_SECONDS", (0.0,) * len(retry_policy.PAUSES_SECONDS)
        )


DELTA = "4.4.0"
DELTA_ARTIFACTS = ("delta-spark_4.2_2.13", "delta-storage")


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One server for all tests that leave it running."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto.server")
    with S3Server() as server:
        yield server


@pytest.fixture(scope="session")
def delta_jars() -> list[Path]:
    """The two jars that tables need, fetched once with Maven."""
    home = Path.home() / ".m2" / "repository" / "io" / "delta"
    found = [home / name / DELTA / f"{name}-{DELTA}.jar" for name in DELTA_ARTIFACTS]
    if not all(jar.is_file() for jar in found):
        if shutil.which("mvn") is None:
            pytest.skip("the jars of Delta are not here, and there is no Maven to fetch them")
        for name in DELTA_ARTIFACTS:
            subprocess.run(
                [
                    *["mvn", "-B", "-q", "dependency:get", "-Dtransitive=false"],
                    f"-Dartifact=io.delta:{name}:{DELTA}",
                ],
                check=True,
                timeout=300,
                stdin=subprocess.DEVNULL,
            )
    return found
