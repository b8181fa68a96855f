"""Writers that nobody closed: dropped, or left when their process ends."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.write.append_pipeline import AppendPipeline
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import (
    AppendFailedError,
    BookieUnavailableError,
    LedgerFencedError,
    MetadataUnavailableError,
)
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.runtime import unclosed
from spark_bookkeeper.testing.ground import METADATA, Ground
from tests.hooks import NO_ANSWER, At
from tests.support.rows import wait_for_every_copy
from tests.worlds import first_of, payloads

Q322 = Quorum(3, 2, 2)
DROPPED = r"a writer was dropped without close\(\)"


@pytest.fixture(autouse=True)
def left_writers() -> Iterator[None]:
    """Here they are dropped in earnest; nothing is left for the end of the tests."""
    yield
    gc.collect()
    assert not unclosed._left


def create(ground: Ground) -> LedgerWriter:
    return lifecycle.create_ledger(ground.context, Q322)


def threads() -> int:
    names = ("channel-", "writer-watch", "ensemble-change", "delivery")
    return sum(1 for t in threading.enumerate() if t.name.startswith(names))


def all_gone() -> bool:
    return threads() == 0 and not unclosed._left


def test_a_dropped_writer_warns_and_gives_its_threads_back(ground: Ground) -> None:
    writer = create(ground)
    ledger_id = writer.ledger_id
    for _ in range(3):
        writer.append(b"x")
    assert threads() > 0
    with pytest.warns(ResourceWarning, match=DROPPED) as told:
        del writer
    (warning,) = told
    assert f"Ledger {ledger_id}: last add confirmed 2; entries 0 to 2 are" in str(warning.message)
    ground.until(all_gone)


def test_a_dropped_writer_that_never_appended_warns_too(ground: Ground) -> None:
    with pytest.warns(ResourceWarning, match="last add confirmed -1; nothing was appended"):
        create(ground)
    ground.until(all_gone)


@pytest.mark.parametrize("how", ["close", "abandon", "with", "error in with", "error told"])
def test_a_writer_that_was_ended_does_not_warn(ground: Ground, how: str) -> None:
    writer = create(ground)
    writer.append(b"x")
    if how == "close":
        writer.close()
    elif how == "abandon":
        writer.abandon()
    elif how == "with":
        with writer:
            pass
    elif how == "error in with":
        with pytest.raises(ZeroDivisionError), writer:
            raise ZeroDivisionError
    else:
        lifecycle.open_ledger(ground.client(), writer.ledger_id)
        with pytest.raises(LedgerFencedError):
            writer.append(b"y")
    del writer
    gc.collect()
    ground.until(all_gone)


def test_a_dropped_writer_whose_close_had_no_answer_says_that_nothing_is_known(
    ground: Ground,
) -> None:
    writer = create(ground)
    writer.append(b"x")
    ground.before.append(At(None, NO_ANSWER, on=METADATA))
    with pytest.raises(MetadataUnavailableError):
        writer.close()
    with pytest.warns(ResourceWarning, match="Whether it was closed is not known"):
        del writer
    ground.until(all_gone)


def test_what_a_dropped_writer_had_on_its_way_is_stored_and_its_futures_told(
    ground: Ground,
) -> None:
    may_go_on = threading.Event()
    ground.before.append(At("put_if_absent", lambda: may_go_on.wait(60), within="/slots/"))
    writer = create(ground)
    ledger_id = writer.ledger_id
    futures = [writer.append_async(b"%d" % n) for n in range(20)]
    with pytest.warns(ResourceWarning, match="0 to 19 may or may not be written"):
        del writer
    assert threads() > 0
    may_go_on.set()
    assert [future.result(60) for future in futures] == list(range(20))
    ground.until(all_gone)
    assert payloads(ground, ledger_id) == [b"%d" % n for n in range(20)]


def test_futures_of_a_dropped_writer_whose_bookies_are_lost_are_told_so(ground: Ground) -> None:
    may_fail = threading.Event()

    def fail(place: str, operation: str, path: str) -> None:
        if operation == "put_if_absent" and "/slots/" in path:
            may_fail.wait(60)
            raise BookieUnavailableError("gone", bookie_id=place)

    ground.before.append(fail)
    writer = create(ground)
    future = writer.append_async(b"x")
    with pytest.warns(ResourceWarning, match=DROPPED):
        del writer
    may_fail.set()
    with pytest.raises(AppendFailedError):
        future.result(60)
    ground.until(all_gone)


def test_a_dropped_writer_does_not_wait_for_a_bookie_that_hangs(tmp_path: Path) -> None:
    ground = Ground(tmp_path, config=ClientConfig(add_timeout_ms=3_000))
    ended = threading.Event()
    hangs = At(None, lambda: ended.wait(60), on=ground.bookie_ids[0], within="/slots/")
    ground.before.append(hangs)
    writer = lifecycle.create_ledger(ground.context, Quorum(3, 3, 2))
    writer.append(b"x")
    with pytest.warns(ResourceWarning, match=DROPPED):
        del writer
    ground.until(lambda: not unclosed._left)
    ended.set()
    ground.until(all_gone)


@pytest.mark.parametrize("writers", first_of(100, 1_000))
def test_many_dropped_writers_leave_neither_threads_nor_memory(
    ground: Ground, writers: int
) -> None:
    kept: list[weakref.ref[AppendPipeline]] = []
    for _ in range(writers):
        writer = create(ground)
        writer.append(b"x")
        kept.append(weakref.ref(writer._pipeline))
        with pytest.warns(ResourceWarning, match=DROPPED):
            del writer
        ground.until(lambda: threads() < 20)
    ground.until(all_gone)
    gc.collect()
    ground.until(lambda: not any(ref() is not None for ref in kept))


def test_a_writer_in_a_cycle_may_be_collected_with_any_lock_held(ground: Ground) -> None:
    """Python collects in whichever thread allocates: a channel of that very writer, for example."""

    class Holder:
        def __init__(self, writer: LedgerWriter) -> None:
            self.writer = writer
            self.itself = self

    holder = Holder(create(ground))
    future: Future[int] = holder.writer.append_async(b"x")
    lock = holder.writer._pipeline._changed
    ref = weakref.ref(holder.writer)
    future.result(60)
    del holder
    with pytest.warns(ResourceWarning, match=DROPPED), lock:
        gc.collect()
    assert ref() is None
    ground.until(all_gone)


# The end of a process

SCRIPT = """
import sys, threading
from pathlib import Path
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.runtime import unclosed
from spark_bookkeeper.client.write.append_pipeline import AppendPipeline
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.ground import Ground

