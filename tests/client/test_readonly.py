"""Bookies that are short of space: writers leave them, and never take the last of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from spark_bookkeeper.bookie.reserve import RESERVE_BYTES, UNSEEN_BYTES, Reserve, reserve_bytes
from spark_bookkeeper.bookie.storage.local import LocalStorage
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.write import ensemble_change as change
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import (
    AppendFailedError,
    BookieReadOnlyError,
    BookieUnavailableError,
    MetadataUnavailableError,
)
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.check_ledgers import check_ledgers
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import METADATA, Ground
from spark_bookkeeper.testing.memory_storage import MemoryDisk, MemoryStorage
from spark_bookkeeper.testing.rows import wait_for_every_copy
from tests.whole import assert_whole

USUAL = Quorum(3, 3, 2)
QUICK = ClientConfig(add_timeout_ms=3_000)
"""Bookies are looked at four times within it."""

pytestmark = pytest.mark.usefixtures("unsynced")


def becomes_readonly(ground: Ground, bookie: str) -> None:
    ground.start(bookie, is_readonly=True)


def is_failed(writer: LedgerWriter) -> bool:
    return "failed" in repr(writer)


def ensemble(writer: LedgerWriter) -> tuple[str, ...]:
    return writer.metadata.last_fragment.ensemble


def assert_all_appended(ground: Ground, writer: LedgerWriter, count: int) -> None:
    """Everything that was appended is there, on every bookie that the metadata names for it."""
    entries = lifecycle.open_ledger(ground.client(), writer.ledger_id).entries()
    assert [entry.payload for entry in entries] == [b"%d" % i for i in range(count)]
    assert_whole(ground, writer)


@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 2, 2)])
def test_a_writer_leaves_a_bookie_that_becomes_read_only(
    tmp_path: Path, sizes: tuple[int, int, int]
) -> None:
    ground = Ground(tmp_path, bookies=5, config=QUICK)
    writer = lifecycle.create_ledger(ground.context, Quorum(*sizes))
    for i in range(8):
        writer.append(b"%d" % i)
    short = ensemble(writer)[1]

    becomes_readonly(ground, short)
    count = 8
    while short in ensemble(writer):
        writer.append(b"%d" % count)
        count += 1
    held = len(ground.files(short, "slots"))
    for _ in range(8):
        writer.append(b"%d" % count)
        count += 1
    writer.close()

    assert len(writer.metadata.fragments) == 2
    assert len(ground.files(short, "slots")) - held <= 1, "one was on its way at most"
    assert_all_appended(ground, writer, count)


def test_a_writer_without_another_bookie_stays_until_there_is_one(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=4, config=QUICK)
    writer = lifecycle.create_ledger(ground.context, USUAL)
    (spare,) = set(ground.bookie_ids) - set(ensemble(writer))
    becomes_readonly(ground, spare)
    short = ensemble(writer)[0]
    becomes_readonly(ground, short)
    ground.forget()
    writer.append(b"0")
    ground.until(lambda: ground.count()["registrations"] >= 2)
    writer.append(b"1")
    assert len(writer.metadata.fragments) == 1
    assert ground.count()["write_ledger"] == 0

    ground.add_bookie()
    ground.until(lambda: short not in ensemble(writer))
    writer.append(b"2")
    writer.close()

    assert_all_appended(ground, writer, 3)


def test_a_bookie_that_could_take_its_place_and_may_not_leaves_the_writer_as_it_is(
    tmp_path: Path,
) -> None:
    """It was formatted again since the ledger used it, so it cannot join it (SLOT-LOG rule R11)."""
    ground = Ground(tmp_path, bookies=4, config=QUICK)
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"0")
    (spare,) = set(ground.bookie_ids) - set(ensemble(writer))
    lost, short, _ = map(BookieId, ensemble(writer))
    ground.stop(lost)
    ground.until(lambda: lost not in ensemble(writer) or writer.append(b"x") < 0)
    ground.format(lost)
    assert spare in ensemble(writer)
    fragments = len(writer.metadata.fragments)

    becomes_readonly(ground, short)
    ground.forget()
    ground.until(lambda: ground.count()["cookies"] >= 2)  # whom it asks when there are too few
    writer.append(b"y")

    assert short in ensemble(writer)
    assert len(writer.metadata.fragments) == fragments
    writer.close()


def test_what_a_look_at_bookies_acknowledges_is_delivered_at_once(tmp_path: Path) -> None:
    """A bookie that is read-only and behind is waited for until it is looked at again."""
    ground = Ground(tmp_path, bookies=4, config=ClientConfig(add_timeout_ms=1_000_000))
    writer = lifecycle.create_ledger(ground.context, USUAL)
    behind = ensemble(writer)[2]
    goes_on = threading.Event()

    def hangs(place: str, operation: str, path: str) -> None:
        if place == behind:
            goes_on.wait()

    ground.before.append(hangs)
    writer.append(b"0")
    becomes_readonly(ground, behind)
    look = writer._adds._watch.look_at_registrations  # what is done again and again
    ground.until(lambda: look() or writer._adds.machine._leaving is not None)
    added = writer.append_async(b"1")
    ground.until(lambda: [ack.last for ack in writer._adds.acks()[0]].count(EntryId(1)) == 2)
    assert not added.done()

    look()

    try:
        assert added.result(timeout=60) == 1
    finally:
        goes_on.set()
    writer.close()


@pytest.mark.parametrize("operation", ["registrations", "write_ledger"])
def test_a_metadata_store_that_is_away_for_a_moment_does_not_end_a_writer_that_leaves(
    tmp_path: Path, operation: str
) -> None:
    ground = Ground(tmp_path, bookies=4, config=QUICK)
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"0")
    met = 0

    def away(place: str, asked: str, path: str) -> None:
        nonlocal met
        if place == METADATA and asked == operation and met < 2:
            met += 1
            raise MetadataUnavailableError("no answer")

    (ground.before if operation == "registrations" else ground.after).append(away)
    short = ensemble(writer)[2]
    becomes_readonly(ground, short)
    ground.until(lambda: short not in ensemble(writer))
    writer.append(b"1")
    writer.close()

    assert met == 2
    assert_all_appended(ground, writer, 2)


@pytest.mark.parametrize("is_made", [True, False])
def test_a_writer_that_leaves_asks_until_it_knows_whether_the_change_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_made: bool
) -> None:
    """R14: staying would need to know that it was not, and every bookie still serves."""
    monkeypatch.setattr(change, "SETTLE_PAUSE_SECONDS", 0.0)
    ground = Ground(tmp_path, bookies=4, config=QUICK)
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"0")
    short = ensemble(writer)[2]
    lost: list[str] = []

    def lose(place: str, operation: str, path: str) -> None:
        if place == METADATA and operation == "write_ledger" and not lost:
            lost.append(operation)
            raise MetadataUnavailableError("no answer")

    def away(place: str, operation: str, path: str) -> None:
        if place == METADATA and operation == "read_ledger" and 0 < len(lost) < 5:
            lost.append(operation)
            raise MetadataUnavailableError("no answer")

    (ground.after if is_made else ground.before).append(lose)
    ground.before.append(away)
    becomes_readonly(ground, short)
    ground.until(lambda: short not in ensemble(writer) or is_failed(writer))
    writer.append(b"1")
    writer.close()

    assert len(lost) == 5
    assert len(writer.metadata.fragments) == 2
    assert_all_appended(ground, writer, 2)


def test_a_change_of_which_nothing_can_be_learned_ends_the_writer_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change, "SETTLE_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(change, "SETTLE_SECONDS", 0.05)
    ground = Ground(tmp_path, bookies=4, config=QUICK)
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"0")
    is_away = True

    def away(place: str, operation: str, path: str) -> None:
        if is_away and place == METADATA and operation in ("write_ledger", "read_ledger"):
            raise MetadataUnavailableError("no answer")

    ground.before.append(away)
    becomes_readonly(ground, ensemble(writer)[2])
    ground.until(lambda: is_failed(writer))
    is_away = False

    with pytest.raises(AppendFailedError, match="no answer"):
        writer.append(b"1")


# The last space


def test_a_look_at_the_space_that_fails_says_nothing_and_is_repeated() -> None:
    disk = MemoryDisk()
    looks = 0

    def away(operation: str, path: str, moment: str) -> None:
        nonlocal looks
        if operation == "space":
            looks += 1
            if looks <= 2:
                raise BookieUnavailableError("statvfs: EIO", bookie_id="b:1")

    reserve = Reserve(MemoryStorage(disk, away))
    for _ in range(4):
        reserve.spend(UNSEEN_BYTES)
    assert looks == 2
    disk.free_bytes = 0
    reserve.spend(UNSEEN_BYTES)
    with pytest.raises(BookieReadOnlyError):
        reserve.spend(UNSEEN_BYTES)


def test_a_look_at_the_space_that_fails_once_does_not_cost_a_bookie(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=3)
    met: list[str] = []

    def once(place: str, operation: str, path: str) -> None:
        if operation == "space" and not met:
            met.append(place)
            raise BookieUnavailableError("statvfs: EIO", bookie_id="b:1")

    writer = lifecycle.create_ledger(ground.client(None, once), USUAL)
    for _ in range(10):
        writer.append(bytes(300_000))
    wait_for_every_copy(writer)
    writer.close()

    assert len(met) == 1
    assert len(writer.metadata.fragments) == 1


def test_what_is_kept_free_is_a_hundredth_and_no_more_than_64_mib() -> None:
    assert reserve_bytes(1_000) == 10
    assert reserve_bytes(1 << 40) == RESERVE_BYTES == 64 << 20


def test_a_writer_of_little_never_looks_and_one_of_much_looks_more_often_near_the_end() -> None:
    disk = MemoryDisk()
    disk.total_bytes, disk.free_bytes = 1_000 << 20, 1_000 << 20
    looks: list[int] = []

    def note(operation: str, path: str, moment: str) -> None:
        if operation == "space" and moment == "before":
            looks.append(disk.free_bytes)

    reserve = Reserve(MemoryStorage(disk, note))
    size = 64 << 10

    def fill() -> None:
        while True:
            reserve.spend(size)
            disk.free_bytes -= size

    for _ in range(UNSEEN_BYTES // size):
        reserve.spend(size)
        disk.free_bytes -= size
    assert looks == []
    with pytest.raises(BookieReadOnlyError, match="for fences and recovery"):
        fill()

    kept = reserve_bytes(disk.total_bytes)
    assert kept <= disk.free_bytes < kept + size
    gaps = [before - after for before, after in pairwise(looks)]
    assert gaps == sorted(gaps, reverse=True)
    assert len(looks) < 100


@pytest.fixture
def crowded(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function that leaves a bookie only its reserve."""
    full: set[str] = set()

    def space(storage: LocalStorage) -> tuple[int, int]:
        return (9_000_000 if storage.uri in full else 900_000_000), 1_000_000_000

    monkeypatch.setattr(LocalStorage, "space", space)

    def fill(bookie: str) -> None:
        full.add(LocalStorage(str(ground.root(bookie))).uri)

    return fill


