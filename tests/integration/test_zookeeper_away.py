"""ZooKeeper stops, starts, hangs, loses its leader; sessions end. Entries do not care."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.errors import (
    AppendFailedError,
    BookKeeperError,
    MetadataUnavailableError,
    NoSuchLedgerError,
)
from spark_bookkeeper.local_cluster import embedded_zookeeper as embedded
from spark_bookkeeper.local_cluster.java import java_home
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.session import BookKeeper
from tests.support.actors import Actor
from tests.support.program import until
from tests.support.rows import check_numbered_ledger, numbered
from tests.support.sessions import connect_without_spark, give_up_after

pytestmark = pytest.mark.integration

GIVE_UP = 1.0
"""Seconds for calls that are known to get no answer."""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster whose ZooKeeper a test may stop."""
    with LocalCluster(tmp_path / "c", bookies=4) as running:
        yield running


def test_a_writer_goes_on_while_zookeeper_is_stopped_and_closes_when_it_is_back(
    own: LocalCluster,
) -> None:
    with Actor("write", own.metadata_uri, "--rows", 3000, "--wait") as writer:
        writer.wait_for("rows", at_least=100)
        own.zookeeper.stop()
        writer.wait_for("written")  # appending needs no metadata
        assert writer.acknowledged == (2999, 3000)
        own.zookeeper.start()
        writer.tell("close")

        assert writer.wait_for("closed") == 2999
        with connect_without_spark(own.metadata_uri) as bk:
            assert check_numbered_ledger(bk, writer.ledger_id, *writer.acknowledged) == 3000


@pytest.mark.full
def test_a_bookie_lost_while_zookeeper_is_away_waits_for_it(own: LocalCluster) -> None:
    with connect_without_spark(own.metadata_uri) as bk:
        writer = bk.create_ledger()
        writer.append(numbered(0))
        lost = writer.metadata.last_fragment.ensemble[0]
        own.zookeeper.stop()
        hidden = own.root_of(lost).with_name("hidden")
        own.root_of(lost).rename(hidden)
        futures = [writer.append_async(numbered(number)) for number in range(1, 50)]
        started = threading.Timer(1.0, own.zookeeper.start)
        started.start()

        assert [future.result(60) for future in futures] == list(range(1, 50))
        until(lambda: lost not in writer.metadata.last_fragment.ensemble, "replaced")
        started.join()
        counted = bk.metrics()
        assert counted["zookeeper_client_connections_lost_total"] == 1
        assert counted["bookkeeper_client_NUM_ENSEMBLE_CHANGE_total"] == 1
        writer.close()

        assert check_numbered_ledger(bk, writer.ledger_id, 49, 50, copies=1) == 50
        hidden.rename(own.root_of(lost))


@pytest.mark.full
def test_a_writer_that_cannot_change_its_ensemble_says_what_is_certain(own: LocalCluster) -> None:
    with connect_without_spark(own.metadata_uri) as bk:
        writer = bk.create_ledger(ack_quorum_size=3)
        writer.append(numbered(0))
        lost = writer.metadata.last_fragment.ensemble[0]
        give_up_after(bk, GIVE_UP)
        own.zookeeper.stop()
        hidden = own.root_of(lost).with_name("hidden")
        own.root_of(lost).rename(hidden)

        with pytest.raises(AppendFailedError) as caught:
            writer.append(numbered(1))

        assert "entry 0 is the last acknowledged" in caught.value.message
        assert "open the ledger to recover it" in caught.value.message
        assert lost in caught.value.message
        assert "did not answer" in caught.value.message
        with pytest.raises(BookKeeperError):
            writer.close()
        hidden.rename(own.root_of(lost))
    own.zookeeper.start()

    with connect_without_spark(own.metadata_uri) as bk:
        until(lambda: len(bk.context.store.registrations()) == 4, "the bookies are back")
        bk.open_ledger(writer.ledger_id)
        assert check_numbered_ledger(bk, writer.ledger_id, 0, 1) in (1, 2)


