"""The place where measurements are made: one directory, one cluster, one Spark session, one peer.

Everything is made when it is first asked for, on the disk that the directory is on, and removed
at the end.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import spark_bookkeeper as sbk
from spark_bookkeeper.local_cluster import embedded_zookeeper as zookeeper
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.spark.runner import ITEMS_AT_ONCE
from tests.benchmarks.measure import PEER, Against, Contender, Target

_PEER_PROGRAM = Path(__file__).parents[1] / "peer" / "peer.py"
_DELTA_JARS = ("delta-spark_4.2_2.13:4.4.0", "delta-storage:4.4.0")
_DELTA_SECONDS_MAX = 300
_PEER_OPTIONS = (
    "-Xms1g",
    "-Xmx2g",
    "-XX:MaxDirectMemorySize=4g",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-opens=java.base/java.io=ALL-UNNAMED",
    "--add-opens=java.base/java.util.zip=ALL-UNNAMED",
)


@dataclass(frozen=True)
class Sizes:
    """How much is done in a round. ``QUICK`` shows that everything runs; it measures little."""

    rounds: int
    bulk_bytes: int
    spark_bytes: int
    delta_bytes: int
    small_bytes: int
    """For BookKeeper's 1 KB entries, which it takes at some 30 MB/s."""
    sync_appends: int
    window_appends: int
    tail_bytes: int
    recoveries: int
    job_ledgers: int
    lost_bytes: int
    lost_ledgers: int
    slots: int
    creates: int
    creates_wide: int
    micro_batches: int
    audited: int
    many: int
    """Ledgers of ``--many``."""
    small_files: int
    bucket_ledgers: int


FULL = Sizes(
    rounds=7,
    bulk_bytes=512 << 20,
    spark_bytes=512 << 20,
    delta_bytes=512 << 20,
    small_bytes=64 << 20,
    sync_appends=500,
    window_appends=200_000,
    tail_bytes=128 << 20,
    recoveries=50,
    job_ledgers=1_000,
    lost_bytes=2 << 30,
    lost_ledgers=500,
    slots=100_000,
    creates=100,
    creates_wide=500,
    micro_batches=20,
    audited=100_000,
    many=100_000,
    small_files=5_000,
    bucket_ledgers=256,
)

QUICK = Sizes(
    rounds=2,
    bulk_bytes=64 << 20,
    spark_bytes=64 << 20,
    delta_bytes=64 << 20,
    small_bytes=4 << 20,
    sync_appends=60,
    window_appends=20_000,
    tail_bytes=16 << 20,
    recoveries=10,
    job_ledgers=50,
    lost_bytes=32 << 20,
    lost_ledgers=20,
    slots=5_000,
    creates=20,
    creates_wide=64,
    micro_batches=5,
    audited=2_000,
    many=300,
    small_files=200,
    bucket_ledgers=16,
)


class MissingError(Exception):
    """Something that a contender needs is not on this machine."""


class Peer:
    """Apache BookKeeper in a JVM of its own, which takes commands. See ``PeerLoad.java``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._answer()

    def ask(self, *words: object) -> dict[str, float]:
        """Carry out a command; its figures."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "it ended"}
        if "error" in answer:
            raise RuntimeError(f"BookKeeper's process says: {answer['error']}")
        return answer


