"""Entries carry the time of their append, for people: to read from a time on."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest

from spark_bookkeeper.bookie import new_record, record
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.read.reader import LedgerReader
from spark_bookkeeper.client.recover.recovery import recover_ledger
from spark_bookkeeper.errors import EntryUnreadableError, InvalidArgumentError
from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.recover_bookie import BookieRecovery, recover_bookie
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing.ground import Ground
from spark_bookkeeper.testing.slotlog import every_place, log_of

BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)


class Clock(ThreadRuntime):
    """A calendar that is moved by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.minutes = 0.0

    def wall_ms(self) -> int:
        return int(at(self.minutes).timestamp() * 1000)


def at(minutes: float) -> datetime:
    return BEGIN + timedelta(minutes=minutes)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ground(tmp_path: Path, clock: Clock) -> Ground:
    return Ground(tmp_path, bookies=5, runtime=clock)


def reader_of(ground: Ground, clock: Clock, quorum: Quorum, minutes: list[float]) -> LedgerReader:
    with lifecycle.create_ledger(ground.context, quorum) as writer:
        for n, minute in enumerate(minutes):
            clock.minutes = minute
            writer.append(b"%d" % n)
    return lifecycle.open_ledger(ground.context, writer.ledger_id)


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(4, 2, 2)])
def test_every_entry_has_the_time_of_its_append(
    ground: Ground, clock: Clock, quorum: Quorum
) -> None:
    reader = reader_of(ground, clock, quorum, [0, 1, 5, 5, 9])

    assert [entry.appended_at for entry in reader.entries()] == [at(m) for m in (0, 1, 5, 5, 9)]
    for time, entry_id in ((-1, 0), (0, 0), (0.5, 1), (5, 2), (6, 4), (9, 4), (9.1, 5)):
        assert reader.entry_at(at(time)) == entry_id
    assert [e.payload for e in reader.entries(start_time=at(5))] == [b"2", b"3", b"4"]
    assert reader.read_arrow(last=3, start_time=at(5)).num_rows == 2
    assert reader.read_arrow(start_time=at(10)).num_rows == 0
    assert [e.payload for e in reader.entries(end_time=at(5))] == [b"0", b"1"]
    assert [e.payload for e in reader.entries(1, end_time=at(9))] == [b"1", b"2", b"3"]
    assert reader.read_arrow(start_time=at(0.5), end_time=at(5)).num_rows == 1
    assert reader.read_arrow(end_time=at(99)).num_rows == 5
    for nothing in ((at(2), at(3)), (at(5), at(5)), (None, at(-1)), (at(98), at(99))):
        assert list(reader.entries(start_time=nothing[0], end_time=nothing[1])) == []
    assert reader.entry_at(at(6).astimezone().replace(tzinfo=None)) == 4, "local time"


def test_within_a_ledger_times_do_not_go_back(ground: Ground, clock: Clock) -> None:
    reader = reader_of(ground, clock, Quorum(3, 3, 2), [5, 1, 7])

    assert [entry.appended_at for entry in reader.entries()] == [at(5), at(5), at(7)]


def test_copies_and_bulk_appends_keep_the_time(ground: Ground, clock: Clock) -> None:
    writer = lifecycle.create_ledger(
        ground.context, Quorum(3, 3, 2), schema=pa.schema([("n", pa.int64())]),
        entry_target_bytes=64,
    )  # fmt: skip
    clock.minutes = 1
    writer.append(pa.table({"n": [0]}))
    clock.minutes = 2
    writer.append(pa.table({"n": range(100)}))
    clock.minutes = 3
    last = writer.append(pa.table({"n": [100]}))
    lost = writer.metadata.last_fragment.ensemble[0]
    ground.stop(lost, destroy=True)
    recover_ledger(ground.context, writer.ledger_id)
    recover_bookie(ground.context, LocalRunner(ground.context), BookieRecovery((lost,)))
    writer.abandon()

    reader = lifecycle.open_ledger(ground.context, writer.ledger_id)
    stored: dict[int, int | None] = {}
    for bookie in sorted(reader.metadata.bookies()):
        if ground.files(bookie, "copies"):
            log = log_of(ground.context, bookie, reader.ledger)
            copies = log.reader.entries(every_place(log.locate(0)))
            stored |= {entry.entry_id: entry.appended_at_ms for entry in copies}
    times = [entry.appended_at for entry in reader.entries()]

    assert times == [at(1), *[at(2)] * (last - 1), at(3)]
    assert stored == {n: int(time.timestamp() * 1000) for n, time in enumerate(times) if time}


def test_what_an_earlier_version_wrote_counts_as_old(
    ground: Ground, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = record.encode_add
    monkeypatch.setattr(new_record, "encode_add", lambda *a: encode(*a[:-1]))  # without the time
    reader = reader_of(ground, clock, Quorum(3, 3, 2), [1, 2])

    assert [entry.appended_at for entry in reader.entries()] == [None, None]
    assert reader.entry_at(at(-99)) == 2


def test_a_dead_bookie_is_passed_over_and_without_any_it_is_said(
    ground: Ground, clock: Clock
) -> None:
    reader = reader_of(ground, clock, Quorum(3, 3, 2), [1, 2, 3])
    first, *others = reader.metadata.last_fragment.ensemble
    ground.stop(first)
    assert reader.entry_at(at(2)) == 1
    for bookie in others:
        ground.stop(bookie)

    with pytest.raises(EntryUnreadableError, match="give an entry id"):
        reader.entry_at(at(2))


def test_both_ends_are_said_once_and_are_times_in_order(ground: Ground, clock: Clock) -> None:
    reader = reader_of(ground, clock, Quorum(3, 3, 2), [1, 2, 3])

    with pytest.raises(InvalidArgumentError, match="both say"):
        reader.read_arrow(EntryId(1), start_time=at(1))
    with pytest.raises(InvalidArgumentError, match="both say"):
        reader.read_arrow(last=1, end_time=at(1))
    with pytest.raises(InvalidArgumentError, match="Exchange them"):
        reader.read_arrow(start_time=at(2), end_time=at(1))
    with pytest.raises(InvalidArgumentError, match="neither True nor False"):
        reader.read_arrow(skip_lost="no")  # type: ignore[arg-type]  # what a person may type
    with pytest.raises(InvalidArgumentError, match="no datetime"):
        reader.entry_at("yesterday")  # type: ignore[arg-type]  # what a person may type
