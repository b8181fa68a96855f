"""A process that forks while it writes: the child neither waits nor harms, and connects itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.session import BookKeeper
from tests.worlds import first_of

pytestmark = pytest.mark.integration

BEGINNING = """
import multiprocessing, os, sys
import spark_bookkeeper as sbk
from tests.support.sessions import connect_without_spark

uri = sys.argv[1]
bk = connect_without_spark(uri)
writer = bk.create_ledger()
writer.append(b"a")
reader = bk.open_ledger_no_recovery(writer.ledger_id)
session = bk.context.store._zk.session_id
"""

CHILD = """
doors = [
    lambda: bk.create_ledger(), lambda: bk.open_ledger(0), lambda: bk.open_ledger_no_recovery(0),
    lambda: bk.delete_ledger(0), lambda: bk.ledger(0), bk.ledgers_arrow, bk.bookies_arrow,
    bk.ledgers, bk.bookies, lambda: bk.diff_replicas(0), lambda: bk.diff_replicas_arrow(0),
    bk.recover_ledgers, lambda: bk.recover_bookie("a:1"), bk.check_ledgers, bk.repair_ledgers,
    lambda: bk.spark, lambda: bk.context, lambda: bk.context.store.ledger_ids(),
    lambda: writer.append(b"b"), lambda: writer.append_async(b"b"), writer.close, writer.abandon,
    reader.refresh, reader.read_arrow, lambda: next(reader.entries()), lambda: next(reader.tail()),
]

def child():
    for number, door in enumerate(doors):
        try:
            door()
        except sbk.InvalidArgumentError as error:
            assert "Connect in this process" in str(error), (number, error)
            assert number == 17 or uri in str(error), (number, error)
        else:
            raise AssertionError(number)
    bk.close()
    bk.__exit__(None, None, None)
    with connect_without_spark(uri) as own, own.create_ledger() as other:
        other.append(b"of the child")
"""

END = """
print(bk.context.store._zk.session_id == session, flush=True)
assert writer.append(b"b") == 1
writer.close()
assert bk.open_ledger(writer.ledger_id).last_add_confirmed == 1
bk.close()
"""

WAYS = {
    "os.fork": """
pid = os.fork()
if pid == 0:
    child()
    sys.exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(code, flush=True)
""",
    "multiprocessing": """
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
print(process.exitcode, flush=True)
""",
}


@pytest.mark.full
@pytest.mark.parametrize("way", first_of(*WAYS))
def test_a_forked_child_says_so_and_leaves_its_parents_session_alone(
    cluster: LocalCluster, bk: BookKeeper, way: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", BEGINNING + CHILD + WAYS[way] + END, cluster.metadata_uri],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.split() == ["0", "True"]


@pytest.mark.full
def test_the_end_of_a_child_ends_no_cluster_of_its_parent() -> None:
    script = """
import os, sys
import spark_bookkeeper as sbk

bk = sbk.local(bookies=3)
writer = bk.create_ledger()
writer.append(b"a")
future = writer.append_async(b"b")
pid = os.fork()
if pid == 0:
    try:
        bk.cluster.stop_bookie(bk.cluster._running.state.bookies[0].bookie_id)
    except sbk.InvalidArgumentError as error:
        assert "runs in the process that this one was forked from" in str(error)
        bk.cluster.close()
        sys.exit(0)
    sys.exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
writer.append(b"c")
writer.close()
print(len(bk.bookies_arrow()), bk.open_ledger(writer.ledger_id).last_add_confirmed)
bk.close()
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.split() == ["0", "3", "2"]
