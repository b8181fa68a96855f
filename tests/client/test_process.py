"""What belongs to one process: not to a forked child, and not into a pickle."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.ledger_info import LedgerInfo
from spark_bookkeeper.client.read.reader import Entry
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.report import Outcome, RecoveryReport, Row
from spark_bookkeeper.testing.ground import Ground

Q322 = Quorum(3, 2, 2)

# A child is made by fork, as programs make it; pytest has too many threads for that. Each line of
# the child is "name: what it was told", and the parent then goes on with what it has.
FORKED = """
import concurrent.futures, os, sys, threading
from pathlib import Path
from spark_bookkeeper.client.ledger_info import LedgerInfo
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.errors import BookKeeperError, InvalidArgumentError
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.ground import Ground

ground = Ground(Path(sys.argv[1]), bookies=3)
may_go_on = threading.Event()

def hold(place, operation, path):
    if operation == "put_if_absent" and "ledgers/0-" in path and path.endswith("1.arrow"):
        may_go_on.wait()

ground.before.append(hold)
writer = lifecycle.create_ledger(ground.context, Quorum(3, 3, 2))
kept = writer.append_async(b"a")
assert kept.result() == 0
pending = writer.append_async(b"b")
reader = lifecycle.open_ledger_no_recovery(ground.context, writer.ledger_id)
begun, tailed = reader.entries(), reader.tail()
other = lifecycle.create_ledger(ground.client(), Quorum(3, 3, 2))
with other:
    for _ in range(200):
        other.append_async(b"x")
long = lifecycle.open_ledger(ground.context, other.ledger_id)
half = long.entries()
next(half)
info = LedgerInfo.of(0, writer.metadata, ground.context, lambda table: table)
doors = {
    "append": lambda: writer.append(b"c"),
    "append_async": lambda: writer.append_async(b"c"),
    "flush": writer.flush,
    "acks_arrow": writer.acks_arrow,
    "close": writer.close,
    "abandon": writer.abandon,
    "with": lambda: writer.__exit__(None, None, None),
    "result": pending.result,
    "exception": pending.exception,
    "wait": lambda: concurrent.futures.wait([pending]),
    "callback": lambda: pending.add_done_callback(print),
    "refresh": reader.refresh,
    "entries": lambda: next(reader.entries()),
    "begun": lambda: next(begun),
    "tail": lambda: next(reader.tail()),
    "tailed": lambda: next(tailed),
    "half": lambda: next(half),
    "read_arrow": reader.read_arrow,
    "fragments": info.fragments_arrow,
    "slots": info.slots_arrow,
}

def child():
    for name, door in doors.items():
        try:
            door()
        except InvalidArgumentError as error:
            print(f"{name}: {error}", flush=True)
    assert "of another process" in repr(writer)
    assert kept.result() == 0 and kept.done() and concurrent.futures.wait([kept]).done
    reader.close()
    writer.__exit__(ValueError, ValueError(), None)

lock = writer._pipeline._changed
with lock:  # as another thread may hold it at that moment
    pid = os.fork()
if pid == 0:
    child()
    sys.exit(0)  # with finalizers and functions for the end, as of any process
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
print("parent", writer, flush=True)
may_go_on.set()
assert pending.result() == 1
assert reader.refresh() <= 1
assert len(list(half)) == 199
assert writer.append(b"c") == 2
writer.close()
"""


def test_in_a_forked_child_everything_says_at_once_where_it_was_made(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FORKED, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    *told, parent = ended.stdout.splitlines()
    assert [line.partition(":")[0] for line in told] == [
        *("append", "append_async", "flush", "acks_arrow", "close", "abandon", "with"),
        *("result", "exception", "wait", "callback"),
        *("refresh", "entries", "begun", "tail", "tailed", "half", "read_arrow"),
        *("fragments", "slots"),
    ]
    for line in told:
        assert "made in the process that this one was forked from" in line
        assert "Connect in this process: " in line
    assert parent == "parent LedgerWriter(ledger_id=0, writing, last_add_confirmed=0)"


def look(writer: LedgerWriter, ground: Ground) -> LedgerInfo:
    return LedgerInfo.of(writer.ledger_id, writer.metadata, ground.context, lambda t: t)


DUMPS: list[Callable[[Any], Any]] = [pickle.dumps, cloudpickle.dumps, copy.copy]

UNPICKLED: dict[str, Callable[[Ground], Any]] = {
    "writer of ledger 0": lambda ground: lifecycle.create_ledger(ground.context, Q322),
    "reader of ledger 0": lambda ground: lifecycle.open_ledger_no_recovery(
        ground.context, lifecycle.create_ledger(ground.context, Q322).ledger_id
    ),
    "look at ledger 0": lambda ground: look(lifecycle.create_ledger(ground.context, Q322), ground),
    "future": lambda ground: lifecycle.create_ledger(ground.context, Q322).append_async(b"x"),
    "connection to a cluster": lambda ground: ground.context,
}


@pytest.mark.parametrize("what", UNPICKLED)
@pytest.mark.parametrize("dumps", DUMPS)
def test_what_cannot_travel_says_so_and_what_to_write(
    ground: Ground, what: str, dumps: Callable[[Any], Any]
) -> None:
    thing = UNPICKLED[what](ground)
    with pytest.raises(InvalidArgumentError, match=f"a {what} belongs to the process") as told:
        dumps(thing)
    assert "Connect inside the function that runs there: " in str(told.value)


def test_in_a_closure_it_says_so_too(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, Q322)

    def write(value: bytes) -> None:
        writer.append(value)

    with pytest.raises(InvalidArgumentError, match=r"spark_bookkeeper\.connect\("):
        DUMPS[1](write)


def test_values_travel(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, Q322)
    with writer:
        writer.append(b"x")
    (entry,) = lifecycle.open_ledger(ground.context, writer.ledger_id).entries()
    again: Entry = pickle.loads(pickle.dumps(entry))
    assert again == entry
    assert again.payload == b"x"


def test_a_report_travels_without_its_session() -> None:
    row = Row(7, "copy", Outcome.REPLICATED)
    report = RecoveryReport("recover_bookie", (row,), frame=lambda table: table)
    again = pickle.loads(pickle.dumps(report))
    assert again == report
    assert again.to_arrow() == report.to_arrow()
    assert report.frame is not None
    assert again.frame is None
