"""Bookies that go, hang, are full or lose answers while a ledger is written to them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent import futures
from pathlib import Path

import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.connection import storage_of
from spark_bookkeeper.errors import (
    AppendFailedError,
    BookieFullError,
    BookieUnavailableError,
    LedgerFencedError,
    NoSuchLedgerError,
    ProcessLimitError,
)
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.storage import new_file
from spark_bookkeeper.storage.retry_policy import PAUSES_SECONDS
from spark_bookkeeper.testing.ground import METADATA, Ground, StandingStill
from spark_bookkeeper.testing.hanging import Hang
from tests.client.gates import Gate, hold_adds
from tests.hooks import At
from tests.support.rows import wait_for_every_copy
from tests.worlds import USUAL, payloads


@pytest.mark.parametrize("sizes", [(3, 3, 2), (3, 3, 3), (4, 3, 2), (3, 2, 2), (2, 2, 1)])
def test_a_bookie_destroyed_between_appends_is_replaced(
    tmp_path: Path, sizes: tuple[int, int, int]
) -> None:
    ground = Ground(tmp_path, bookies=6)
    with lifecycle.create_ledger(ground.context, Quorum(*sizes)) as writer:
        for i in range(5):
            writer.append(b"%d" % i)
        victim = writer.metadata.last_fragment.ensemble[1]
        ground.stop(victim, destroy=True)
        for i in range(5, 15):
            writer.append(b"%d" % i)
        ground.until(lambda: victim not in writer.metadata.last_fragment.ensemble)

    assert victim not in writer.metadata.last_fragment.ensemble
    assert payloads(ground, writer) == [b"%d" % i for i in range(15)]


def test_bookies_destroyed_one_after_the_other_under_a_stream_of_appends(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=7)
    writer = lifecycle.create_ledger(ground.context, Quorum(4, 3, 2))
    futures, lost = [], list[str]()
    for i in range(3000):
        futures.append(writer.append_async(b"%d" % i))
        if i in (500, 1500, 2500):
            futures[i - 300].result(60)
            lost.append(writer.metadata.last_fragment.ensemble[i % 4])
            ground.stop(lost[-1])
    ground.until(lambda: not set(lost) & set(writer.metadata.last_fragment.ensemble))
    assert [f.result(60) for f in futures] == list(range(3000))
    writer.close()

    assert payloads(ground, writer) == [b"%d" % i for i in range(3000)]
    assert len(writer.metadata.fragments) > 1


def test_a_full_bookie_is_replaced_without_retrying(ground: Ground) -> None:
    with lifecycle.create_ledger(ground.context, USUAL) as writer:
        writer.append(b"a")
        wait_for_every_copy(writer)
        victim = writer.metadata.last_fragment.ensemble[0]
        error = BookieFullError(f"bookie {victim}: no space left", bookie_id=victim)
        ground.before.append(At("put_if_absent", error, on=victim))
        ground.forget()
        writer.append(b"b")
        writer.append(b"c")
        ground.until(lambda: victim not in writer.metadata.last_fragment.ensemble)
    assert len([s for s in ground.steps if s[:2] == (victim, "put_if_absent")]) == 1
    ground.before.clear()
    assert payloads(ground, writer) == [b"a", b"b", b"c"]


def test_a_process_that_may_open_no_more_files_replaces_no_bookie_for_it(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.client(StandingStill()), USUAL)
    writer.append(b"a")
    wait_for_every_copy(writer)
    members = writer.metadata.last_fragment.ensemble
    away = members[0]
    error = ProcessLimitError("this process may open no more files", bookie_id=away)
    tries = At("put_if_absent", error, on=away)
    ground.before.append(tries)
    with pytest.raises(AppendFailedError, match="this process may open no more files"):
        ground.until(lambda: writer.append(b"b") < 0)

    assert len(set(tries.met)) == 1, "it is repeated in the same slot"
    assert len(tries.met) > 1
    assert writer.metadata.last_fragment.ensemble == members
    ground.before.clear()
    acknowledged = writer.last_add_confirmed
    with lifecycle.open_ledger(ground.client(), writer.ledger_id) as reader:
        assert reader.last_add_confirmed >= acknowledged
        assert reader.metadata.last_fragment.ensemble == members


def test_a_close_of_what_is_acknowledged_needs_no_files_of_the_last_bookie(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.client(StandingStill()), USUAL)
    writer.append(b"a")
    wait_for_every_copy(writer)
    away = writer.metadata.last_fragment.ensemble[0]

    def exhausted(place: str, operation: str, path: str) -> None:
        if place == away and operation == "put_if_absent":
            ground.until(lambda: writer._pipeline._standing.is_closing, 10)
            raise ProcessLimitError("this process may open no more files", bookie_id=away)

    ground.before.append(exhausted)
    writer.append(b"b")
    writer.close()

    ground.before.clear()
    assert payloads(ground, writer) == [b"a", b"b"]


@pytest.mark.parametrize("end", [LedgerWriter.close, LedgerWriter.abandon])
def test_a_writer_that_has_ended_keeps_no_directory_open(
    ground: Ground,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: Callable[[LedgerWriter], None],
) -> None:
    """Somebody may hold it for long."""
    monkeypatch.setattr(new_file, "shows_changes_at_once", lambda _: True)  # as on a disk

    def directories() -> int:
        at = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        targets = [os.readlink(path) for path in at if os.path.lexists(path)]
        return sum(target.startswith(f"{tmp_path}/") for target in targets)

    writer = lifecycle.create_ledger(ground.context, USUAL)
    for _ in range(3):
        writer.append(b"a")
        wait_for_every_copy(writer)
    assert directories() == 3, "as limits.md says"

    end(writer)

    ground.until(lambda: directories() == 0)


def test_a_put_whose_answer_is_lost_is_repeated_in_the_same_slot(ground: Ground) -> None:
    with lifecycle.create_ledger(ground.context, USUAL) as writer:
        writer.append(b"a")
        flaky = writer.metadata.last_fragment.ensemble[0]
        error = BookieUnavailableError("the answer was lost", bookie_id=flaky)
        lost = At(None, error, on=flaky, only=range(2))
        ground.after.append(lost)
        for i in range(3):
            writer.append(b"%d" % i)
        writer._pipeline.drain()
    assert len(set(lost.met[:2])) == 1
    assert len(writer.metadata.fragments) == 1
    assert len(ground.files(flaky, "slots")) == 4


def test_a_put_whose_answer_is_lost_again_and_again_is_repeated_later_each_time(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Those that tests go without.
    monkeypatch.setattr("spark_bookkeeper.storage.retry_policy.PAUSES_SECONDS", PAUSES_SECONDS)
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"a")
    victim = writer.metadata.last_fragment.ensemble[0]
    own = threading.local()
    pauses: list[float] = []
    paths: list[str] = []

    def lose(place: str, operation: str, path: str) -> None:
        if (place, operation) == (victim, "put_if_absent"):
            own.is_victims = True
            paths.append(path)
            raise BookieUnavailableError("the answer was lost", bookie_id=victim)

    def sleep(seconds: float) -> None:
        if getattr(own, "is_victims", False):
            pauses.append(seconds)

    monkeypatch.setattr(ground.context.runtime, "sleep", sleep)
    ground.before.append(lose)
    writer.append(b"b")
    ground.until(lambda: victim not in writer.metadata.last_fragment.ensemble)
    ground.before.clear()
    writer.close()

    assert pauses == [0.05, 0.1, 0.2, 0.4]
    assert len(paths) == 6
    assert len(set(paths)) == 1


@pytest.mark.usefixtures("unsynced")
def test_a_bookie_that_never_answers_is_given_up_after_the_time_limit(tmp_path: Path) -> None:
    ground = Ground(tmp_path, config=ClientConfig(add_timeout_ms=3_000))
    with lifecycle.create_ledger(ground.context, Quorum(3, 3, 3)) as writer:
        writer.append(b"a")
        victim = writer.metadata.last_fragment.ensemble[2]
        gate = hold_adds(ground, victim)

        assert writer.append(b"b") == 1
        gate.open()

    assert victim not in writer.metadata.last_fragment.ensemble
    assert payloads(ground, writer) == [b"a", b"b"]


@pytest.mark.usefixtures("unsynced")
def test_closing_does_not_replace_a_slow_bookie_that_no_entry_waits_for(tmp_path: Path) -> None:
    ground = Ground(tmp_path, config=ClientConfig(add_timeout_ms=3_000, explicit_lac_ms=0))
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"a")
    slow = writer.metadata.last_fragment.ensemble[2]
    ground.until(lambda: len(ground.files(slow, "slots")) == 1)
    gate = hold_adds(ground, slow)
    assert writer.append(b"b") == 1
    assert gate.reached.wait(60)

    writer.close()

    assert len(writer.metadata.fragments) == 1
    assert slow in writer.metadata.last_fragment.ensemble
    gate.open()  # what it was sent is stored all the same, and is the ledger's
    ground.until(lambda: len(ground.files(slow, "slots")) == 2)


def test_r7_nothing_is_told_before_the_new_ensemble_is_in_the_metadata(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"a")
    _, b, c = writer.metadata.last_fragment.ensemble
    gate = Gate("write_ledger", METADATA)
    slow = Gate("put_if_absent", b)
    ground.before += [gate, slow]
    ground.stop(c, destroy=True)
    future = writer.append_async(b"b")
    assert gate.reached.wait(60)
    slow.open()  # a and b store it: an ack quorum of the old ensemble

    with pytest.raises(futures.TimeoutError):
        future.result(0.3)
    gate.open()
    assert future.result(60) == 1
    writer.close()
    fragments = writer.metadata.fragments
    assert [f.first_entry_id for f in fragments] == [0, 1]


def test_too_few_bookies_finish_the_writer_and_the_table_says_why(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"a")
    inside = writer.metadata.last_fragment.ensemble
    (spare,) = set(ground.bookie_ids) - set(inside)
    ground.stop(spare)
    ground.start(spare, is_readonly=True)
    ground.stop(inside[0], destroy=True)

    with pytest.raises(AppendFailedError) as caught:
        ground.until(lambda: writer.append(b"b") < 0)

    text = caught.value.message
    assert f"{spare}  read-only" in text
    assert f"{inside[1]}  already in the ensemble" in text
    assert f"{inside[0]}  lost to this writer" in text
    assert text.count("lost to this writer") == 1, "nothing is said twice"
    with pytest.raises(AppendFailedError):
        writer.append(b"more")
    with pytest.raises(AppendFailedError):
        writer.close()
    closed = ground.context.store.read_ledger(writer.ledger_id).value
    assert closed.last_entry_id == writer.last_add_confirmed


def test_a_ledger_deleted_while_it_is_written(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"a")
    for _ in range(2):
        lifecycle.delete_ledger(ground.context, writer.ledger_id, even_if_alive=True)
    ground.stop(writer.metadata.last_fragment.ensemble[0])

    # Whichever bookie answers first has the tombstone, or still the fence that came before it.
    with pytest.raises((NoSuchLedgerError, LedgerFencedError)):
        ground.until(lambda: writer.append(b"b") < 0)
    with pytest.raises((NoSuchLedgerError, LedgerFencedError)):
        writer.close()
    assert list(ground.context.store.ledger_ids()) == [], "it is never made again"


def test_one_bad_file_does_not_keep_a_new_writer_from_its_bookie(tmp_path: Path) -> None:
    config = ClientConfig(bookie_timeout_ms=150, read_hedge_ms=50, bookie_retry_ms=3_600_000)
    ground = Ground(tmp_path, bookies=3, config=config)
    hang = Hang(ground.runtime, lambda operation, path: path == "bad")
    client = ground.client(None, lambda place, operation, path: hang.meet(operation, path))
    with pytest.raises(BookieUnavailableError):
        storage_of(client, ground.bookie_ids[0]).read("bad")

    writer = lifecycle.create_ledger(client, USUAL)
    assert writer.append(b"0") == 0
    wait_for_every_copy(writer)
    writer.close()
    hang.release()

    assert len(writer.metadata.fragments) == 1