class Lab:
    """A context manager; what it made is gone afterwards."""

    def __init__(
        self, directory: Path, sizes: Sizes, *, has_peer: bool = True, has_jobs: bool = True
    ) -> None:
        self.directory = directory
        self._has_jobs = has_jobs
        """Else replication work is done in this process, where a profile sees it."""
        self.sizes = sizes
        self._peer_refusal = None if has_peer else "left out with --no-peer"
        self._stack = ExitStack()
        self._bk: sbk.BookKeeper | None = None
        self._spark: Any = None
        self._peers: dict[bool, Peer] = {}
        self._delta: str | None = None

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_peers()
        self._stack.close()

    # Ours

    @property
    def bk(self) -> sbk.BookKeeper:
        """Four local bookies and a real ZooKeeper."""
        if self._bk is None:
            self._bk = self._stack.enter_context(self.new_cluster("cluster"))
        return self._bk

    def new_cluster(self, name: str, *, heap: str | None = None) -> sbk.BookKeeper:
        """Another cluster; whoever asks closes it. ``heap``: of its ZooKeeper, as Java says it."""
        options = (
            zookeeper._JVM_OPTIONS if heap is None else (*zookeeper._JVM_OPTIONS, f"-Xmx{heap}")
        )
        with mock.patch.object(zookeeper, "_JVM_OPTIONS", options):
            return self._opened(sbk.local(self.directory / name, bookies=4, spark=self._spark))

    def connect(self, metadata_uri: str, storage_options: Mapping[str, Any]) -> sbk.BookKeeper:
        """A session with a cluster that somebody else made; whoever asks closes it."""
        found = sbk.connect(metadata_uri, self._spark, storage_options=storage_options)
        return self._opened(found)

    def _opened(self, bk: sbk.BookKeeper) -> sbk.BookKeeper:
        if not self._has_jobs:
            bk.runner = lambda *_: LocalRunner(bk.context, ITEMS_AT_ONCE)  # type: ignore[method-assign]
        return bk

    @property
    def cluster_directory(self) -> Path:
        return self.directory / "cluster"

    @property
    def spark(self) -> Any:
        """A local Spark session with two tasks at once, and with Delta where its jars are."""
        if self._spark is None:
            conf: dict[str, str] = {"spark.driver.memory": "3g"}
            try:
                jars = delta_jars()
            except MissingError as error:
                self._delta = str(error)
            else:
                conf |= {"spark.jars": jars, "spark.databricks.delta.snapshotPartitions": "1"}
            self._spark = sbk.spark_session("local[2]", delta=self._delta is None, **conf)
            self._stack.callback(self._spark.stop)
        return self._spark

    def delta_refusal(self) -> str:
        """Why there is no Delta; empty when there is."""
        assert self.spark is not None
        return self._delta or ""

    def scratch(self, name: str) -> Path:
        """A new, empty directory on the same disk."""
        path = self.directory / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def forget(self, ledger_id: LedgerId, bk: sbk.BookKeeper | None = None) -> None:
        """Delete a ledger and its files at once, so that the disk does not fill.

        Not for many small files: ext4 takes a millisecond for a new file while it avoids the
        inodes that were deleted in the last minutes. The lab's directory goes at the end.
        """
        bk = bk or self.bk
        bk.delete_ledger(ledger_id, even_if_alive=True)
        assert bk.cluster is not None
        for path in bk.cluster.directory.glob(f"bookies/*/ledgers/{ledger_id}-*"):
            shutil.rmtree(path)

    # Apache BookKeeper

    def peer(self, *, flush: bool = False) -> Peer:
        """Three bookies, or four; ``flush`` is its ``journalFlushWhenQueueEmpty``.

        Raises:
            MissingError: it cannot be run here.
        """
        if flush not in self._peers:
            home = self.scratch(f"bookkeeper-{'flush' if flush else 'plain'}")
            self._peers[flush] = self._start("PeerLoad", str(home), "4", str(flush).lower())
        return self._peers[flush]

    @contextmanager
    def indexer(self, hosts: str, root: str) -> Iterator[Peer]:
        """BookKeeper's look at all ledgers of a cluster of ours, see ``PeerIndex.java``.

        Raises:
            MissingError: it cannot be run here.
        """
        peer = self._start("PeerIndex", hosts, root)
        try:
            yield peer
        finally:
            peer.close()

    def _start(self, main_class: str, *arguments: str) -> Peer:
        if self._peer_refusal is not None:
            raise MissingError(self._peer_refusal)
        program = _load_peer()
        self._peer_refusal = program.missing()
        if self._peer_refusal is not None:
            raise MissingError(self._peer_refusal)
        return Peer(program.start(main_class, *arguments, options=_PEER_OPTIONS))

    def close_peers(self) -> None:
        """End BookKeeper's processes; the next ``peer`` starts a new one."""
        for flush, peer in list(self._peers.items()):
            del self._peers[flush]
            peer.close()
            home = self.directory / f"bookkeeper-{'flush' if flush else 'plain'}"
            shutil.rmtree(home, ignore_errors=True)

    def against_peer(
        self,
        run: Contender,
        target: Target | None,
        *,
        name: str = PEER,
        flush: bool = False,
    ) -> Against:
        """BookKeeper as a contender, started now; or the reason why it is not one."""
        try:
            self.peer(flush=flush)
        except (MissingError, RuntimeError) as error:
            return Against(name, None, target, str(error))
        return Against(name, run, target)


def _load_peer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("peer", _PEER_PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["peer"] = module
    spec.loader.exec_module(module)
    return module


def delta_jars() -> str:
    """The two jars that Delta needs, comma-separated, from the cache or by Maven.

    Raises:
        MissingError: they cannot be had here.
    """
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    home = caches / "spark-bookkeeper" / "delta"
    wanted = [home / f"{name.replace(':', '-')}.jar" for name in _DELTA_JARS]
    for name, jar in zip(_DELTA_JARS, wanted, strict=True):
        if not jar.exists():
            _fetch(name, home)
    return ",".join(map(str, wanted))


def _fetch(name: str, home: Path) -> None:
    if shutil.which("mvn") is None:
        raise MissingError("the jars of Delta are fetched with Maven, and mvn is not on the PATH")
    command: Sequence[str] = (
        "mvn",
        "-B",
        "-q",
        "dependency:copy",
        f"-Dartifact=io.delta:{name}",
        f"-DoutputDirectory={home}",
    )
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_DELTA_SECONDS_MAX)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise MissingError(f"Maven could not fetch io.delta:{name}: {error}") from error
