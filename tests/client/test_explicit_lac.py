"""A writer that pauses tells how far it has acknowledged; one that does not writes nothing more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_bookkeeper.bookie.record import Record
from spark_bookkeeper.bookie.reserve import Reserve
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.read.newest import newest_entry
from spark_bookkeeper.client.write.silence_timer import SilenceTimer
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import (
    BookieFullError,
    BookieReadOnlyError,
    BookieUnavailableError,
    LedgerFencedError,
)
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing.ground import Ground
from tests.hooks import At
from tests.support.slotlog import log_of

STRIPED = Quorum(4, 2, 2)


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """Writers tell of a pause at once, and readers wait for each bookie that they ask."""
    return Ground(tmp_path, config=ClientConfig(explicit_lac_ms=1, read_hedge_ms=60_000))


@pytest.fixture
def writers(ground: Ground) -> Iterator[list[LedgerWriter]]:
    made: list[LedgerWriter] = []
    yield made
    for writer in made:
        writer.abandon()


def create(ground: Ground, writers: list[LedgerWriter], quorum: Quorum) -> LedgerWriter:
    writer = lifecycle.create_ledger(ground.context, quorum)
    writers.append(writer)
    return writer


def records(ground: Ground, writer: LedgerWriter, bookie: BookieId) -> list[Record]:
    ledger, _ = ground.context.ledger(writer.ledger_id)
    return list(log_of(ground.context, bookie, ledger).records())


def seen(ground: Ground, writer: LedgerWriter, entry_id: int) -> None:
    """Wait until every bookie of the ensemble was told that an entry is confirmed."""
    for bookie in writer.metadata.last_fragment.ensemble:
        ground.until(
            lambda bookie=bookie: any(  # type: ignore[misc]  # of a default
                not len(record.ids) and record.last_add_confirmed == entry_id
                for record in records(ground, writer, bookie)
            )
        )


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), STRIPED])
def test_the_last_entry_of_a_writer_that_pauses_is_seen(
    ground: Ground, writers: list[LedgerWriter], quorum: Quorum
) -> None:
    writer = create(ground, writers, quorum)
    for n in range(5):
        writer.append(b"%d" % n)
        if n % 2 == 0:
            seen(ground, writer, n)
    seen(ground, writer, 4)

    reader = lifecycle.open_ledger_no_recovery(ground.client(), writer.ledger_id)
    assert reader.last_add_confirmed == 4
    assert [entry.payload for entry in reader.entries()] == [b"0", b"1", b"2", b"3", b"4"]
    assert [entry.payload for entry in reader.entries(3, 3)] == [b"3"]
    newest = newest_entry(ground.context, writer.ledger_id, writer.metadata)
    assert newest.last_add_confirmed == 4
    assert newest.stored_at_ms is not None


def test_a_follower_sees_it_without_listing_again(
    ground: Ground, writers: list[LedgerWriter]
) -> None:
    writer = create(ground, writers, Quorum(3, 3, 2))
    client = ground.client()
    follower = lifecycle.open_ledger_no_recovery(client, writer.ledger_id).tail()
    reader = lifecycle.open_ledger_no_recovery(client, writer.ledger_id)
    ground.forget()
    writer.append(b"the last one")

    assert next(follower).payload == b"the last one"
    for _ in range(10):
        reader.refresh()

    slots = [step for step in ground.steps if step.operation == "list" and "slots" in step.path]
    assert len(slots) <= 3, "what an entry is read from is found once, by its fetcher"


def test_each_pause_is_told_once(ground: Ground, writers: list[LedgerWriter]) -> None:
    writer = create(ground, writers, Quorum(3, 3, 2))
    for n in range(3):
        writer.append(b"%d" % n)
        seen(ground, writer, n)

    for bookie in writer.metadata.last_fragment.ensemble:
        assert [(r.first, r.last, len(r.ids)) for r in records(ground, writer, bookie)] == [
            (0, 0, 1), (1, 0, 0), (1, 1, 1), (2, 1, 0), (2, 2, 1), (3, 2, 0),
        ]  # fmt: skip


def test_a_pause_is_told_when_it_has_lasted_for_that_time_and_no_later() -> None:
    now = 11.0
    runtime = SimpleNamespace(now=lambda: now, condition=ThreadRuntime().condition)
    told: list[int] = []
    channels = SimpleNamespace(is_any_behind=False, tell=told.append)
    reports = SimpleNamespace(confirmed=4, confirmed_at=10.9, is_busy=False)
    pending = SimpleNamespace(last=4)
    context = SimpleNamespace(runtime=runtime, config=ClientConfig(explicit_lac_ms=1_000))
    nobody: Any = None
    watch = SilenceTimer(context, nobody, channels, pending, nobody, reports)  # type: ignore[arg-type]

    assert watch.tell_if_idle() == pytest.approx(0.9)
    assert told == []
    reports.confirmed_at = now = 11.899999999999999
    assert watch.tell_if_idle() == pytest.approx(1.0), "there was another append"
    now = 12.8999999999
    assert watch.tell_if_idle() == 0.001, "never so short a wait that no clock moves"
    now = 12.901
    assert watch.tell_if_idle() == 1.0
    assert told == [4]
    channels.is_any_behind = True
    assert watch.tell_if_idle() == 1.0
    assert told == [4]


def test_a_writer_does_not_tell_what_it_has_told_or_what_is_under_way(
    ground: Ground, writers: list[LedgerWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[bool] = []
    meanwhile: list[bool] = []
    look = SilenceTimer.tell_if_idle

    def counted(self: SilenceTimer) -> float:
        wait = look(self)
        looks.append(self._channels._explicit_lac is not None)
        return wait

    monkeypatch.setattr(SilenceTimer, "tell_if_idle", counted)
    writer = create(ground, writers, Quorum(3, 3, 2))
    writer.append(b"a")
    members = writer.metadata.last_fragment.ensemble
    seen(ground, writer, 0)

    def hold(place: str, operation: str, path: str) -> None:
        """Behind the first entry and its explicit LAC comes the second, of which none is told."""
        if place in members[1:] and operation == "put_if_absent" and path.endswith("2.arrow"):
            begin = len(looks)
            ground.until(lambda: len(looks) > begin + 10)
            meanwhile.extend(looks[begin + 1 : begin + 10])

    ground.before.append(hold)
    assert writer.append(b"b") == 1

    assert meanwhile
    assert not any(meanwhile), "an entry was not confirmed"


def test_a_ledger_is_recovered_where_it_was_told_to_end(
    ground: Ground, writers: list[LedgerWriter]
) -> None:
    for quorum in (Quorum(3, 3, 2), STRIPED):
        writer = create(ground, writers, quorum)
        for n in range(3):
            writer.append(b"%d" % n)
        seen(ground, writer, 2)

        reader = lifecycle.open_ledger(ground.client(), writer.ledger_id)

        assert reader.metadata.last_entry_id == 2
        assert [entry.payload for entry in reader.entries()] == [b"0", b"1", b"2"]
        with pytest.raises(LedgerFencedError):
            writer.append(b"too late")


def test_whoever_pauses_learns_of_a_fence(ground: Ground, writers: list[LedgerWriter]) -> None:
    writer = create(ground, writers, Quorum(3, 3, 2))

    def fence() -> None:
        lifecycle.open_ledger(ground.client(), writer.ledger_id)

    first_bookie_is_told = At("put_if_absent", fence, within="1.arrow", only=[0])
    ground.before.append(first_bookie_is_told)
    writer.append(b"a")

    ground.until(lambda: "fenced" in repr(writer) or "closed" in repr(writer))


def test_nothing_is_told_where_it_is_turned_off_or_nothing_was_appended(
    ground: Ground, writers: list[LedgerWriter], tmp_path: Path
) -> None:
    off = Ground(tmp_path / "off")
    writer = create(off, writers, Quorum(3, 3, 2))
    writer.append(b"a")
    members = writer.metadata.last_fragment.ensemble
    off.until(lambda: all(records(off, writer, bookie) for bookie in members))
    empty = create(ground, writers, Quorum(3, 3, 2))
    other = create(ground, writers, Quorum(3, 3, 2))
    other.append(b"a")
    seen(ground, other, 0)

    for bookie in members:
        assert len(records(off, writer, bookie)) == 1
    for bookie in empty.metadata.last_fragment.ensemble:
        assert records(ground, empty, bookie) == []


def test_a_bookie_without_space_is_not_replaced_for_it(
    ground: Ground, writers: list[LedgerWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    spent: list[int] = []
    spend = Reserve.spend

    def full(self: Reserve, put: object, size: int, **how: bool) -> None:
        spent.append(size)
        if 3 < len(spent) <= 6:
            raise BookieReadOnlyError("no space", bookie_id="b")
        spend(self, put, size, **how)

    monkeypatch.setattr(Reserve, "spend", full)
    writer = create(ground, writers, Quorum(3, 3, 2))
    writer.append(b"a")

    ground.until(lambda: len(spent) >= 6)
    writer.append(b"b")
    writer.close()

    assert len(writer.metadata.fragments) == 1


@pytest.mark.parametrize("error", [BookieUnavailableError, BookieFullError])
def test_a_bookie_that_does_not_answer_is_not_replaced_for_it_and_nothing_overtakes_it(
    ground: Ground, writers: list[LedgerWriter], error: type[BookieUnavailableError]
) -> None:
    writer = create(ground, writers, Quorum(3, 3, 2))
    lost: list[str] = []

    def lose(place: str, operation: str, path: str) -> None:
        """The first answer of each bookie to an explicit LAC is lost, before or after the put."""
        if operation == "put_if_absent" and path.endswith("1.arrow") and place not in lost:
            lost.append(place)
            raise error("no answer", bookie_id=place)

    ground.before.append(lose)
    writer.append(b"a")
    ground.until(lambda: len(lost) == 3)
    writer.append(b"b")
    writer.append(b"c")
    writer.close()

    assert len(writer.metadata.fragments) == 1
    for bookie in writer.metadata.last_fragment.ensemble:
        found = records(ground, writer, bookie)
        assert [r.first for r in found if len(r.ids)] == [0, 1, 2]
        assert [(r.first, r.last) for r in found[1:2]] == [(1, 0)]
