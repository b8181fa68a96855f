"""Bookies that are short of space: writers leave them, and never take the last of it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from spark_bookkeeper.bookie.bookie import LedgerRef, NewRecord
from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.file_bookie import FileBookie
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.bookie.marker import Marker
from spark_bookkeeper.bookie.messages import MOST_ENTRY_BYTES
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.bookie.reserve import (
    NEAR_BYTES,
    PROCESSES,
    RESERVE_BYTES,
    UNSEEN_BYTES,
    Reserve,
    reserve_bytes,
    together_bytes,
)
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.write.silence_timer import SilenceTimer
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.config import BookieConfig, ClientConfig
from spark_bookkeeper.errors import (
    AppendFailedError,
    BookieReadOnlyError,
    BookieUnavailableError,
    MetadataUnavailableError,
)
from spark_bookkeeper.local_cluster.local_cluster import LOCAL_CONFIG
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.check_ledgers import check_ledgers
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.storage import retry_policy
from spark_bookkeeper.storage.local import LocalStorage
from spark_bookkeeper.testing.ground import METADATA, Ground
from spark_bookkeeper.testing.memory_storage import MemoryDisk, MemoryStorage
from tests.hooks import NO_ANSWER, At
from tests.support.rows import wait_for_every_copy
from tests.whole import assert_whole
from tests.worlds import USUAL, payloads, written

QUICK = ClientConfig(add_timeout_ms=3_000)
"""Bookies are looked at four times within it."""

pytestmark = pytest.mark.usefixtures("unsynced")


def begun(directory: Path, config: ClientConfig = QUICK) -> tuple[Ground, LedgerWriter]:
    """Four bookies, and a writer on three of them with one entry."""
    ground = Ground(directory, bookies=4, config=config)
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"0")
    return ground, writer


def becomes_readonly(ground: Ground, bookie: str) -> None:
    ground.start(bookie, is_readonly=True)


def is_failed(writer: LedgerWriter) -> bool:
    return "failed" in repr(writer)


def ensemble(writer: LedgerWriter) -> tuple[BookieId, ...]:
    return writer.metadata.last_fragment.ensemble


def until(ground: Ground, writer: LedgerWriter, holds: Callable[[], bool]) -> None:
    """Wait for what a writer does when it looks at its bookies, without the pauses between looks.

    That it looks by itself is ``test_a_writer_leaves_a_bookie_that_becomes_read_only``.
    """
    look = writer._pipeline._watch.look_at_registrations
    ground.until(lambda: look() or holds())


def assert_all_appended(ground: Ground, writer: LedgerWriter, count: int) -> None:
    """Everything that was appended is there, on every bookie that the metadata names for it."""
    assert payloads(ground, writer) == [b"%d" % i for i in range(count)]
    assert_whole(ground, writer)


@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 2, 2)])
def test_a_writer_leaves_a_bookie_that_becomes_read_only(
    tmp_path: Path, sizes: tuple[int, int, int]
) -> None:
    ground = Ground(tmp_path, bookies=5, config=QUICK)
    writer = written(ground, 8, Quorum(*sizes), close=False)
    short = ensemble(writer)[1]

    becomes_readonly(ground, short)
    count = 8

    def has_left() -> bool:
        nonlocal count
        writer.append(b"%d" % count)
        count += 1
        return short not in ensemble(writer)

    ground.until(has_left)
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
    until(ground, writer, lambda: ground.count()["registrations"] >= 2)
    writer.append(b"1")
    assert len(writer.metadata.fragments) == 1
    assert ground.count()["write_ledger"] == 0

    ground.add_bookie()
    until(ground, writer, lambda: short not in ensemble(writer))
    writer.append(b"2")
    writer.close()

    assert_all_appended(ground, writer, 3)


def test_a_bookie_that_could_take_its_place_and_may_not_leaves_the_writer_as_it_is(
    tmp_path: Path,
) -> None:
    """It was formatted again since the ledger used it, so it cannot join it (SLOT-LOG rule R11)."""
    ground, writer = begun(tmp_path)
    (spare,) = set(ground.bookie_ids) - set(ensemble(writer))
    left, short, _ = ensemble(writer)
    becomes_readonly(ground, left)
    until(ground, writer, lambda: left not in ensemble(writer))
    ground.stop(left)
    ground.format(left)
    assert spare in ensemble(writer)
    fragments = len(writer.metadata.fragments)

    becomes_readonly(ground, short)
    ground.forget()
    for _ in range(3):
        writer._pipeline._watch.look_at_registrations()
    writer.append(b"y")

    assert ground.count()["cookies"] == 0, "nobody is asked who else there might be"
    assert short in ensemble(writer)
    assert len(writer.metadata.fragments) == fragments
    writer.close()


def test_a_writer_to_which_the_only_other_bookie_is_lost_stays_and_asks_nobody(
    tmp_path: Path,
) -> None:
    ground, writer = begun(tmp_path, ClientConfig(add_timeout_ms=1_000_000))
    lost, short, _ = ensemble(writer)
    ground.stop(lost)
    writer.append(b"1")
    ground.until(lambda: lost not in ensemble(writer))
    ground.start(lost)
    becomes_readonly(ground, short)

    ground.forget()
    for _ in range(5):
        writer._pipeline._watch.look_at_registrations()
        assert not writer._pipeline.machine._is_changing

    assert not ground.count()["cookies"]
    writer.append(b"2")
    writer.close()
    assert payloads(ground, writer) == [b"0", b"1", b"2"]


def test_what_a_look_at_bookies_acknowledges_is_delivered_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bookie that is read-only and behind is waited for until it is looked at again."""
    monkeypatch.setattr(SilenceTimer, "start", lambda _: None)  # nobody looks but this test
    ground = Ground(tmp_path, bookies=4, config=ClientConfig(add_timeout_ms=1_000_000))
    writer = lifecycle.create_ledger(ground.context, USUAL)
    behind = ensemble(writer)[2]
    goes_on = threading.Event()
    ground.before.append(At(None, goes_on.wait, on=behind))
    writer.append(b"0")
    becomes_readonly(ground, behind)
    until(ground, writer, lambda: bool(writer._pipeline.machine._held))
    added = writer.append_async(b"1")
    ground.until(lambda: [ack.last for ack in writer._pipeline.acks()[0]].count(EntryId(1)) == 2)
    assert not added.done()

    writer._pipeline._watch.look_at_registrations()

    try:
        assert added.result(timeout=60) == 1
    finally:
        goes_on.set()
    writer.close()