@pytest.mark.full
def test_without_zookeeper_every_call_ends_in_time_and_says_that_nothing_changed(
    own: LocalCluster,
) -> None:
    with connect_without_spark(own.metadata_uri) as bk:
        with bk.create_ledger() as writer:
            writer.append(numbered(0))
        give_up_after(bk, GIVE_UP)
        own.zookeeper.stop()
        calls: list[Callable[[], object]] = [
            bk.create_ledger,
            lambda: bk.open_ledger(writer.ledger_id),
            lambda: bk.recover_bookie(own.bookie_ids[0]),
            lambda: bk.delete_ledger(writer.ledger_id),
        ]
        for call in calls:
            began = time.monotonic()
            with pytest.raises(MetadataUnavailableError) as caught:
                call()
            assert time.monotonic() - began < 60 * GIVE_UP
            assert "did not answer" in caught.value.message
            assert "Nothing was changed" in caught.value.message
            assert "that ZooKeeper runs there" in caught.value.message

        with pytest.raises(MetadataUnavailableError) as caught:
            bk.context.store.delete_ledger(writer.ledger_id, None)
        assert "may or may not have been made: read, then decide" in caught.value.message

    own.zookeeper.start()
    with connect_without_spark(own.metadata_uri) as bk:
        bk.delete_ledger(writer.ledger_id)
        with pytest.raises(NoSuchLedgerError):
            bk.ledger(writer.ledger_id)


@pytest.mark.full
def test_a_recovery_interrupted_by_the_loss_of_zookeeper_is_finished_by_the_next(
    own: LocalCluster,
) -> None:
    with Actor("write", own.metadata_uri, "--quorum", "4/3/2") as writer:
        writer.wait_for("rows", at_least=300)
        writer.kill()
        pid = own.zookeeper.pid
        assert pid is not None
        # What it does at the end of its session, too, is bounded by its patience.
        brief = ("--patience-ms", 10_000, "--give-up-after", GIVE_UP)
        with Actor("recover", own.metadata_uri, writer.ledger_id, *brief) as first:
            first.wait_for("connected")
            os.kill(pid, signal.SIGSTOP)  # it hangs: requests are taken and nobody answers
            try:
                _, noise = first.wait()
            finally:
                os.kill(pid, signal.SIGCONT)
            assert noise == ""
            told = first.said[-1]
        if "error" in told:
            assert told["error"]["class"] == "MetadataUnavailableError"
            assert "did not answer" in told["error"]["text"]

        with connect_without_spark(own.metadata_uri) as bk:
            bk.open_ledger(writer.ledger_id)
            check_numbered_ledger(bk, writer.ledger_id, *writer.acknowledged)


@pytest.mark.full
def test_bookies_whose_session_ended_register_again(tmp_path: Path) -> None:
    with Actor("local", tmp_path / "c") as owner:
        uri = owner.wait_for("uri")
        with connect_without_spark(uri) as bk:
            store = bk.context.store
            writer = bk.create_ledger()
            writer.append(numbered(0))
            owner.freeze()  # the agents' sessions; ZooKeeper is a process of its own
            until(lambda: not store.registrations(), "the sessions ended")
            assert writer.append(numbered(1)) == 1  # the storage is still there
            (row, *_) = bk.bookies_arrow().to_pylist()
            assert row["state"] == "lost"

            owner.thaw()

            until(lambda: len(store.registrations()) == 3, "registered again")
            writer.close()
            assert check_numbered_ledger(bk, writer.ledger_id, 1, 2) == 2


def sessions(cluster: LocalCluster) -> int:
    """How many sessions its ZooKeeper has."""
    port = cluster.zookeeper.port
    assert port is not None
    for _ in range(60):  # a busy one may be too late with an answer
        told = re.search(r"^zk_global_sessions\s+(\d+)", embedded.ask(port, "mntr"), re.M)
        if told is not None:
            return int(told.group(1))
    pytest.fail("ZooKeeper does not say how many sessions it has")


@pytest.mark.full
def test_a_writer_whose_session_ended_while_it_was_frozen_goes_on(own: LocalCluster) -> None:
    options = ["--rows", 2000, "--patience-ms", 10_000, "--wait"]  # as long lives its session
    with Actor("write", own.metadata_uri, *options) as writer:
        writer.wait_for("rows", at_least=100)
        before = sessions(own)
        writer.freeze()
        until(lambda: sessions(own) < before, "its session ended")
        writer.thaw()
        writer.tell("close")

        assert writer.wait_for("closed") == 1999  # nobody fenced it
        with connect_without_spark(own.metadata_uri) as bk:
            assert check_numbered_ledger(bk, writer.ledger_id, *writer.acknowledged) == 2000