@pytest.mark.parametrize("kind", ["small", "bulk"])
def test_a_writer_that_comes_to_the_last_space_goes_elsewhere(
    ground: Ground, crowded: Callable[[str], None], kind: str
) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL, entry_target_bytes=1 << 20)
    payload = bytes(300_000)
    crowded(full := ensemble(writer)[0])

    for _ in range(10):
        if kind == "small":
            writer.append(payload)
        else:
            writer.append(pa.table({"payload": [payload] * 8}, schema=writer.schema))
        if full not in ensemble(writer):
            break
    ground.until(lambda: full not in ensemble(writer))
    writer.close()

    client = ground.client()
    report = check_ledgers(client, LocalRunner(client), [writer.ledger_id], 100)
    assert {row.source for row in report.unfinished} <= {full}
    assert writer.metadata.last_entry_id is not None


def test_with_no_other_bookie_the_append_fails_and_the_ledger_can_still_be_closed(
    ground: Ground, crowded: Callable[[str], None]
) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    acknowledged = writer.append(bytes(300_000))
    for bookie in ground.bookie_ids:
        crowded(bookie)

    def fill() -> None:
        nonlocal acknowledged
        while True:
            acknowledged = writer.append(bytes(300_000))

    with pytest.raises(AppendFailedError, match="for fences and recovery"):
        fill()

    reader = lifecycle.open_ledger(ground.client(), writer.ledger_id)
    assert reader.is_closed
    assert reader.last_add_confirmed >= acknowledged