@pytest.mark.parametrize("operation", ["registrations", "write_ledger"])
def test_a_metadata_store_that_is_away_for_a_moment_does_not_end_a_writer_that_leaves(
    tmp_path: Path, operation: str
) -> None:
    ground, writer = begun(tmp_path)
    away = At(operation, NO_ANSWER, only=range(2))
    (ground.before if operation == "registrations" else ground.after).append(away)
    short = ensemble(writer)[2]
    becomes_readonly(ground, short)
    until(ground, writer, lambda: short not in ensemble(writer))
    writer.append(b"1")
    writer.close()

    assert len(away.met) >= 2
    assert_all_appended(ground, writer, 2)


@pytest.mark.parametrize("is_made", [True, False])
def test_a_writer_that_leaves_asks_until_it_knows_whether_the_change_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_made: bool
) -> None:
    """R14: staying would need to know that it was not, and every bookie still serves."""
    monkeypatch.setattr(retry_policy, "SETTLE_PAUSE_SECONDS", 0.0)
    ground, writer = begun(tmp_path)
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
    until(ground, writer, lambda: short not in ensemble(writer) or is_failed(writer))
    writer.append(b"1")
    writer.close()

    assert len(lost) == 5
    assert len(writer.metadata.fragments) == 2
    assert_all_appended(ground, writer, 2)


def test_a_change_of_which_nothing_can_be_learned_ends_the_writer_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry_policy, "SETTLE_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(retry_policy, "SETTLE_SECONDS", 0.05)
    ground, writer = begun(tmp_path)
    is_away = True

    def away(place: str, operation: str, path: str) -> None:
        if is_away and place == METADATA and operation in ("write_ledger", "read_ledger"):
            raise MetadataUnavailableError("no answer")

    ground.before.append(away)
    becomes_readonly(ground, ensemble(writer)[2])
    until(ground, writer, lambda: is_failed(writer))
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
        reserve.spend(object(), UNSEEN_BYTES)
    assert looks == 2
    disk.free_bytes = 0
    with pytest.raises(BookieReadOnlyError):
        reserve.spend(object(), UNSEEN_BYTES)


