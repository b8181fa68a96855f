"""Ctrl-C at any moment: the process ends, leaves no other behind, and nothing is half done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.session import BookKeeper
from tests.support.actors import Actor
from tests.support.interrupts import Noise, interrupt_until_it_ends
from tests.support.program import until
from tests.support.rows import check_numbered_ledger, numbered
from tests.support.sessions import connect_without_spark
from tests.worlds import first_of

pytestmark = pytest.mark.integration

BRIEF = ("--patience-ms", "10000")
"""The end of a session with a ZooKeeper that hangs takes two thirds of it."""


def interrupted(actor: Actor) -> None:
    """It ends as a program does that was interrupted, and soon."""
    children = psutil.Process(actor.process.pid).children(recursive=True)
    presses = actor.interrupt_until_it_ends()
    code, noise = actor.wait()
    assert code in (-signal.SIGINT, 1, 130)
    assert "KeyboardInterrupt" in noise
    assert noise.count("Exception ignored") == presses - 1, noise
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []


@pytest.mark.parametrize(("kind", "rows"), first_of(("both", 700), ("small", 1), ("bulk", 400)))
def test_during_an_append(cluster: LocalCluster, bk: BookKeeper, kind: str, rows: int) -> None:
    with Actor("write", cluster.metadata_uri, "--kind", kind) as writer:
        writer.wait_for("rows", at_least=rows)

        interrupted(writer)

        assert bk.ledger(writer.ledger_id).state == "OPEN"  # left to recovery, not cut short
        bk.open_ledger(writer.ledger_id)
        check_numbered_ledger(bk, writer.ledger_id, *writer.acknowledged)


@pytest.mark.full
def test_during_a_close(tmp_path: Path) -> None:
    with (
        LocalCluster(tmp_path / "c", bookies=3) as cluster,
        Actor("write", cluster.metadata_uri, *BRIEF, "--rows", 100, "--wait") as writer,
    ):
        writer.wait_for("written")
        pid = cluster.zookeeper.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)  # the close waits for an answer
        try:
            writer.tell("close")
            writer.wait_for("closing")
            process = psutil.Process(writer.process.pid)
            until(lambda: process.status() == psutil.STATUS_SLEEPING, "it waits", 0.01)
            interrupted(writer)
        finally:
            os.kill(pid, signal.SIGCONT)
        with connect_without_spark(cluster.metadata_uri) as bk:
            assert bk.ledger(writer.ledger_id).state in ("OPEN", "CLOSED")
            bk.open_ledger(writer.ledger_id)
            assert check_numbered_ledger(bk, writer.ledger_id, 99, 100) == 100


@pytest.mark.full
def test_during_a_recovery(tmp_path: Path) -> None:
    with (
        LocalCluster(tmp_path / "c", bookies=4) as cluster,
        Actor("write", cluster.metadata_uri) as writer,
    ):
        writer.wait_for("rows", at_least=300)
        writer.kill()
        pid = cluster.zookeeper.pid
        assert pid is not None
        with Actor("recover", cluster.metadata_uri, writer.ledger_id, *BRIEF) as recoverer:
            recoverer.wait_for("connected")
            os.kill(pid, signal.SIGSTOP)
            try:
                interrupted_or_done(recoverer)
            finally:
                os.kill(pid, signal.SIGCONT)
        with connect_without_spark(cluster.metadata_uri) as bk:
            bk.open_ledger(writer.ledger_id)
            check_numbered_ledger(bk, writer.ledger_id, *writer.acknowledged)


def interrupted_or_done(actor: Actor) -> None:
    """A small recovery may be over before the signal arrives."""
    actor.interrupt()
    code, noise = actor.wait()
    assert code in (-signal.SIGINT, 0, 1, 130)
    assert code == 0 or "KeyboardInterrupt" in noise


@pytest.mark.full
def test_in_a_process_that_holds_a_whole_cluster(tmp_path: Path) -> None:
    with Actor("local", tmp_path / "c") as owner:
        uri, server = owner.wait_for("uri"), owner.wait_for("zookeeper")
        with connect_without_spark(uri) as bk:
            with bk.create_ledger() as closed:
                closed.append(numbered(0))
            opened = bk.create_ledger()
            opened.append(numbered(0))
            opened.abandon()

        interrupted(owner)

        assert not psutil.pid_exists(server)
    with LocalCluster(tmp_path / "c") as again, connect_without_spark(again.metadata_uri) as bk:
        assert again.metadata_uri == uri
        assert len(bk.context.store.registrations()) == 3
        bk.open_ledger(opened.ledger_id)
        for ledger_id in (closed.ledger_id, opened.ledger_id):
            assert check_numbered_ledger(bk, ledger_id, 0, 1) == 1


DROPS_ONE = """
import signal, time, weakref
signal.signal(signal.SIGINT, signal.default_int_handler)
class Thing: pass
def wait():
    for _ in range(12_000):  # a signal that comes just before a sleep does not cut it short
        time.sleep(0.05)
def gone(_):
    print("gone", flush=True)
    wait()
thing = Thing()
reference = weakref.ref(thing, gone)
del thing
wait()
"""


def test_an_interrupt_that_python_drops_is_pressed_again() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", DROPS_ONE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "gone\n"
    noise = Noise(process.stderr)

    presses = interrupt_until_it_ends(process, lambda: process.send_signal(signal.SIGINT), noise)

    assert presses == 2
    assert noise.whole().count("Exception ignored") == 1
    process.communicate()


@pytest.mark.full
@pytest.mark.parametrize("delay_ms", [0, 500, 1500])
def test_while_a_whole_cluster_starts(tmp_path: Path, delay_ms: int) -> None:
    with Actor("local", tmp_path / "c") as owner:
        owner.wait_for("starting")
        time.sleep(delay_ms / 1000)  # an arbitrary moment of its start is what is wanted
        children = psutil.Process(owner.process.pid).children(recursive=True)
        owner.interrupt_until_it_ends()
        code, _ = owner.wait()
        assert code != 0
        _, alive = psutil.wait_procs(children, timeout=60)
        assert alive == []
    with LocalCluster(tmp_path / "c", bookies=3) as again:
        assert len(again.running_bookie_ids) == 3
