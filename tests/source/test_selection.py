"""What a batch read chooses: ledgers and places that are there, or a sentence that says why not."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.errors import (
    DataLossError,
    InvalidArgumentError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from spark_bookkeeper.logs.log import Log
from spark_bookkeeper.logs.logs import create_log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.source.metadata_column import METADATA_TYPE
from spark_bookkeeper.source.options import SourceOptions, Use
from spark_bookkeeper.source.schema import wanted_columns
from spark_bookkeeper.source.selection import named_ledgers, open_selection, viewed_ledgers
from spark_bookkeeper.testing.ground import Ground, InlineRuntime
from tests.worlds import bereft_log

HUGE = "0-9999999999"


@pytest.fixture
def context(inline_ground: Ground) -> ClientContext:
    return inline_ground.context


@pytest.fixture
def log(context: ClientContext) -> Log:
    """Two ledgers of two entries each, and a ledger of nobody between them."""
    log = create_log(context, "orders", LogOptions(Quorum(3, 3, 2)))
    with log.become_writer() as writer:
        writer.append(b"a")
        writer.append(b"b")
        closed(context, 3)
        writer.roll()
        writer.append(b"c")
        writer.append(b"d")
    return log


def closed(context: ClientContext, entries: int) -> LedgerId:
    with lifecycle.create_ledger(context, Quorum(3, 3, 2)) as writer:
        for number in range(entries):
            writer.append(b"%d" % number)
    return writer.ledger_id


def chosen(context: ClientContext, **options: str) -> list[tuple[int, int, int]]:
    parsed = SourceOptions.parse(options)
    parsed.check_reading(Use.READ)
    ranges = open_selection(context, parsed).ranges()
    return [(each.ledger.ledger_id, each.first, each.last) for each in ranges]


def test_a_run_of_ten_thousand_million_ids_is_the_ledgers_there_are(context: ClientContext) -> None:
    ids = [closed(context, 1) for _ in range(3)]

    assert chosen(context, ledgers=HUGE, failOnDataLoss="false") == [(i, 0, 0) for i in ids]
    with pytest.raises(NoSuchLedgerError, match=f"there is no ledger {ids[-1] + 1}"):
        chosen(context, ledgers=HUGE)
    with pytest.raises(NoSuchLedgerError, match="none of the ledgers"):
        chosen(context, ledgers="5000-9999999999", failOnDataLoss="false")


def test_a_view_of_a_run_of_ids_is_of_those_there_are(context: ClientContext) -> None:
    ids = [closed(context, 1) for _ in range(3)]

    def named(**options: str) -> list[LedgerId] | None:
        return named_ledgers(context, SourceOptions.parse({"view": "entries", **options}))

    assert named(ledgers=f"{ids[2]},{HUGE}") == [ids[2], ids[0], ids[1]]
    assert named(ledgers="5000-9999999999") == []
    assert named() is None


@pytest.mark.parametrize("view", ["entries", "fragments", "slots"])
def test_a_view_of_one_ledger_that_is_not_there_is_refused(
    context: ClientContext, view: str
) -> None:
    there = closed(context, 1)

    def viewed(ledger: int) -> list[LedgerId] | None:
        return viewed_ledgers(context, SourceOptions.parse({"view": view, "ledger": str(ledger)}))

    assert viewed(there) == [there]
    with pytest.raises(NoSuchLedgerError):
        viewed(there + 1)


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("{ledger}:2", "{ledger}:1"),
        ('{{"time": "2026-11-22T06:30:00Z"}}', '{{"time": "2026-11-22T06:29:00Z"}}'),
    ],
)
def test_a_read_that_begins_behind_its_end_is_refused(
    context: ClientContext, start: str, end: str
) -> None:
    ledger = closed(context, 3)
    places = start.format(ledger=ledger), end.format(ledger=ledger)

    with pytest.raises(InvalidArgumentError, match="begins behind its end"):
        chosen(context, ledger=str(ledger), startingOffsets=places[0], endingOffsets=places[1])


@pytest.mark.parametrize("lenient", ["true", "false"])
def test_behind_a_ledger_and_before_the_next_one_is_one_place_of_a_log(
    context: ClientContext, log: Log, lenient: str
) -> None:
    first, newest = log.ledgers()

    def read(start: str, end: str) -> list[tuple[int, int, int]]:
        places = {"startingOffsets": start, "endingOffsets": end}
        return chosen(context, log="orders", failOnDataLoss=lenient, **places)

    for start in (f"{first + 1}:0", f"{newest}:0"):  # a ledger of nobody is between
        for end in (f"{first}:2", f"{first + 1}:0"):
            assert read(start, end) == read(end, start) == []
    assert read(f"{newest + 1}:0", f"{newest}:2") == []
    for start, end in (
        (f"{newest}:0", f"{first}:1"),
        (f"{newest + 1}:0", f"{newest}:0"),
        (f"{newest + 1}:0", f"{first}:2"),
        (f"{newest}:1", f"{first}:2"),
        (f"{newest}:1", f"{newest}:0"),
    ):
        with pytest.raises(InvalidArgumentError, match="begins behind its end"):
            read(start, end)
    log.truncate(newest)
    assert read(f"{newest}:0", f"{first}:1") == []  # nothing is between any more


def test_the_readable_end_of_an_open_ledger_and_before_the_next_one_are_one_place(
    context: ClientContext,
) -> None:
    writer = create_log(context, "open", LogOptions(Quorum(3, 3, 2))).become_writer()
    for payload in (b"a", b"b", b"c"):
        writer.append(payload)
    ledger = writer.ledger_id

    def read(end: int) -> list[tuple[int, int, int]]:
        places = {"startingOffsets": f"{ledger + 1}:0", "endingOffsets": f"{ledger}:{end}"}
        return chosen(context, log="open", **places)

    assert read(2) == []
    with pytest.raises(InvalidArgumentError, match="begins behind its end"):
        read(1)


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_a_place_behind_the_end_is_refused_with_the_end(
    context: ClientContext, log: Log, option: str
) -> None:
    ledger = closed(context, 3)
    first, newest = log.ledgers()

    assert chosen(context, ledger=str(ledger), **{option: f"{ledger}:3"}) == (
        [] if option == "startingOffsets" else [(ledger, 0, 2)]
    )
    with pytest.raises(NoSuchEntryError, match=f"which is {ledger}:3 now"):
        chosen(context, ledger=str(ledger), **{option: f"{ledger}:4"})
    assert chosen(context, log="orders", **{option: f"{newest + 1}:0"}) == (
        [] if option == "startingOffsets" else [(first, 0, 1), (newest, 0, 1)]
    )
    for place in (f"{first}:3", f"{newest}:3", f"{newest + 1}:1", "99999:0"):
        with pytest.raises(NoSuchEntryError, match=f"{option} {place} is beyond the end"):
            chosen(context, log="orders", **{option: place})
        chosen(context, log="orders", failOnDataLoss="false", **{option: place})


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_an_entry_of_another_log_is_no_place_of_this_one(
    context: ClientContext, log: Log, option: str
) -> None:
    first, newest = log.ledgers()
    (between,) = range(first + 1, newest)

    with pytest.raises(NoSuchEntryError, match=f"has no ledger {between}"):
        chosen(context, log="orders", **{option: f"{between}:1"})
    # Before the first entry of whatever comes next: where a stream stands that has read all.
    at_its_begin = chosen(context, log="orders", **{option: f"{between}:0"})
    assert at_its_begin == [(newest if option == "startingOffsets" else first, 0, 1)]


def test_a_bookie_that_holds_nothing_of_what_is_read_is_refused_with_those_that_do(
    context: ClientContext,
) -> None:
    ledger = closed(context, 1)
    (holder, *_) = open_selection(context, SourceOptions.parse({"ledger": str(ledger)})).ranges()
    bookie = sorted(holder.ledger.metadata.bookies())[0]

    assert chosen(context, ledger=str(ledger), bookie=bookie) == [(ledger, 0, 0)]
    with pytest.raises(InvalidArgumentError, match=f"bookie='nobody:1'.*{bookie}"):
        chosen(context, ledger=str(ledger), bookie="nobody:1")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([("id", pa.int64(), True)], "names no column _metadata as its last"),
        ([("id", pa.int64(), False), ("_metadata", METADATA_TYPE, False)], "'id' may be null"),
    ],
)
def test_a_schema_that_was_given_and_does_not_fit_is_refused(
    given: list[tuple[str, pa.DataType, bool]], said: str
) -> None:
    options = SourceOptions.parse({"ledger": "7", "includeMetadata": "true"})
    told = pa.schema([pa.field(name, kind, nullable) for name, kind, nullable in given])

    with pytest.raises(InvalidArgumentError, match=said):
        wanted_columns(pa.schema([("id", pa.int64())]), told, options)


@pytest.mark.parametrize("option", ["ledger", "log"])
def test_it_is_told_what_may_be_missing_of_what_is_read(
    inline_ground: Ground, caplog: pytest.LogCaptureFixture, option: str
) -> None:
    ledger_id = bereft_log(inline_ground)
    name = "orders" if option == "log" else str(ledger_id)

    assert chosen(inline_ground.context, **{option: name}) == [(ledger_id, 0, 0)]
    assert f"ledger {ledger_id} of log 'orders': entries 1.. may be missing" in caplog.text


@pytest.mark.parametrize("look", range(4))
def test_what_is_truncated_while_a_read_is_planned_is_told(ground: Ground, look: int) -> None:
    log = create_log(ground.context, "orders", LogOptions(Quorum(3, 3, 2)))
    with log.become_writer() as writer:
        first = writer.ledger_id
        for _ in range(3):
            writer.append(b"a")
            writer.roll()
        writer.append(b"b")
    looks = iter(range(100))

    def truncate(place: str, operation: str, path: str) -> None:
        if operation == "read_register" and path.endswith("/orders") and next(looks) == look:
            log.truncate(log.ledgers()[-2])

    client = ground.client(InlineRuntime(), truncate)
    with pytest.raises(DataLossError, match="was truncated"):
        chosen(client, log="orders", startingOffsets=f"{first}:0")

    assert next(looks) > look, "it was truncated"