ground = Ground(Path(sys.argv[1]), bookies=3)
may_go_on = threading.Event()

def hold(place, operation, path):
    if operation == "put_if_absent" and path.endswith("1.arrow"):
        may_go_on.wait()

ground.before.append(hold)
writer = lifecycle.create_ledger(ground.context, Quorum(3, 3, 2))
writer.append(b"a")
writer.append_async(b"b")  # held up until the end waits for it
settle = AppendPipeline.settle
AppendPipeline.settle = lambda adds, seconds: (may_go_on.set(), settle(adds, seconds))
"""


def test_a_process_that_ends_waits_for_what_is_on_its_way_and_says_so(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert "Ledger 0: last add confirmed 1; entries 0 to 1 are acknowledged." in ended.stderr
    assert "open_ledger" in ended.stderr


# The same, in this process


@pytest.fixture
def pair(ground: Ground) -> Iterator[LedgerWriter]:
    """A writer whose second entry is held up on all its bookies until the test has ended."""
    may_go_on = threading.Event()
    ground.before.append(At("put_if_absent", lambda: may_go_on.wait(60), within="1.arrow"))
    writer = lifecycle.create_ledger(ground.context, Quorum(3, 3, 2))
    writer.append(b"a")
    wait_for_every_copy(writer)
    yield writer
    may_go_on.set()
    writer.abandon()


def test_at_the_end_it_is_said_what_is_not_certain(
    pair: LedgerWriter, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(unclosed, "EXIT_SECONDS", 0.1)
    pair.append_async(b"b")
    pair.append_async(b"c")

    unclosed._end()

    told = capsys.readouterr().err
    assert told.count("\n") == 1, told
    assert "entries 0 to 0 are acknowledged, 1 to 2 may or may not be written" in told


def test_a_failure_that_nobody_was_told_is_told_at_the_end(
    ground: Ground, pair: LedgerWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    error = BookieUnavailableError("the disk burnt", bookie_id=ground.bookie_ids[0])
    ground.before[:] = [At(None, error)]
    pair.append_async(b"b")
    ground.until(lambda: "failed" in repr(pair))

    unclosed._end()

    told = capsys.readouterr().err
    assert "1 to 1 may or may not be written (ledger 0 takes no more" in told


def test_of_appends_that_are_all_acknowledged_there_is_only_a_warning_at_the_end(
    pair: LedgerWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.warns(
        ResourceWarning, match=r"the process ends without close\(\) of a writer. Led"
    ):
        unclosed._end()

    assert capsys.readouterr().err == ""


def test_of_a_writer_that_was_closed_nothing_is_said_at_the_end(
    ground: Ground, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = create(ground)
    writer.append(b"a")
    writer.close()

    unclosed._end()

    assert capsys.readouterr().err == ""
