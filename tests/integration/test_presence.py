"""Writers that are killed, frozen or cut off, as others see them, and deletions under them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kazoo.client import KazooClient

from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.metadata.uri import parse_metadata_uri
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.session import BookKeeper
from spark_bookkeeper.testing.conformance.metadata import eventually
from tests.support.actors import Actor
from tests.support.rows import check_numbered_ledger
from tests.support.sessions import connect_without_spark
from tests.worlds import first_of

pytestmark = pytest.mark.integration

WRITER = """
import sys
from spark_bookkeeper.config import ClientConfig
from tests.support.sessions import connect_without_spark
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


KINDS = ("both", "small", "bulk")


@pytest.mark.parametrize(
    ("kind", "quorum"), first_of(*((k, q) for q in ("3/3/2", "5/3/2") for k in KINDS))
)
def test_a_frozen_writer_that_goes_on_after_a_recovery_is_told_that_it_was_fenced(
    cluster: LocalCluster, bk: BookKeeper, kind: str, quorum: str
) -> None:
    with Actor("write", cluster.metadata_uri, "--kind", kind, "--quorum", quorum) as writer:
        writer.wait_for("rows", at_least=300)
        writer.freeze()
        last = bk.open_ledger(writer.ledger_id).last_add_confirmed
        writer.thaw()
        error, text = writer.error()
        code, noise = writer.wait()

        assert error == "LedgerFencedError"
        assert "may or may not be written" in text
        assert f"ledger {writer.ledger_id}" in text
        assert (code, noise) == (0, "")
        assert writer.wait_for("confirmed") <= last, "confirmed-never-exceeds-last-entry"
        check_numbered_ledger(bk, writer.ledger_id, *writer.acknowledged)


@pytest.mark.full
def test_a_writer_frozen_before_its_close_does_not_close_what_another_recovered(
    cluster: LocalCluster, bk: BookKeeper
) -> None:
    with Actor("write", cluster.metadata_uri, "--rows", 50, "--wait") as writer:
        writer.wait_for("written")
        writer.freeze()
        bk.open_ledger(writer.ledger_id)
        writer.thaw()
        writer.tell("close")

        code, noise = writer.wait()
        assert (code, noise) == (0, "")
        # Closed exactly where it would close it is success; unless a copy that nobody waited for
        # was still on its way and met the fence.
        told = writer.said[-1]
        assert told.get("closed", told.get("confirmed")) == 49
        assert told.get("error", {"class": "LedgerFencedError"})["class"] == "LedgerFencedError"
        assert check_numbered_ledger(bk, writer.ledger_id, *writer.acknowledged) == 50


@pytest.mark.parametrize(
    ("kind", "seed"), first_of(*((k, seed) for seed in (1, 0, 2) for k in KINDS))
)
def test_whatever_a_killed_writer_was_told_is_there(
    cluster: LocalCluster, bk: BookKeeper, kind: str, seed: int
) -> None:
    dice = random.Random(f"{kind}/{seed}")
    quorum = dice.choice(["3/3/2", "5/3/2", "4/3/3", "2/2/1"])
    with Actor("write", cluster.metadata_uri, "--kind", kind, "--quorum", quorum) as writer:
        wanted = dice.choice([0, dice.randrange(1, 200), dice.randrange(200, 3000)])
        if wanted:
            writer.wait_for("rows", at_least=wanted)
        ledger_id = writer.ledger_id
        writer.kill()

        if seed % 2:  # two recoverers at once: all-closes-agree
            with Actor("recover", cluster.metadata_uri, ledger_id) as other:
                mine = bk.open_ledger(ledger_id).last_add_confirmed
                assert other.wait_for("closed") == mine
        report = bk.recover_ledgers([ledger_id])
        assert report.is_complete
        assert check_numbered_ledger(bk, ledger_id, *writer.acknowledged) >= wanted


@pytest.mark.full
def test_a_recoverer_that_is_killed_leaves_a_ledger_that_the_next_one_closes(
    cluster: LocalCluster, bk: BookKeeper
) -> None:
    dice = random.Random("recoverers")
    with Actor("write", cluster.metadata_uri, "--quorum", "5/3/2") as writer:
        writer.wait_for("rows", at_least=2000)
        writer.kill()
        for _ in range(3):
            with Actor("recover", cluster.metadata_uri, writer.ledger_id) as recoverer:
                recoverer.wait_for("connected")
                time.sleep(dice.random() * 0.03)  # a random moment of it is what is wanted
                recoverer.kill()

        bk.open_ledger(writer.ledger_id)

        check_numbered_ledger(bk, writer.ledger_id, *writer.acknowledged)
