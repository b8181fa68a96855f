"""Writers that are killed, frozen or cut off, as others see them, and deletions under them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kazoo.client import KazooClient

from spark_bookkeeper.cluster.local import LocalCluster
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.metadata.uri import parse_metadata_uri
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.session import BookKeeper
from spark_bookkeeper.testing.conformance.metadata import eventually
from spark_bookkeeper.testing.sessions import connect_without_spark

pytestmark = pytest.mark.integration

WRITER = """
import sys
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.testing.sessions import connect_without_spark
bk = connect_without_spark(sys.argv[1], config=ClientConfig(metadata_timeout_ms=4_000))
writer = bk.create_ledger()
writer.append(b"0")
writer.append(b"1")
print(writer.ledger_id, flush=True)
for line in sys.stdin:
    try:
        print("appended", writer.append(line.encode()), flush=True)
    except Exception as error:
        print(type(error).__name__, error.message.replace("\\n", " "), flush=True)
"""
"""Appends a line for each line that it is told; its session is short."""


class Writer:
    def __init__(self, uri: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, uri],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ledger_id = LedgerId(int(self._line()))

    def append(self) -> str:
        """What comes of an append."""
        assert self.process.stdin is not None
        self.process.stdin.write("line\n")
        self.process.stdin.flush()
        return self._line()

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "it ended"
        return line


@contextmanager
def writing(cluster: LocalCluster) -> Iterator[Writer]:
    writer = Writer(cluster.metadata_uri)
    try:
        yield writer
    finally:
        writer.process.kill()
        with writer.process:  # waits, and closes the pipes
            pass


def state_of(bk: BookKeeper, ledger_id: int) -> str | None:
    return bk.ledger(ledger_id).writer_state


@pytest.mark.full
def test_a_writer_that_is_killed_is_gone_and_its_ledger_can_be_recovered(
    cluster: LocalCluster, bk: BookKeeper
) -> None:
    with writing(cluster) as writer:
        info = bk.ledger(writer.ledger_id)
        assert info.writer is not None
        assert (info.writer.pid, info.writer_state) == (writer.process.pid, "lives")
        assert info.last_add_confirmed in (0, 1)  # the last entry once its writer has paused
        writer.signal(signal.SIGKILL)
        eventually(lambda: state_of(bk, writer.ledger_id) == "gone")

        assert bk.ledger(writer.ledger_id).writer == info.writer
        with bk.open_ledger(writer.ledger_id) as reader:
            assert reader.last_add_confirmed == 1
        assert state_of(bk, writer.ledger_id) is None


@pytest.mark.full
def test_a_frozen_writer_is_shown_as_gone_and_as_living_once_it_goes_on(
    cluster: LocalCluster, bk: BookKeeper
) -> None:
    with writing(cluster) as writer:
        writer.signal(signal.SIGSTOP)
        eventually(lambda: state_of(bk, writer.ledger_id) == "gone")
        writer.signal(signal.SIGCONT)

        eventually(lambda: state_of(bk, writer.ledger_id) == "lives")
        assert writer.append() == "appended 2\n"


@pytest.mark.full
def test_a_frozen_writer_whose_ledger_was_deleted_meanwhile_appends_nothing_more(
    cluster: LocalCluster, bk: BookKeeper
) -> None:
    with writing(cluster) as writer:
        with pytest.raises(InvalidArgumentError, match=f"process {writer.process.pid}"):
            bk.delete_ledger(writer.ledger_id)
        writer.signal(signal.SIGSTOP)
        eventually(lambda: state_of(bk, writer.ledger_id) == "gone")
        deletion = bk.delete_ledger(writer.ledger_id)
        assert (deletion.state, deletion.not_fenced) == ("OPEN", {})
        writer.signal(signal.SIGCONT)

        assert writer.append().startswith("NoSuchLedgerError")
        assert "was DELETED" in writer.append()


def test_many_writers_of_one_session_come_and_go(cluster: LocalCluster) -> None:
    config = ClientConfig(metadata_timeout_ms=8_000)
    with connect_without_spark(cluster.metadata_uri) as bk:
        with connect_without_spark(cluster.metadata_uri, config=config) as other:
            writers = [other.create_ledger() for _ in range(100)]
            mine = {writer.ledger_id for writer in writers}
            assert {i for i, _ in bk.context.store.writers()} >= mine
            store = other.context.store
            assert isinstance(store, ZooKeeperStore)
            twin = KazooClient(
                parse_metadata_uri(cluster.metadata_uri).hosts,
                client_id=store._zk._link.client.client_id,
            )
            twin.start(timeout=60)
            twin.stop()  # it ends the session of the other
            twin.close()
            writers[0].append(b"an append needs no session")
            for writer in writers[:50]:
                writer.close()

            eventually(
                lambda: (
                    {i for i, _ in bk.context.store.writers()} & mine
                    == {writer.ledger_id for writer in writers[50:]}
                )
            )
        assert not {i for i, _ in bk.context.store.writers()} & mine
        states = bk.ledgers_arrow().to_pylist()
        assert {s["writer_state"] for s in states if s["ledger_id"] in mine} == {None, "gone"}
        assert bk.recover_ledgers([w.ledger_id for w in writers[50:]]).is_complete