def test_a_look_at_the_space_that_fails_once_does_not_cost_a_bookie(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=3)
    looks = At("space", BookieUnavailableError("statvfs: EIO", bookie_id="b:1"), only=[0])

    writer = lifecycle.create_ledger(ground.client(None, looks), USUAL)
    for _ in range(10):
        writer.append(bytes(300_000))
    wait_for_every_copy(writer)
    writer.close()

    assert looks.met
    assert len(writer.metadata.fragments) == 1


def test_what_is_kept_free_is_a_hundredth_and_no_more_than_64_mib() -> None:
    assert reserve_bytes(1_000) == 10
    assert reserve_bytes(1 << 40) == RESERVE_BYTES == 64 << 20


def test_what_may_be_under_way_together_is_as_the_documents_say() -> None:
    assert together_bytes(256 << 20) == 64 << 20
    assert together_bytes(1 << 40) == 960 << 20


def put(reserve: Reserve, size: int) -> None:
    """A put that has ended."""
    key = object()
    reserve.spend(key, size)
    del reserve.under_way[key]


def test_a_writer_looks_at_each_mib_and_before_each_put_near_the_end() -> None:
    disk = MemoryDisk()
    disk.total_bytes, disk.free_bytes = 1 << 40, 1 << 39
    looks: list[int] = []

    def note(operation: str, path: str, moment: str) -> None:
        if operation == "space" and moment == "before":
            looks.append(disk.free_bytes)

    reserve = Reserve(MemoryStorage(disk, note))
    size = 64 << 10
    for _ in range(10 * UNSEEN_BYTES // size):
        put(reserve, size)
    assert 9 <= len(looks) <= 10
    disk.free_bytes = NEAR_BYTES
    for _ in range(UNSEEN_BYTES // size + 1):
        put(reserve, size)
    looks.clear()
    for _ in range(10):
        put(reserve, size)
    assert len(looks) == 10


def fill(disk: MemoryDisk, reserves: list[Reserve], size: int, puts_each: int) -> None:
    """All look, and then all put, until nobody can; no process hears of the others' puts."""
    while reserves:
        putting = list(reserves)
        for reserve in putting:
            try:
                for _ in range(puts_each):
                    reserve.spend(object(), size)
            except BookieReadOnlyError:
                reserves.remove(reserve)
        disk.free_bytes -= sum(sum(reserve.under_way.values()) for reserve in putting)
        for reserve in putting:
            reserve.under_way.clear()


@pytest.mark.parametrize(
    ("total", "writers", "size"),
    [
        (total, writers, size)
        for total in (256 << 20, 1 << 30, 2 << 30, 4 << 30, 1 << 40)
        for writers in (1, 2, 8, 16)
        for size in (1_000, 64 << 10, 1 << 20, 8 << 20)
        if size * writers <= together_bytes(total)  # more is not promised
    ],
)
def test_writers_of_many_processes_leave_what_is_kept(total: int, writers: int, size: int) -> None:
    kept = reserve_bytes(total)
    for over in range(0, 50 * size, 3 * size // 8):
        disk = MemoryDisk()
        disk.total_bytes, disk.free_bytes = total, kept + over
        fill(disk, [Reserve(MemoryStorage(disk)) for _ in range(writers)], size, 1)

        assert kept <= disk.free_bytes < kept + (PROCESSES + 1) * size
        with pytest.raises(BookieReadOnlyError, match="for fences and recovery"):
            Reserve(MemoryStorage(disk)).spend(object(), size)


@pytest.mark.parametrize(("size", "puts"), [(64 << 10, 1_000), (8 << 20, 64), (1 << 20, 200)])
@pytest.mark.parametrize("total", [256 << 20, 4 << 30, 1 << 40])
def test_threads_of_one_process_leave_what_is_kept(total: int, size: int, puts: int) -> None:
    """All of them look, and then all of them put."""
    kept = reserve_bytes(total)
    for rooms in range(3, 64, 3):
        disk = MemoryDisk()
        disk.total_bytes, disk.free_bytes = total, kept + rooms * size
        reserve = Reserve(MemoryStorage(disk))
        for _ in range(puts):
            with suppress(BookieReadOnlyError):
                reserve.spend(object(), size)
        disk.free_bytes -= sum(reserve.under_way.values())

        assert disk.free_bytes >= kept


@pytest.mark.parametrize("size", [8 << 20, 64 << 20, 200 << 20, 900 << 20])
@pytest.mark.parametrize("total", [4 << 30, 1 << 40])
def test_what_a_writable_bookie_is_sent_is_taken(total: int, size: int) -> None:
    """An agent calls it writable with so much free."""
    disk = MemoryDisk()
    disk.total_bytes = total
    disk.free_bytes = BookieConfig().readonly_below_free_bytes

    put(Reserve(MemoryStorage(disk)), size)


@pytest.mark.parametrize("size", [1 << 30, MOST_ENTRY_BYTES])
def test_the_largest_entry_needs_room_for_itself_and_what_is_kept(size: int) -> None:
    disk = MemoryDisk()
    disk.total_bytes = 1 << 40
    disk.free_bytes = RESERVE_BYTES + size
    put(Reserve(MemoryStorage(disk)), size)

    disk.free_bytes -= 1
    with pytest.raises(BookieReadOnlyError, match="for fences and recovery"):
        put(Reserve(MemoryStorage(disk)), size)


def test_a_playground_takes_the_usual_group_as_long_as_it_is_writable() -> None:
    disk = MemoryDisk()
    disk.total_bytes = 1 << 40
    disk.free_bytes = LOCAL_CONFIG.readonly_below_free_bytes

    put(Reserve(MemoryStorage(disk)), ClientConfig().max_group_bytes)


def test_what_is_refused_is_under_way_no_more() -> None:
    disk = MemoryDisk()
    disk.total_bytes, disk.free_bytes = 1 << 40, 0
    reserve = Reserve(MemoryStorage(disk))
    with pytest.raises(BookieReadOnlyError):
        reserve.spend(object(), 1)
    assert reserve.under_way == {}

    reserve.spend(object(), 1, is_new=False)
    assert list(reserve.under_way.values()) == [1], "what may have been put is counted, not refused"


@pytest.mark.parametrize("kind", ["small", "bulk"])
def test_a_put_that_is_interrupted_as_it_begins_is_under_way_no_more(kind: str) -> None:
    class Interrupted(Reserve):
        def spend(self, put: object, size_bytes: int, **how: bool) -> None:
            super().spend(put, size_bytes, **how)
            assert list(self.under_way.values()) == [size_bytes]
            raise KeyboardInterrupt

    storage = MemoryStorage(MemoryDisk())
    Partition(storage).furnish(Marker("10.0.0.1:3181", "i", "cluster"))
    reserve = Interrupted(storage)
    bookie = FileBookie(storage, reserve)
    ledger = LedgerRef(LedgerKey(LedgerId(7), "n"), "i", LedgerEncoding())

    def put() -> None:
        if kind == "small":
            bookie.add(ledger, NewRecord(0, 0, 0, b"data"))
        else:
            bookie.begin_part(ledger, "part").write(b"data")

    with pytest.raises(KeyboardInterrupt):
        put()

    assert reserve.under_way == {}


@pytest.mark.parametrize("kind", ["small", "bulk"])
def test_each_put_is_counted_while_it_is_under_way(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    reserves: set[Reserve] = set()
    spend = Reserve.spend

    def note(self: Reserve, put: object, size_bytes: int, **how: bool) -> None:
        reserves.add(self)
        spend(self, put, size_bytes, **how)
        assert self.under_way[put] == size_bytes

    monkeypatch.setattr(Reserve, "spend", note)
    writer = lifecycle.create_ledger(ground.context, USUAL, entry_target_bytes=1 << 20)
    if kind == "small":
        writer.append(bytes(300_000))
    else:
        writer.append(pa.table({"payload": [bytes(300_000)] * 8}, schema=writer.schema))
    wait_for_every_copy(writer)
    writer.close()

    assert len(reserves) == 3
    assert all(reserve.under_way == {} for reserve in reserves)


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

    with pytest.raises(AppendFailedError, match="for fences and recovery") as caught:
        fill()
    first = caught.value.message.split(";")[0]
    assert re.fullmatch(r"\d bookies? (is|are) full: ledger \d+ takes no more entries .*", first)
    assert f"entry {acknowledged} is the last acknowledged" in caught.value.message[:200]
    assert caught.value.message.count("for fences and recovery") <= len(ground.bookie_ids)

    reader = lifecycle.open_ledger(ground.client(), writer.ledger_id)
    assert reader.is_closed
    assert reader.last_add_confirmed >= acknowledged