# An ensemble of three


class ZooKeeperEnsemble:
    """Three servers on this machine."""

    def __init__(self, directory: Path) -> None:
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        ports: list[int] = []
        while len(ports) < 9:
            ports = list({*ports, embedded._free_port()})
        self.ports = {n: ports[n] for n in range(3)}
        peers = "\n".join(f"server.{n}=127.0.0.1:{ports[3 + n]}:{ports[6 + n]}" for n in range(3))
        for n in range(3):
            data = directory / str(n)
            data.mkdir(parents=True)
            (data / "myid").write_text(str(n))
            settings = embedded._SETTINGS.format(data=data, port=ports[n])
            (directory / f"{n}.cfg").write_text(f"{settings}{peers}\n")
        self.directory = directory

    @property
    def uri(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports.values())
        return f"zk://{hosts}/ledgers"

    def start(self, number: int) -> None:
        log = open(self.directory / f"{number}.log", "ab")  # noqa: SIM115  (the server's own)
        self.processes[number] = subprocess.Popen(
            [
                *[str(java_home() / "bin" / "java"), *embedded._JVM_OPTIONS],
                *["-cp", embedded._classpath()],
                "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                str(self.directory / f"{number}.cfg"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=self.directory,
        )
        log.close()

    def leader(self) -> int | None:
        for number in self.processes:
            if "Mode: leader" in embedded.ask(self.ports[number], "srvr"):
                return number
        return None

    def kill(self, number: int) -> None:
        process = self.processes.pop(number)
        process.kill()
        process.wait()

    def close(self) -> None:
        for number in list(self.processes):
            self.kill(number)


@pytest.mark.full
def test_the_leader_of_three_is_killed_again_and_again_while_ledgers_are_written(
    tmp_path: Path,
) -> None:
    from spark_bookkeeper.agent.agent import BookieAgent
    from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
    from spark_bookkeeper.protocol.ids import BookieId
    from spark_bookkeeper.runtime.runtime import ThreadRuntime
    from spark_bookkeeper.storage.local import LocalStorage

    runtime = ThreadRuntime()
    servers = ZooKeeperEnsemble(tmp_path / "zk")
    for number in range(3):
        servers.start(number)
    try:
        until(lambda: servers.leader() is not None, "a leader")
        # What a session lasts, and how long an operation goes on: more than an election takes.
        store = ZooKeeperStore(
            servers.uri, token=runtime.token, session_timeout_ms=30_000, patience_ms=60_000
        )
        store.initialize_cluster()
        agents: list[BookieAgent] = []
        for number in range(4):
            root = tmp_path / f"bookie-{number}"
            root.mkdir()
            bookie = BookieId(f"10.0.0.{number + 1}:3181")
            agents.append(BookieAgent(store, Partition(LocalStorage(root)), bookie, runtime))
            agents[-1].start()
        written: list[tuple[int, int]] = []
        stop = threading.Event()

        def write_ledgers(bk: BookKeeper) -> None:
            while not stop.is_set():
                with bk.create_ledger() as writer:
                    for number in range(20):
                        writer.append(numbered(number))
                written.append((writer.ledger_id, writer.last_add_confirmed))

        with connect_without_spark(servers.uri) as bk:
            thread = threading.Thread(target=write_ledgers, args=[bk])
            thread.start()
            for _ in range(2):
                before = len(written)
                until(lambda before=before: len(written) > before + 2, "ledgers are written")  # type: ignore[misc]
                leader = None
                while leader is None:  # a busy server may be too late with its answer
                    leader = servers.leader()
                servers.kill(leader)
                until(lambda: servers.leader() is not None, "another leader")
                servers.start(leader)
            before = len(written)
            until(lambda: len(written) > before + 2, "ledgers are written")
            stop.set()
            thread.join(60)
            assert not thread.is_alive()

            assert len({ledger_id for ledger_id, _ in written}) == len(written)
            for ledger_id, last in written:
                assert check_numbered_ledger(bk, ledger_id, last, 20) == 20
        for agent in agents:
            agent.stop()
        store.close()
    finally:
        servers.close()
