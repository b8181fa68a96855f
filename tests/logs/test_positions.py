"""Places that callers name, right ones and wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_bookkeeper.errors import InvalidArgumentError, NoSuchEntryError
from spark_bookkeeper.logs.consumers import consumers_table
from spark_bookkeeper.logs.log import Log
from spark_bookkeeper.logs.logs import create_log, open_log
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.log import Position
from spark_bookkeeper.source.offset_options import parse_place
from spark_bookkeeper.testing.ground import METADATA, Ground, InlineRuntime
from tests.hooks import At
from tests.logs.conftest import USUAL, remove_files

READS: tuple[Callable[[Log, Any], Any], ...] = (
    lambda log, place: list(log.entries(place)),
    lambda log, place: log.read_arrow(place),
    lambda log, place: list(log.tail(place, timeout_ms=0)),
)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "7",
            "7:",
            ":7",
            "a:b",
            "7:-2",
            "-7:0",
            "7:1:2:3",
            " 7:1",
            "7:1\n",
            "7:1:-1",
            "7.0:1",
        ),
        *("9" * 5000 + ":0", f"{2**63}:0", f"0:{2**63}", "\u0667:\u0661"),
        *(None, 7, 7.5, b"7:1", (7, 1)),
    ],
)
def test_what_is_no_position_is_refused_wherever_it_is_given(log: Log, text: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        Position.parse(text)
    for read in READS:
        if text is not None:
            with pytest.raises(InvalidArgumentError):
                read(log, text)
    with pytest.raises(InvalidArgumentError):
        log.publish("etl", text)


@pytest.mark.parametrize(
    ("ledger_id", "entry_id"), [("7", 1), (-5, 0), (7, -2), (1.5, 0), (2**70, 0), (7, None)]
)
def test_a_position_of_numbers_that_are_no_ids_is_refused(
    log: Log, ledger_id: Any, entry_id: Any
) -> None:
    place = Position(ledger_id, entry_id)
    calls: list[Callable[[Log, Any], Any]] = [*READS, Log.truncate]
    calls.append(lambda log, place: log.publish("etl", place))
    for call in calls:
        with pytest.raises(InvalidArgumentError):
            call(log, place)


def test_what_a_writer_has_written_last_is_a_place_also_before_its_first_entry(
    ground: Ground, log: Log
) -> None:
    with log.become_writer() as writer:
        place = writer.last_position
        assert Position.parse(str(place)) == place
        log.publish("etl", place)
        writer.append(b"a")
        writer.append(b"b")

    assert [entry.payload for entry in log.entries(str(place))] == [b"a", b"b"]
    assert list(log.entries(None, place)) == []
    (told,) = consumers_table(ground.context, "orders").to_pylist()
    assert told["entries_behind"] == 2
    with pytest.raises(ValueError, match="earliest and latest"):
        parse_place("7:-1")  # what Kafka calls latest


def test_what_a_log_has_not_is_not_read_past_without_a_word(ground: Ground, log: Log) -> None:
    with log.become_writer() as writer:
        first = writer.append(b"a").ledger_id
        foreign = create_log(ground.context, "other", USUAL)
        with foreign.become_writer() as other:
            between = other.append(b"0").ledger_id
        writer.roll()
        newest = writer.append(b"b").ledger_id

    for ledger_id, entry_id in ((between, 1), (first, 2), (newest, 2), (newest + 2, 0), (2**62, 9)):
        for read in READS:
            with pytest.raises(NoSuchEntryError, match="is no place of log 'orders'"):
                read(log, Position(LedgerId(ledger_id), EntryId(entry_id)))
    for ledger_id, entry_id, count in ((first, 1, 1), (between, 0, 1), (newest, 1, 0)):
        assert len(READS[0](log, f"{ledger_id}:{entry_id}")) == count
    assert READS[0](log, f"{newest + 1}:0") == []


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("was_read", [True, False])
def test_who_has_read_what_is_truncated_while_he_looks_for_more_goes_on(
    ground: Ground, log: Log, read: Callable[[Log, Any], Any], was_read: bool
) -> None:
    with log.become_writer() as writer:
        first = writer.ledger_id
        writer.append(b"a")
        writer.roll()
        writer.append(b"b")
    newest = log.ledgers()[-1]
    looks = At("read_ledger", lambda: log.truncate(newest), only=[0])
    other = open_log(ground.client(InlineRuntime(), looks), "orders")
    assert not looks.met
    if was_read:
        assert len(read(other, f"{first}:1")) == 1
    else:
        with pytest.raises(NoSuchEntryError, match="truncated while it was read"):
            read(other, f"{first}:0")
    assert looks.met


@pytest.mark.parametrize("read", READS[:2])
def test_who_reads_what_is_truncated_meanwhile_is_told_of_the_truncation(
    ground: Ground, log: Log, read: Callable[[Log, Any], Any]
) -> None:
    with log.become_writer() as writer:
        writer.append(b"a")
        writer.roll()
        writer.append(b"b")
    other, newest = open_log(ground.client(), "orders"), log.ledgers()[-1]

    def truncate(place: str, operation: str, path: str) -> None:
        if place != METADATA:
            ground.before.remove(truncate)
            (gone,) = other.truncate(newest)
            remove_files(ground, gone)  # as garbage is collected

    ground.before.append(truncate)
    with pytest.raises(NoSuchEntryError, match="truncated while it was read"):
        read(log, None)
