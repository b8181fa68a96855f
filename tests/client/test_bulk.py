"""Bulk appends: rows in part files, and what happens when bookies go meanwhile."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.recover.recovery import recover_ledger
from spark_bookkeeper.client.write.bulk import write_local
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import (
    AppendFailedError,
    BookieFullError,
    BookieUnavailableError,
    MissingRequirementError,
    ProcessLimitError,
)
from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.ground import METADATA, Ground, StandingStill
from tests.client.gates import Gate
from tests.hooks import At
from tests.support.rows import wait_for_every_copy
from tests.support.slotlog import log_of
from tests.worlds import rows_writer

SIZES = [(3, 3, 2), (4, 3, 2), (3, 2, 2), (2, 2, 1), (5, 2, 2)]


def table(count: int, start: int = 0) -> pa.Table:
    ids = range(start, start + count)
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "text": [None if i % 7 == 0 else f"{i}" * 9 for i in ids]}
    )


@pytest.mark.parametrize("sizes", SIZES)
def test_rows_keep_their_order_and_their_striping(
    tmp_path: Path, sizes: tuple[int, int, int]
) -> None:
    ground = Ground(tmp_path, bookies=5)
    quorum = Quorum(*sizes)
    whole = table(20_000)
    with rows_writer(ground, whole, quorum) as writer:
        writer.append(whole.slice(0, 10))
        last = writer.append(whole.slice(10, 9990))
        assert writer.append(whole.slice(10_000)) > last > 5
        assert writer.append(whole.slice(0, 1)) == writer.last_add_confirmed

    reader = lifecycle.open_ledger(ground.client(), writer.ledger_id)
    assert reader.read_arrow().equals(pa.concat_tables([whole, whole.slice(0, 1)]))
    ensemble = writer.metadata.last_fragment.ensemble
    for position, bookie in enumerate(ensemble):
        log = log_of(ground.context, bookie, reader.ledger)
        held = log.locate(0).entry_ids.tolist()
        assert held == [
            e for e in range(reader.last_add_confirmed + 1) if quorum.holds(position, EntryId(e))
        ]


def test_a_bulk_append_waits_for_the_entries_before_it(ground: Ground) -> None:
    whole = table(5000)
    with rows_writer(ground, whole, target=10_000) as writer:
        small = [writer.append_async(whole.slice(0, 1)) for _ in range(50)]
        assert writer.append(whole, expected_entry_id=50) > 50
        assert [f.result(60) for f in small] == list(range(50))


@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 3, 2), (3, 2, 2)])
@pytest.mark.parametrize("moment", ["create", "write", "finish", "slot"])
def test_a_bookie_destroyed_during_a_bulk_append(
    tmp_path: Path, sizes: tuple[int, int, int], moment: str
) -> None:
    ground = Ground(tmp_path, bookies=6)
    whole = table(20_000)
    writer = rows_writer(ground, whole, Quorum(*sizes))
    writer.append(whole.slice(0, 5))
    wait_for_every_copy(writer)
    victim = writer.metadata.last_fragment.ensemble[1]
    struck: list[str] = []

    def strike(place: str, operation: str, path: str) -> None:
        at_slot = moment == "slot" and operation == "put_if_absent"
        if place == victim and not struck and (operation == moment or at_slot):
            struck.append(path)
            ground.stop(victim, destroy=True)

    ground.before.append(strike)
    writer.append(whole)
    ground.until(lambda: victim not in writer.metadata.last_fragment.ensemble)
    writer.append(whole.slice(5, 5))
    writer.close()

    assert struck
    survivors = lifecycle.open_ledger(ground.client(), writer.ledger_id)
    assert survivors.read_arrow().equals(
        pa.concat_tables([whole.slice(0, 5), whole, whole.slice(5, 5)])
    )
    for fragment in writer.metadata.fragment_ranges():
        if not fragment.is_last:
            continue
        for position, bookie in enumerate(fragment.ensemble):
            held = set(
                log_of(ground.context, bookie, survivors.ledger)
                .locate(fragment.first_entry_id)
                .entry_ids.tolist()
            )
            wanted = {
                e
                for e in range(fragment.first_entry_id, survivors.last_add_confirmed + 1)
                if writer.metadata.quorum.holds(position, EntryId(e))
            }
            assert wanted <= held, f"{bookie} has its copies of the block"


def test_a_writer_that_may_open_no_more_files_gives_a_part_to_no_other_bookie(
    tmp_path: Path,
) -> None:
    ground = Ground(tmp_path, bookies=6)
    whole = table(20_000)
    writer = rows_writer(ground.client(StandingStill()), whole)
    members = writer.metadata.last_fragment.ensemble
    others: set[str] = set()

    def fail(place: str, operation: str, path: str) -> None:
        if operation == "create" and place == members[1]:
            raise BookieUnavailableError("it is gone", bookie_id=place)
        if operation == "create" and place not in members:
            others.add(place)
            raise ProcessLimitError("this process may open no more files", bookie_id=place)

    ground.before.append(fail)
    with pytest.raises(AppendFailedError, match="this process may open no more files"):
        ground.until(lambda: writer.append(whole) < 0, 20)
    ground.before.clear()
    assert len(others) == 1


def test_a_bulk_append_that_no_bookie_can_store_fails_and_claims_nothing(ground: Ground) -> None:
    whole = table(20_000)
    writer = rows_writer(ground, whole)
    writer.append(whole.slice(0, 1))

    def full(place: str, operation: str, path: str) -> None:
        if operation == "write":
            raise BookieFullError(f"bookie {place}: no space left", bookie_id=place)

    ground.before.append(full)
    with pytest.raises(BookieUnavailableError, match="nothing of it is in the ledger"):
        writer.append(whole)
    ground.before.clear()

    assert writer.append(whole.slice(1, 1)) == 1
    writer.close()
    read = lifecycle.open_ledger(ground.client(), writer.ledger_id).read_arrow()
    assert read.equals(whole.slice(0, 2))


def test_r15_parts_that_no_slot_lists_are_not_in_the_ledger(ground: Ground) -> None:
    whole = table(20_000)
    writer = rows_writer(ground, whole)
    writer.append(whole.slice(0, 1))
    plan = writer._pipeline.begin_bulk("this one", None)
    loser = write_local(plan, whole, ground.context)
    winner = write_local(plan, whole, ground.context)
    writer._pipeline.end_bulk(plan, winner).result(60)
    writer.close()

    assert loser[0].parts[0].ref.name != winner[0].parts[0].ref.name
    read = lifecycle.open_ledger(ground.client(), writer.ledger_id).read_arrow()
    assert read.equals(pa.concat_tables([whole.slice(0, 1), whole]))


@pytest.mark.parametrize("error", [MissingRequirementError("no s3fs here"), RuntimeError("bug")])
@pytest.mark.parametrize("struck", [1, 3])
def test_a_bookie_that_fails_in_an_unforeseen_way_is_no_holder_of_a_part(
    ground: Ground, error: Exception, struck: int
) -> None:
    whole = table(20_000)
    writer = rows_writer(ground, whole, Quorum(3, 3, 3))
    victims = writer.metadata.last_fragment.ensemble[:struck]

    def strike(place: str, operation: str, path: str) -> None:
        if place in victims and operation == "create":
            raise error

    ground.before.append(strike)
    if struck == 3:
        with pytest.raises(BookieUnavailableError, match=str(error)):
            writer.append(whole)
        assert writer.last_add_pushed == -1
    else:
        writer.append(whole)
    ground.before.clear()
    writer.close()
    kept = lifecycle.open_ledger(ground.client(), writer.ledger_id).read_arrow()
    assert kept.equals(whole if struck == 1 else whole.slice(0, 0))


def test_a_bulk_append_waits_for_the_bookie_that_takes_the_place_of_its_only_one(
    ground: Ground,
) -> None:
    whole = table(5_000)
    writer = rows_writer(ground, whole, Quorum(1, 1, 1), target=10_000)
    writer.append(whole.slice(0, 1))
    gate = Gate("write_ledger", METADATA)
    ground.before.append(gate)
    ground.stop(writer.metadata.last_fragment.ensemble[0])
    writer.append_async(whole.slice(1, 1))
    assert gate.reached.wait(60)
    threading.Timer(0.2, gate.open).start()
    writer.append(whole.slice(2))
    writer.close()
    assert lifecycle.open_ledger_no_recovery(ground.client(), writer.ledger_id).is_closed
    later = lifecycle.open_ledger(ground.client(), writer.ledger_id).read_arrow
    assert later(1).equals(whole.slice(1)), "entry 0 is on the bookie that was stopped"


def test_a_bookie_with_other_bytes_under_the_name_of_a_part_acknowledges_nothing(
    ground: Ground,
) -> None:
    whole = table(20_000)
    writer = rows_writer(ground, whole, Quorum(3, 3, 3))
    dying, other = writer.metadata.last_fragment.ensemble[:2]
    spare = next(b for b in ground.bookie_ids if b not in writer.metadata.last_fragment.ensemble)

    def strike(place: str, operation: str, path: str) -> None:
        if place == dying and operation == "put_if_absent":
            part = ground.files(other, "parts")[0]
            rotten = ground.root(spare) / part.relative_to(ground.root(other))
            rotten.parent.mkdir(parents=True, exist_ok=True)
            rotten.write_bytes(bytes(part.stat().st_size))
            ground.stop(dying)

    ground.before.append(strike)
    with pytest.raises(AppendFailedError, match="something else under the name"):
        writer.append(whole)


@pytest.mark.usefixtures("unsynced")
def test_a_large_part_is_copied_to_a_replacement_in_more_than_the_time_of_an_add(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_CHUNK_BYTES", "_CACHED_BYTES"):
        monkeypatch.setattr(f"spark_bookkeeper.bookie.part_files.{name}", 1 << 14)
    ground = Ground(tmp_path, config=ClientConfig(add_timeout_ms=2_000))
    whole = table(20_000)
    writer = rows_writer(ground, whole, Quorum(3, 3, 3))
    dying = writer.metadata.last_fragment.ensemble[0]

    def strike(place: str, operation: str, path: str) -> None:
        if place == dying and operation == "put_if_absent":
            ground.stop(dying)
        if operation in ("read_range", "read_through") and "parts" in path:
            ground.runtime.sleep(0.06)

    ground.before.append(strike)
    started = ground.runtime.now()
    writer.append(whole)
    assert ground.runtime.now() - started > 2, "it took longer than the limit"
    assert writer.metadata.last_fragment.ensemble[0] != dying
    writer.close()


def test_a_recovery_that_meets_the_copies_of_another_takes_them_for_its_own(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=2)
    whole = table(20_000)
    writer = rows_writer(ground, whole, Quorum(2, 2, 2))
    one, other = writer.metadata.last_fragment.ensemble

    def strike(place: str, operation: str, path: str) -> None:
        if place == other and operation == "put_if_absent":
            ground.until(lambda: len(ground.files(one, "slots")) == 1)  # a failed writer sends none
            raise BookieUnavailableError("it does not answer", bookie_id=other)

    ground.before.append(strike)
    with pytest.raises(AppendFailedError):
        writer.append(whole)
    writer.abandon()
    ground.before.clear()
    for part in ground.files(other, "parts"):
        part.unlink()
    finish = At("finish", lambda: recover_ledger(ground.client(), writer.ledger_id), only=[0])

    found = recover_ledger(ground.client(None, finish), writer.ledger_id)
    assert finish.met
    assert found.value.is_closed
    assert lifecycle.open_ledger(ground.client(), writer.ledger_id).read_arrow().equals(whole)


@pytest.mark.parametrize("moment", ["before", "begun", "ending", "ended"])
def test_a_bulk_append_that_ctrl_c_ended_keeps_nobody_waiting(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    whole = table(5_000)
    writer = rows_writer(ground, whole, target=10_000)
    name = "begin_bulk" if moment in {"before", "begun"} else "end_bulk"
    step = getattr(writer._pipeline, name)

    def interrupted(*arguments: object) -> None:
        monkeypatch.undo()
        if moment in {"begun", "ended"}:
            step(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(writer._pipeline, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.append(whole)

    def go_on() -> None:
        writer.append(whole.slice(0, 1))
        writer.append(whole.slice(1))
        writer.close()

    others = threading.Thread(target=go_on, daemon=True)
    others.start()
    others.join(60)
    assert not others.is_alive()
    kept = [whole, whole] if moment == "ended" else [whole]
    read = lifecycle.open_ledger(ground.client(), writer.ledger_id).read_arrow()
    assert read.equals(pa.concat_tables(kept))


def test_ctrl_c_in_a_bulk_append_that_waits_for_its_turn_does_not_end_the_one_that_runs(
    ground: Ground,
) -> None:
    whole = table(5_000)
    writer = rows_writer(ground, whole, target=10_000)
    plan = writer._pipeline.begin_bulk("this one", None)

    results = write_local(plan, whole, ground.context)
    ids: list[int] = []

    def interrupted_and_again() -> None:
        writer._pipeline.cancel_bulk("another")
        ids.append(writer.append(whole.slice(0, 1)))

    other = threading.Thread(target=interrupted_and_again, daemon=True)
    other.start()
    other.join(0.2)
    assert other.is_alive(), "it waits for its turn"
    last = writer._pipeline.end_bulk(plan, results).result(60)
    other.join(60)

    assert ids == [last + 1]
    writer.close()


def test_a_close_in_another_thread_waits_for_the_bulk_append_that_runs(ground: Ground) -> None:
    whole = table(5000)
    writer = rows_writer(ground, whole, target=10_000)
    gate = Gate("finish", *ground.bookie_ids)
    ground.before.append(gate)
    with ThreadPoolExecutor(2) as threads:
        appended = threads.submit(writer.append, whole)
        assert gate.reached.wait(60)
        closed = threads.submit(writer.close)
        ground.until(lambda: writer._pipeline._standing.is_closing)
        gate.open()
        try:
            last = appended.result(30)
            closed.result(30)
        finally:
            writer.abandon()  # who still waits then waits no more

    assert writer.metadata.last_entry_id == last
    reader = lifecycle.open_ledger(ground.context, writer.ledger_id)
    assert reader.read_arrow().equals(whole)
