"""Following logs and ledgers from offset to offset, without Spark."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.read.fetch import Fetcher
from spark_bookkeeper.errors import (
    DataLossError,
    InvalidArgumentError,
    NoSuchEntryError,
    NoSuchLogError,
)
from spark_bookkeeper.logs import truncation
from spark_bookkeeper.logs.consumers import consumers_table
from spark_bookkeeper.logs.log import Log
from spark_bookkeeper.logs.logs import create_log, open_log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.metadata.store import Unchanged
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.log import Position
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.source.micro_batch import Followed, Limits
from spark_bookkeeper.source.offset_options import EARLIEST, LATEST, Moment, Offset
from spark_bookkeeper.source.options import SourceOptions
from spark_bookkeeper.source.selection import open_selection
from spark_bookkeeper.source.stream_ledger import FollowedLedger
from spark_bookkeeper.source.stream_log import FollowedLog, followed
from spark_bookkeeper.testing.ground import METADATA, Ground, InlineRuntime
from tests.worlds import bereft_log

USUAL = LogOptions(Quorum(3, 3, 2))


@pytest.fixture
def ground(inline_ground: Ground) -> Ground:
    return inline_ground


@pytest.fixture
def context(ground: Ground) -> ClientContext:
    return ground.context


@pytest.fixture
def log(context: ClientContext) -> Log:
    return create_log(context, "orders", USUAL)


def write(log: Log, *payloads: bytes) -> Position:
    """Append these, as a writer that comes and goes; the place of the last one."""
    with log.become_writer() as writer:
        places = [writer.append(payload) for payload in payloads]
    return Position(places[-1].ledger_id, places[-1].entry_id)


def follow(context: ClientContext, **options: str) -> Followed:
    return followed(context, SourceOptions.parse(options or {"log": "orders"}))


def read(context: ClientContext, stream: Followed, start: Offset, end: Offset) -> list[bytes]:
    return [
        entry.payload
        for each in stream.ranges(start, end)
        for entry in Fetcher(context, each.ledger).fetch(each.first, each.last)
    ]


def next_batch(stream: Followed, start: Offset) -> None:
    """What Spark asks where there is something to read, and nothing where there is not."""
    end = stream.ahead(start, Limits())
    assert end != start, "there is a micro-batch"
    stream.ranges(start, end)


def batches(
    context: ClientContext, stream: Followed, start: Offset, limits: Limits | None = None
) -> Iterator[list[bytes]]:
    """Micro-batches from ``start`` on until there is nothing more."""
    while True:
        context.runtime.sleep(10)  # so that it looks again
        end = Offset.from_json(stream.ahead(start, limits or Limits()).to_json())
        if end == start:
            return
        yield read(context, stream, start, end)
        start = end


def test_a_stream_reads_on_through_rolls_and_changes_of_the_writer(
    context: ClientContext, log: Log
) -> None:
    stream = follow(context)
    start = stream.begin(EARLIEST)
    told: list[bytes] = []

    def catch_up() -> None:
        nonlocal start
        for batch in batches(context, stream, start):
            told.extend(batch)
        context.runtime.sleep(10)
        start = stream.ahead(start, Limits())

    first = log.become_writer()
    for number in range(3):
        first.append(b"a%d" % number)
    catch_up()
    first.roll()
    first.append(b"b")
    catch_up()
    with log.become_writer() as second:  # fences the first
        second.append(b"c")
        catch_up()
        second.roll()
        second.append(b"d")
    catch_up()

    assert told == [b"a0", b"a1", b"a2", b"b", b"c", b"d"]


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_every_micro_batch_keeps_to_its_limit_and_none_is_empty(
    context: ClientContext, log: Log, limit: int
) -> None:
    with log.become_writer() as writer:
        for number in range(12):
            writer.append(b"%d" % number)
            if number % 5 == 4:
                writer.roll()
    stream = follow(context)

    found = list(batches(context, stream, stream.begin(EARLIEST), Limits(entries=limit)))

    assert [payload for batch in found for payload in batch] == [b"%d" % n for n in range(12)]
    assert all(len(batch) <= limit for batch in found)


def test_a_limit_in_bytes_is_soft_and_there_is_always_some_progress(
    context: ClientContext, log: Log
) -> None:
    with log.become_writer() as writer:
        for _ in range(6):
            writer.append(bytes(1000))
    stream = follow(context)
    start = stream.begin(EARLIEST)

    sizes = [len(b) for b in batches(context, stream, start, Limits(size_bytes=2500))]
    tiny = [len(b) for b in batches(context, stream, start, Limits(size_bytes=1))]

    assert [size for size in sizes if size] == [2, 2, 2]
    assert [size for size in tiny if size] == [1] * 6


def test_an_open_ledger_that_is_followed_has_limits_in_bytes_too(
    context: ClientContext, log: Log
) -> None:
    writer = log.become_writer()
    for _ in range(7):
        writer.append(bytes(1000))
    stream = follow(context)
    start = stream.begin(EARLIEST)

    sizes = [len(b) for b in batches(context, stream, start, Limits(size_bytes=2500))]

    assert sizes[:2] == [2, 2]


def test_what_was_read_may_be_truncated_while_a_stream_is_idle(
    context: ClientContext, log: Log
) -> None:
    stream = follow(context)
    with log.become_writer() as writer:
        writer.append(b"a")
        writer.roll()
        writer.append(b"b")
        writer.roll()
        start = stream.begin(LATEST)
        context.runtime.sleep(10)
        log.truncate(writer.ledger_id)

        assert list(batches(context, stream, start)) == []
        writer.append(b"c")
    later = follow(context)

    assert list(batches(context, later, start)) == [[b"c"]]


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("limits", [Limits(), Limits(entries=1)])
def test_a_stream_that_has_read_all_outlives_a_roll_and_a_truncation_between_two_looks(
    ground: Ground, log: Log, limits: Limits, is_restarted: bool
) -> None:
    context = ground.context
    stream = follow(context)
    with log.become_writer() as writer:
        writer.append(b"a")
        start = replace(stream.front(), position=Position(writer.ledger_id, EntryId(1)))
        writer.roll()
        writer.roll()  # the ledger between is empty
        writer.append(b"b")
        log.truncate(writer.ledger_id)
    if is_restarted:
        stream = follow(context)

    assert [p for batch in batches(context, stream, start, limits) for p in batch] == [b"b"]
    assert next(log.entries(start.position)).payload == b"b"
    assert stream.begin(start.position).position == Position(writer.ledger_id, EntryId(0))


def test_entries_of_a_ledger_that_somebody_deleted_are_told_as_lost_after_a_truncation(
    context: ClientContext, log: Log
) -> None:
    """Nobody knows any more where it ended."""
    with log.become_writer() as writer:
        writer.append(b"a")
        start = replace(follow(context).front(), position=Position(writer.ledger_id, EntryId(1)))
        writer.roll()
        lost = writer.ledger_id
        writer.append(b"not read")
        writer.roll()
        writer.roll()  # the ledger between is empty
        lifecycle.delete_ledger(context, lost)
        log.truncate(writer.ledger_id)

    with pytest.raises(DataLossError, match="if there was anything"):
        list(batches(context, follow(context), start))


def test_a_stream_that_has_read_all_of_a_ledger_outlives_its_truncation_while_it_plans(
    ground: Ground, log: Log
) -> None:
    """The list still has the ledger when it is read, and its metadata are gone."""
    with log.become_writer() as writer:
        writer.append(b"a")
        front = follow(ground.context).front()
        start = replace(front, position=Position(writer.ledger_id, EntryId(1)))
        writer.roll()
        writer.append(b"b")
    armed: list[bool] = []

    def truncate(place: str, operation: str, path: str) -> None:
        if armed and operation == "read_ledger":
            armed.clear()
            log.truncate(writer.ledger_id)

    client = ground.client(InlineRuntime(), truncate)
    stream = follow(client)
    end = stream.ahead(start, Limits())
    armed.append(True)

    assert read(client, stream, start, end) == [b"b"]
    assert not armed


def test_what_was_not_read_and_is_truncated_is_told_by_name(
    context: ClientContext, log: Log
) -> None:
    stream = follow(context)
    start = stream.begin(EARLIEST)
    with log.become_writer() as writer:
        writer.append(b"a")
        start = stream.ahead(start, Limits(entries=1))
        writer.append(b"b")
        writer.roll()
        writer.append(b"c")
        log.truncate(writer.ledger_id)

    with pytest.raises(DataLossError, match="failOnDataLoss=false") as told:
        list(batches(context, follow(context), start))
    assert "'orders' was truncated" in str(told.value)
    lost = start.position
    assert f"from there to {lost.ledger_id}:1 is lost" in str(told.value)

    lenient = follow(context, log="orders", failOnDataLoss="false")
    assert [p for batch in batches(context, lenient, start) for p in batch] == [b"c"]
    with pytest.raises(DataLossError):
        follow(context).begin(Position(start.position.ledger_id, start.position.entry_id))


def test_a_checkpoint_of_something_else_is_told_by_what_it_is_about(
    context: ClientContext, log: Log
) -> None:
    first = write(log, b"a").ledger_id
    with lifecycle.create_ledger(context, Quorum(3, 3, 2)) as writer:
        writer.append(b"b")
    of_log, of_ledger = follow(context), follow(context, ledger=str(writer.ledger_id))
    begun, other = of_log.begin(EARLIEST), of_ledger.begin(EARLIEST)

    for stream, start, about in (
        (follow(context, ledger=str(first)), begun, "log 'orders'"),
        (follow(context, ledger=str(first)), other, f"ledger {writer.ledger_id}"),
        (follow(context), other, f"ledger {writer.ledger_id}"),
    ):
        said = rf"is about, {about}\. Begin"
        with pytest.raises(DataLossError, match=said):
            stream.resumed(start)
        with pytest.raises(DataLossError, match=said):
            stream.ahead(start, Limits())
        with pytest.raises(DataLossError, match=said):  # a repeated batch is not asked for before
            stream.ranges(start, stream.front())


def test_another_log_of_the_same_name_is_not_taken_for_the_old_one(
    context: ClientContext, log: Log
) -> None:
    write(log, b"a")
    start = follow(context).begin(EARLIEST)
    truncation.delete(context, "orders")
    write(create_log(context, "orders", USUAL), b"another")

    with pytest.raises(DataLossError, match="another one"):
        list(batches(context, follow(context), start))


def test_a_log_that_was_made_again_is_read_from_its_beginning_where_loss_is_passed_over(
    context: ClientContext, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="spark_bookkeeper")
    write(log, b"a", b"b")
    before = follow(context)
    start = before.ahead(before.begin(EARLIEST), Limits(entries=1))
    planned = before.ahead(start, Limits())
    truncation.delete(context, "orders")
    again = create_log(context, "orders", USUAL)
    lenient = {"log": "orders", "failOnDataLoss": "false"}

    stream = follow(context, **lenient)
    assert isinstance(stream, FollowedLog)
    assert stream.ranges(start, planned) == [], "a micro-batch that was under way"
    begin = stream.ahead(planned, Limits())
    assert begin.nonce == stream.nonce
    assert stream.ranges(planned, begin) == []
    stream.publish("etl", planned, is_last=True)
    assert consumers_table(context, "orders").num_rows == 0, "a place of the log that was"
    assert "goes on from the beginning" in caplog.text
    write(again, b"c")
    for place in (start, planned, begin):
        assert list(batches(context, follow(context, **lenient), place)) == [[b"c"]]
    with pytest.raises(DataLossError, match=r"'sales'.*new checkpoint"):
        follow(context, **lenient).ahead(replace(start, log="sales"), Limits())


def test_a_beginning_behind_the_end_is_refused_with_the_end(
    context: ClientContext, log: Log
) -> None:
    place = write(log, b"a")

    with pytest.raises(NoSuchEntryError, match="is behind the end"):
        follow(context).begin(Position(LedgerId(place.ledger_id + 9), place.entry_id))


def test_a_beginning_in_another_ledger_is_no_place_of_this_one(
    context: ClientContext, log: Log
) -> None:
    with log.become_writer() as writer:
        first = writer.append(b"a").ledger_id
        with lifecycle.create_ledger(context, Quorum(3, 3, 2)) as foreign:
            foreign.append_async(b"0")
        writer.roll()
        writer.append(b"b")
    stream = follow(context)
    between = Position(foreign.ledger_id, EntryId(1))

    with pytest.raises(NoSuchEntryError, match=f"has no ledger {foreign.ledger_id}"):
        stream.begin(between)
    with pytest.raises(NoSuchEntryError, match=f"{first}:2 is beyond the end"):
        stream.begin(Position(first, EntryId(2)))
    start = stream.begin(Position(foreign.ledger_id, EntryId(0)))
    assert list(batches(context, stream, start)) == [[b"b"]]
    one = follow(context, ledger=str(foreign.ledger_id))
    with pytest.raises(NoSuchEntryError, match=f"names ledger {first}, and ledger"):
        one.begin(Position(first, EntryId(1)))


def test_a_checkpoint_that_is_ahead_of_all_there_is_is_told_as_lost_data(
    context: ClientContext, log: Log
) -> None:
    place = write(log, b"a")
    for options in ({"log": "orders"}, {"ledger": str(place.ledger_id)}):
        stream = follow(context, **options)
        start = stream.begin(LATEST)
        assert stream.ahead(start, Limits()) == start
        ahead = start.at(Position(LedgerId(place.ledger_id + 7), EntryId(3)))
        if "ledger" in options:
            ahead = start.at(Position(place.ledger_id, EntryId(3)))
        with pytest.raises(DataLossError, match="ahead of the end"):
            stream.ahead(ahead, Limits())
        lenient = follow(context, failOnDataLoss="false", **options)
        assert lenient.ahead(ahead, Limits()) == start
        assert lenient.ranges(ahead, start) == []


def test_a_checkpoint_ahead_of_its_log_goes_on_from_the_end_where_loss_is_passed_over(
    context: ClientContext, log: Log
) -> None:
    with log.become_writer() as writer:
        place = writer.append(b"a")
    stream = follow(context, log="orders", failOnDataLoss="false")
    ahead = stream.begin(LATEST).at(Position(LedgerId(place.ledger_id + 7), EntryId(3)))
    end = stream.ahead(ahead, Limits())
    with log.become_writer() as writer:
        writer.append(b"b")

    assert list(batches(context, stream, end)) == [[b"b"]]


@pytest.mark.parametrize("write_quorum", [2, 3])
@pytest.mark.parametrize("what", ["log", "ledger"])
@pytest.mark.parametrize("lenient", ["true", "false"])
def test_a_stream_that_begins_anew_waits_for_the_bookies_that_know_what_it_has_read(
    tmp_path: Path, write_quorum: int, what: str, lenient: str
) -> None:
    ground = Ground(tmp_path, bookies=3, runtime=InlineRuntime())
    # All copies are there when an append returns: no put is on its way to a bookie that goes.
    usual = LogOptions(Quorum(3, write_quorum, write_quorum))
    writer = create_log(ground.context, "orders", usual).become_writer()
    writer.append(b"a")
    writer.append(b"b")
    ledger = writer.ledger_id
    named = {"log": "orders"} if what == "log" else {"ledger": str(ledger)}
    named["failOnDataLoss"] = lenient
    start = follow(ground.context, **named).begin(LATEST)
    assert start.position == Position(ledger, EntryId(1))
    first, *others = ground.context.store.read_ledger(ledger).value.last_fragment.ensemble
    if write_quorum == 3:  # its copies did not come yet; with 2 it holds none that knows of a
        for slot in ground.files(first, "slots"):
            slot.unlink()
    for bookie in others:
        ground.stop(bookie)

    stream = follow(ground.context, **named)
    assert stream.front().position == Position(ledger, EntryId(0))
    assert stream.ahead(start, Limits()) == start

    for bookie in others:
        ground.start(bookie)
    ground.context.runtime.sleep(10)
    writer.append(b"c")
    writer.close()
    ground.context.runtime.sleep(10)
    found = [p for batch in batches(ground.context, stream, start) for p in batch]
    assert found == [b"b", b"c"]


def test_a_log_that_is_truncated_while_it_is_looked_at_is_looked_at_again(
    ground: Ground, log: Log
) -> None:
    writer = log.become_writer()
    writer.append(b"a")
    old = writer.ledger_id
    writer.roll()
    start = follow(ground.context).begin(LATEST)
    assert start.position == Position(writer.ledger_id, EntryId(0))
    behind = ground.client()

    def truncate(place: str, operation: str, path: str) -> None:
        if (place, operation, path) == (METADATA, "read_ledger", str(old)):
            ground.before.remove(truncate)
            for payload in (b"b", b"c", b"d"):
                writer.append(payload)
                writer.roll()
            open_log(behind, "orders").truncate(writer.ledger_id)
            truncated.append(writer.ledger_id)

    truncated: list[LedgerId] = []
    stream = follow(ground.context, log="orders", failOnDataLoss="true")
    ground.before.append(truncate)

    assert stream.ahead(start, Limits()) == start
    ground.context.runtime.sleep(10)
    with pytest.raises(DataLossError, match="was truncated: it begins at ledger"):
        next_batch(stream, start)
    assert truncated


def test_the_head_of_a_log_is_read_before_its_ledgers(ground: Ground, log: Log) -> None:
    """It is read as new as anybody knows it, and what the session reads behind it is no older."""
    write(log, b"a")
    start = follow(ground.context).begin(LATEST)
    ground.forget()

    assert follow(ground.context).ahead(start, Limits()) == start

    asked = [step.operation for step in ground.steps if step.place == METADATA]
    assert asked.index("read_register") < asked.index("read_ledger")


def test_an_empty_log_begins_where_its_first_ledger_will_be(
    context: ClientContext, log: Log
) -> None:
    stream = follow(context)
    start = stream.begin(LATEST)
    write(log, b"a")

    assert [p for batch in batches(context, stream, start) for p in batch] == [b"a"]


def test_an_idle_stream_outlives_bookies_that_are_away(ground: Ground) -> None:
    log = create_log(ground.context, "orders", LogOptions(Quorum(3, 3, 3)))  # no add is late
    writer = log.become_writer()
    writer.append(b"a")
    stream = follow(ground.context)
    start = stream.begin(LATEST)
    away = list(ground.bookie_ids)
    for bookie in away:
        ground.stop(bookie)
    ground.context.runtime.sleep(10)
    assert stream.ahead(start, Limits()) == start

    for bookie in away:
        ground.start(bookie)
    writer.append(b"b")
    writer.append(b"c")
    found = [p for batch in batches(ground.context, stream, start) for p in batch]
    assert found[-1:] in ([b"b"], [b"c"])


METADATA_READS = ("read_ledger", "read_register", "watch_metadata", "watch_register")


def asked_while_idle(ground: Ground, stream: Followed, start: Offset) -> tuple[int, int]:
    """Requests to the metadata store and to bookies by 20 triggers, one a second, of which each
    looks ten times.
    """
    for _ in range(5):  # idle for some time
        ground.context.runtime.sleep(10)
        assert stream.ahead(start, Limits()) == start
    ground.forget()
    for _ in range(200):
        ground.context.runtime.sleep(0.1)
        assert stream.ahead(start, Limits()) == start
    metadata = [step for step in ground.steps if step.place == METADATA]
    assert {step.operation for step in metadata} <= set(METADATA_READS)
    return len(metadata), len(ground.steps) - len(metadata)


def test_an_idle_trigger_costs_no_request_where_nothing_can_have_come(
    ground: Ground, log: Log
) -> None:
    empty = follow(ground.context)
    assert asked_while_idle(ground, empty, empty.begin(LATEST)) == (0, 0)
    ledger = write(log, b"a").ledger_id
    stream = follow(ground.context)

    assert asked_while_idle(ground, stream, stream.begin(LATEST)) == (0, 0)
    one = follow(ground.context, ledger=str(ledger))
    assert asked_while_idle(ground, one, one.begin(LATEST)) == (0, 0)


@pytest.mark.parametrize("what", ["log", "ledger"])
def test_an_idle_trigger_asks_bookies_only_where_a_ledger_is_written(
    ground: Ground, log: Log, what: str
) -> None:
    writer = log.become_writer()
    writer.append(b"a")
    named = {"log": "orders"} if what == "log" else {"ledger": str(writer.ledger_id)}
    stream = follow(ground.context, **named)

    in_metadata, on_bookies = asked_while_idle(ground, stream, stream.begin(LATEST))

    assert in_metadata == 0
    once = Counter(step.operation for step in ground.steps)
    assert on_bookies <= 20 * 3 * 4, once  # a look a second, three bookies, four files at the most


def test_what_comes_to_an_idle_stream_is_seen_by_its_next_trigger(ground: Ground, log: Log) -> None:
    stream = follow(ground.context)
    start = stream.begin(LATEST)
    for round_ in range(4):
        asked_while_idle(ground, stream, start)
        write(log, b"%d" % round_)
        ground.context.runtime.sleep(0.1)

        end = stream.ahead(start, Limits())

        assert read(ground.context, stream, start, end) == [b"%d" % round_]
        start = end


@pytest.mark.parametrize("what", ["log", "ledger"])
def test_a_closed_ledger_is_not_watched(ground: Ground, log: Log, what: str) -> None:
    writer = log.become_writer()
    writer.append(b"a")
    first = writer.ledger_id
    named = {"log": "orders"} if what == "log" else {"ledger": str(first)}
    stream = follow(ground.context, **named)
    start = stream.begin(EARLIEST)
    written = [first]
    for _ in range(3):
        list(batches(ground.context, stream, start))
        writer.roll()
        writer.append(b"b")
        written.append(writer.ledger_id)
    list(batches(ground.context, stream, start))
    writer.close()
    list(batches(ground.context, stream, start))
    watched = [step.path for step in ground.steps if step.operation == "watch_metadata"]

    # Each once, while it was written, and so told of its end.
    assert watched == [str(each) for each in (written if what == "log" else written[:1])]
    ground.forget()
    later = follow(ground.context, **named)
    list(batches(ground.context, later, later.begin(EARLIEST)))
    assert ground.count()["watch_metadata"] == 0


@pytest.mark.parametrize("what", ["log", "ledger"])
@pytest.mark.parametrize("is_known", [True, False], ids=["read_before", "new"])
def test_a_ledger_that_is_closed_just_before_it_is_watched_is_seen_closed(
    ground: Ground, log: Log, monkeypatch: pytest.MonkeyPatch, what: str, is_known: bool
) -> None:
    writer = log.become_writer()
    writer.append(b"a")
    named = {"log": "orders"} if what == "log" else {"ledger": str(writer.ledger_id)}
    stream = follow(ground.context, **named)
    start = Offset.from_json(follow(ground.context, **named).begin(EARLIEST).to_json())
    if is_known:
        stream.front()
    store, watch = ground.context.store, ground.context.store.watch_metadata

    def watch_late(ledger_id: LedgerId) -> Unchanged:
        writer.append(b"b")
        writer.close()
        return watch(ledger_id)

    monkeypatch.setattr(store, "watch_metadata", watch_late)
    assert isinstance(stream, FollowedLog | FollowedLedger)
    if is_known:  # it is asked again when the metadata changed, or the connection was lost
        monkeypatch.setattr(vars(stream)["_front"], "_seen", None)

    end = stream.ahead(start, Limits())

    assert read(ground.context, stream, start, end) == [b"a", b"b"]
    ground.forget()
    ground.context.runtime.sleep(10)
    assert stream.ahead(end, Limits()) == end
    assert ground.steps == []  # nothing more is expected of it


@pytest.mark.parametrize("deleted", ["log", "truncated", "ledger"])
@pytest.mark.parametrize("is_written", [True, False], ids=["written", "closed"])
def test_what_is_lost_while_a_stream_is_idle_is_told_by_its_next_trigger(
    ground: Ground, log: Log, deleted: str, is_written: bool
) -> None:
    writer = log.become_writer()
    writer.append(b"a")
    ledger = writer.ledger_id
    if not is_written:
        writer.close()
    stream = follow(ground.context, **({"ledger": str(ledger)} if deleted == "ledger" else {}))
    start = stream.begin(LATEST)
    asked_while_idle(ground, stream, start)
    behind = ground.client()
    if deleted == "truncated":
        with open_log(behind, "orders").become_writer() as other:
            other.append(b"b")
            other.roll()
            other.append(b"c")
            other.roll()
            open_log(behind, "orders").truncate(other.ledger_id)
    elif deleted == "log":
        truncation.delete(behind, "orders")
    else:
        lifecycle.delete_ledger(behind, ledger, even_if_alive=is_written)
    ground.context.runtime.sleep(1)

    if deleted == "ledger" and not is_written:  # all of it was read, and nothing more can come
        assert stream.ahead(start, Limits()) == start
        return
    with pytest.raises((DataLossError, NoSuchLogError)):
        next_batch(stream, start)


def test_one_ledger_is_followed_until_it_is_closed_and_after(context: ClientContext) -> None:
    writer = lifecycle.create_ledger(context, Quorum(3, 3, 2))
    stream = follow(context, ledger=str(writer.ledger_id))
    start = stream.begin(EARLIEST)
    told = []
    for number in range(3):
        writer.append(b"%d" % number)
        context.runtime.sleep(10)
        end = stream.ahead(start, Limits())
        told += read(context, stream, start, end)
        start = end
    writer.close()
    for batch in batches(context, stream, start):
        told += batch

    assert told == [b"0", b"1", b"2"]
    lifecycle.delete_ledger(context, writer.ledger_id)
    with pytest.raises(DataLossError, match="failOnDataLoss"):
        follow(context, ledger=str(writer.ledger_id)).begin(EARLIEST)


def test_a_log_of_many_ledgers_is_looked_at_by_its_end(ground: Ground, log: Log) -> None:
    with log.become_writer() as writer:
        for _ in range(12):
            writer.append(b"a")
            writer.roll()
    ground.forget()

    FollowedLog(ground.context, SourceOptions.parse({"log": "orders"})).begin(LATEST)

    asked = ground.count()
    assert asked["read_ledger"] <= 2, asked


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"version": 2, "nonce": "x", "ledger": 1, "entry": 1},
        {"version": 1, "nonce": "x", "ledger": "one", "entry": 1},
        {"version": 1, "nonce": "x", "ledger": -1, "entry": 1},
        {"version": 1, "nonce": "x", "ledger": float("inf"), "entry": 1},
    ],
)
def test_an_offset_of_somebody_else_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError, match="checkpoint holds an offset"):
        Offset.from_json(value)


def test_offsets_are_the_same_text_every_time() -> None:
    offset = Offset(Position(LedgerId(7), EntryId(12)), "n", "orders")

    assert list(offset.to_json()) == ["version", "log", "nonce", "ledger", "entry"]
    assert Offset.from_json(dict(reversed(offset.to_json().items()))) == offset


def test_a_stream_can_begin_at_a_time(tmp_path: Path) -> None:
    now = 1_000

    class Clock(InlineRuntime):
        def wall_ms(self) -> int:
            return now * 1000

    context = Ground(tmp_path, runtime=Clock()).context
    log = create_log(context, "orders", USUAL)
    with log.become_writer() as writer:
        for number in range(6):
            writer.append(b"%d" % number)
            now += 10
            if number == 2:
                writer.roll()
    stream = follow(context)

    time = datetime.fromtimestamp(1_040, timezone.utc)
    found = list(batches(context, stream, stream.begin(Moment(time))))
    assert found == [[b"4", b"5"]]
    options = SourceOptions.parse({"log": "orders", "startingOffsets": '{"time": 1040000}'})
    (chosen,) = open_selection(context, options).ranges()
    assert (chosen.first, chosen.last) == (1, 2)


def test_a_named_stream_publishes_what_it_is_done_with(context: ClientContext, log: Log) -> None:
    write(log, b"a", b"b")
    stream = follow(context)
    assert isinstance(stream, FollowedLog)
    start = stream.begin(EARLIEST)
    middle = stream.ahead(start, Limits(entries=1))

    stream.publish("etl", start)
    stream.publish("etl", middle)  # too soon after the last time
    (told,) = consumers_table(context, "orders").to_pylist()
    assert told["entries_behind"] == 2
    context.runtime.sleep(10)
    stream.publish("etl", middle)
    (told,) = consumers_table(context, "orders").to_pylist()
    assert told["entries_behind"] == 1
    stream.publish("etl", stream.ahead(middle, Limits()), is_last=True)  # however soon
    (told,) = consumers_table(context, "orders").to_pylist()
    assert told["entries_behind"] == 0


def test_it_is_told_what_may_be_missing_of_what_is_followed(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    ledger_id = bereft_log(ground)
    log = follow(ground.context)
    begin, front = log.begin(EARLIEST), log.front()
    caplog.clear()

    assert [each.last for each in log.ranges(begin, front)] == [0]
    assert f"ledger {ledger_id} of log 'orders': entries 1.. may be missing" in caplog.text
