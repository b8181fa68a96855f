"""What is to be read: ledgers in their order, and which entries of each there are now."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count
from typing import Final

import pyarrow as pa

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import EntryRange, Ledger
from spark_bookkeeper.client.read.reader import LedgerReader
from spark_bookkeeper.client.read.unreadable import tell_of_accepted_loss
from spark_bookkeeper.client.recover.recovery import recover_ledger
from spark_bookkeeper.errors import (
    DataLossError,
    InvalidArgumentError,
    MetadataFormatError,
    NoSuchLedgerError,
)
from spark_bookkeeper.logs.listing import list_ledgers
from spark_bookkeeper.logs.logs import open_log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.metadata import logs
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import NO_ENTRY, EntryId, LedgerId, parse_ledger_id
from spark_bookkeeper.protocol.log import LogHead, Position
from spark_bookkeeper.source.offset_checks import check_in_ledger, check_in_log, readable_end
from spark_bookkeeper.source.offset_options import (
    EARLIEST,
    LATEST,
    Moment,
    Place,
    begins_behind_its_end,
    is_reversed,
)
from spark_bookkeeper.source.options import SourceOptions

NAMED_ONE_BY_ONE: Final = 10_000
"""More ledgers than so many are looked for in the list of all there are."""

_OPTIONS: Final = {"starting_offsets": "startingOffsets", "ending_offsets": "endingOffsets"}


@dataclass(frozen=True)
class Selection:
    """What a read was told to read, and its columns."""

    context: ClientContext
    options: SourceOptions
    schema: pa.Schema
    """Of all rows: one that holds those of every ledger."""
    ledgers: Sequence[LedgerId] = ()
    """To be read one after the other; of a log what it has is looked up when it is read."""

    def ranges(self) -> list[EntryRange]:
        """The entries that are to be read, as far as there are some now; a ledger each, in order.

        Ledgers that are not closed are recovered, where that was not ruled out.

        Raises:
            NoSuchLedgerError, NoSuchEntryError, DataLossError: some of it is not there; with
                ``failOnDataLoss=false`` it is passed over.
            InvalidArgumentError: the bookie that was named holds nothing of it.
            UnauthorizedError, RecoveryUndecidedError, EntryUnreadableError.
        """
        log = self.options.log
        found = self._ranges_of_ledgers() if log is None else self._ranges_of_log(log)
        self._check_bookie(found)
        return found

    def _ranges_of_ledgers(self) -> list[EntryRange]:
        ledgers = open_ledgers(self.context, self.options, self.ledgers)
        self._check_named(self.options.starting_offsets, "startingOffsets")
        self._check_named(self.options.ending_offsets, "endingOffsets")
        found = []
        for ledger in ledgers:
            if not ledger.metadata.is_closed and self.options.open_mode == "recover":
                recovered = recover_ledger(self.context, ledger.ledger_id)
                ledger = Ledger.of(ledger.ledger_id, recovered.value)
            start, end = self.options.starting_offsets, self.options.ending_offsets
            self._check_in(ledger)
            found.append(self._range(ledger, self._in(ledger, start), self._in(ledger, end)))
        return [each for each in found if each.first <= each.last]

    def _ranges_of_log(self, name: str) -> list[EntryRange]:
        head = logs.read_log(self.context.store.registers, name)
        if self.options.fail_on_data_loss:
            for field, option in _OPTIONS.items():
                place = getattr(self.options, field)
                if isinstance(place, Position):
                    check_in_log(self.context, name, head.nonce, option, place)
        start, end = self._in_log(name, "starting_offsets"), self._in_log(name, "ending_offsets")
        if start == LATEST or end == EARLIEST:
            return []
        first = None
        if isinstance(start, Position):
            first = min(p.ledger_id for p in (start, end) if isinstance(p, Position))
        head, listed = list_ledgers(self.context, name, head.nonce, first)
        may_miss = not self.options.fail_on_data_loss
        if isinstance(start, Position) and head.resumed(start) is None and not may_miss:
            raise truncated(name, start, head.begins_at)
        listed = [ledger for ledger in listed if ledger >= head.begins_at]
        is_suspect = is_reversed(self.options.starting_offsets, self.options.ending_offsets)
        if is_suspect and self._between(name, head, listed, end, start):
            raise begins_behind_its_end()
        return self._between(name, head, listed, start, end)

    def _between(
        self,
        name: str,
        head: LogHead,
        listed: Sequence[LedgerId],
        start: Place | None,
        end: Place | None,
    ) -> list[EntryRange]:
        """What these ledgers of a log have from one place to another."""
        if isinstance(start, Position):
            listed = [ledger for ledger in listed if ledger >= start.ledger_id]
        if isinstance(end, Position):
            listed = [ledger for ledger in listed if ledger <= end.ledger_id]
        password = LogOptions.from_json(name, head.options).password
        ranges = []
        for ledger in open_ledgers(self.context, self.options, listed, password):
            ranges.append(self._range(ledger, start, end))
            if not ledger.metadata.is_closed:
                break  # what follows it may not be acknowledged before it
        return [each for each in ranges if each.first <= each.last]

    def _in_log(self, name: str, option: str) -> Place | None:
        """A place of the log, as a position where it was told as a time."""
        place: Place | None = getattr(self.options, option)
        if isinstance(place, Moment):
            is_end = option == "ending_offsets"
            return open_log(self.context, name).position_at(place.time, is_end=is_end)
        return place

    def _in(self, ledger: Ledger, place: Place | None) -> Place | None:
        """The same of one ledger."""
        if not isinstance(place, Moment):
            return place
        reader = LedgerReader(self.context, ledger)
        return Position(ledger.ledger_id, reader.entry_at(place.time))

    def _range(self, ledger: Ledger, start: Place | None, end: Place | None) -> EntryRange:
        tell_of_accepted_loss(ledger)
        readable = readable_end(self.context, ledger)
        first, last = EntryId(0), readable
        if start == LATEST or end == EARLIEST:
            last = NO_ENTRY
        if isinstance(start, Position):
            first = _place_in(ledger, start, readable)
        if isinstance(end, Position):
            last = EntryId(_place_in(ledger, end, readable) - 1)
        return EntryRange(ledger, first, last)

    def _check_bookie(self, ranges: Sequence[EntryRange]) -> None:
        """Reading the copies of a bookie that has none would be an empty read without a word."""
        holders = {bookie for each in ranges for bookie in each.ledger.metadata.bookies()}
        if self.options.bookie is not None and holders and self.options.bookie not in holders:
            raise InvalidArgumentError(
                f"option bookie={self.options.bookie!r}: that bookie holds nothing of what is "
                f"read. Those that do are {', '.join(sorted(holders))}"
            )

    def _check_in(self, ledger: Ledger) -> None:
        if self.options.fail_on_data_loss:
            for field, option in _OPTIONS.items():
                place = getattr(self.options, field)
                if isinstance(place, Position) and place.ledger_id == ledger.ledger_id:
                    check_in_ledger(option, place, ledger, readable_end(self.context, ledger))

    def _check_named(self, place: Place | None, option: str) -> None:
        if isinstance(place, Position) and place.ledger_id not in self.ledgers:
            raise InvalidArgumentError(
                f"option {option} names ledger {place.ledger_id}, which is not one of those read"
            )


def open_selection(context: ClientContext, options: SourceOptions) -> Selection:
    """What these options say is to be read.

    Raises:
        NoSuchLedgerError, NoSuchLogError, UnauthorizedError, MetadataUnavailableError.
        InvalidArgumentError: the schemas of the ledgers do not go together.
    """
    if options.log is not None:
        return Selection(context, options, open_log(context, options.log).schema)
    ids = named_ledgers(context, options) or []
    schemas = [ledger.schema for ledger in open_ledgers(context, options, ids)]
    if not schemas:
        first = (options.ledgers or ((0, 0),))[0][0] if options.ledger is None else options.ledger
        raise NoSuchLedgerError(
            "none of the ledgers that were to be read is there; `spark-bookkeeper ledger list` "
            "shows those that are",
            ledger_id=first,
        )
    return Selection(context, options, united(schemas), ids)


def named_ledgers(context: ClientContext, options: SourceOptions) -> list[LedgerId] | None:
    """The ledgers that were named, each once, in their order; ``None`` when none was.

    Where very many were named, those of them that there are; and, for who may miss none, the
    first that is not there.
    """
    if options.ledger is not None:
        return [parse_ledger_id(options.ledger)]
    if options.ledgers is None:
        return None
    runs = options.ledgers
    if sum(last - first + 1 for first, last in runs) <= NAMED_ONE_BY_ONE:
        named = chain.from_iterable(range(first, last + 1) for first, last in runs)
    else:
        there = list(context.store.ledger_ids())
        may_miss = options.view is not None or not options.fail_on_data_loss
        named = chain.from_iterable(_there(there, first, last, may_miss) for first, last in runs)
    return list(dict.fromkeys(parse_ledger_id(ledger) for ledger in named))


def viewed_ledgers(context: ClientContext, options: SourceOptions) -> list[LedgerId] | None:
    """The ledgers of which a view tells; ``None``: all of them. Of several, those that there are.

    Raises:
        NoSuchLedgerError: the one that was named is not there.
    """
    if options.ledger is not None:
        with suppress(MetadataFormatError):  # it is there; a view has of it what can be told
            context.store.read_ledger(parse_ledger_id(options.ledger))
    return named_ledgers(context, options)


def _there(there: Sequence[int], first: int, last: int, may_miss: bool) -> Iterator[int]:
    """Those of a run that there are, or the first of it that is not there."""
    found = there[bisect_left(there, first) : bisect_right(there, last)]
    if may_miss or len(found) == last - first + 1:
        yield from found
    else:
        yield next(n for n, each in zip(count(first), [*found, None], strict=False) if n != each)


def open_ledgers(
    context: ClientContext,
    options: SourceOptions,
    ids: Iterable[LedgerId],
    password: bytes | None = None,
) -> list[Ledger]:
    """Ledgers as their metadata tells them now; those that are gone are left out where that is
    allowed.

    Args:
        password: of all of them; ``None`` is the one of the options.

    Raises:
        NoSuchLedgerError, UnauthorizedError.
        MetadataFormatError: one is of another client, or its metadata is damaged.
    """
    found = []
    for ledger_id, metadata in context.store.read_ledgers(list(ids)):
        if metadata is None:
            if options.fail_on_data_loss:
                of_log = "" if options.log is None else f" of log {options.log!r}"
                raise NoSuchLedgerError(
                    f"there is no ledger {ledger_id}{of_log}: it was deleted, or never existed. "
                    "With failOnDataLoss=false the others are read without it",
                    ledger_id=ledger_id,
                )
            continue
        if isinstance(metadata, MetadataFormatError):
            raise metadata
        assert isinstance(metadata, Versioned)
        ledger = Ledger.of(ledger_id, metadata.value)
        ledger.check_password(options.password if password is None else password)
        found.append(ledger)
    return found


def united(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """One schema for the rows of all: columns that some do not have are null there, and numbers
    are as wide as the widest.

    Raises:
        InvalidArgumentError: a column has types that do not go together; both schemas are shown.
    """
    made = schemas[0]
    for schema in schemas[1:]:
        if schema.equals(made):
            continue
        try:
            joined = pa.unify_schemas([made, schema], promote_options="permissive")
        except (pa.ArrowException, ValueError) as error:
            raise InvalidArgumentError(
                f"these ledgers cannot be read as one: {error}. One has\n{made}\nand another\n"
                f"{schema}\nRead them apart"
            ) from error
        fields = [
            field
            if field.name in made.names and field.name in schema.names
            else field.with_nullable(True)
            for field in joined
        ]
        made = pa.schema(fields, metadata=schemas[0].metadata)
    return made


def truncated(log: str, start: Position, begins_at: LedgerId) -> DataLossError:
    """What was to be read of a log is no longer in it."""
    return DataLossError(
        f"log {log!r} was truncated: what it had from {start.ledger_id}:{start.entry_id} on, where "
        f"the read was to begin, up to ledger {begins_at}, where it begins now, is deleted. With "
        "failOnDataLoss=false the read goes on from there",
        ledger_id=start.ledger_id,
        entry_id=start.entry_id,
    )


def _place_in(ledger: Ledger, position: Position, readable: EntryId) -> EntryId:
    """Where a position is among the entries of a ledger: before, in or behind them."""
    if position.ledger_id < ledger.ledger_id:
        return EntryId(0)
    if position.ledger_id > ledger.ledger_id:
        return EntryId(readable + 1)
    return EntryId(min(position.entry_id, readable + 1))
