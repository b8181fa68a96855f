"""What is to be read: ledgers in their order, and which entries of each there are now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.read.reader import LedgerReader, read_last_add_confirmed
from spark_bookkeeper.client.recover.recovery import recover_ledger
from spark_bookkeeper.client.write.bulk import EntryRange
from spark_bookkeeper.errors import (
    DataLossError,
    InvalidArgumentError,
    MetadataFormatError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from spark_bookkeeper.logs.listing import list_ledgers
from spark_bookkeeper.logs.logs import open_log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.metadata import logs
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import NO_ENTRY, EntryId, LedgerId, parse_ledger_id
from spark_bookkeeper.protocol.log import Position
from spark_bookkeeper.source.options import SourceOptions
from spark_bookkeeper.source.places import EARLIEST, LATEST, Moment, Place


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
            UnauthorizedError, RecoveryUndecidedError, EntryUnreadableError.
        """
        if self.options.log is not None:
            return self._ranges_of_log(self.options.log)
        ledgers = open_ledgers(self.context, self.options, self.ledgers)
        self._check_named(self.options.starting_offsets, "startingOffsets")
        self._check_named(self.options.ending_offsets, "endingOffsets")
        found = []
        for ledger in ledgers:
            if not ledger.metadata.is_closed and self.options.open_mode == "recover":
                recovered = recover_ledger(self.context, ledger.ledger_id)
                ledger = Ledger.of(ledger.ledger_id, recovered.value)
            start, end = self.options.starting_offsets, self.options.ending_offsets
            found.append(self._range(ledger, self._in(ledger, start), self._in(ledger, end)))
        return [each for each in found if each.first <= each.last]

    def _ranges_of_log(self, name: str) -> list[EntryRange]:
        head = logs.read_log(self.context.store.registers, name)
        start, end = self._in_log(name, "starting_offsets"), self._in_log(name, "ending_offsets")
        if start == LATEST or end == EARLIEST:
            return []
        first = start.ledger_id if isinstance(start, Position) else None
        if first is not None and first < head.begins_at:
            if self.options.fail_on_data_loss:
                raise truncated(name, first, head.begins_at)
            first = None
        head, listed = list_ledgers(self.context, name, head.nonce, first)
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
            return open_log(self.context, name).position_at(place.time)
        return place

    def _in(self, ledger: Ledger, place: Place | None) -> Place | None:
        """The same of one ledger."""
        if not isinstance(place, Moment):
            return place
        reader = LedgerReader(self.context, ledger)
        return Position(ledger.ledger_id, reader.entry_at(place.time))

    def _range(self, ledger: Ledger, start: Place | None, end: Place | None) -> EntryRange:
        readable = readable_end(self.context, ledger)
        first, last = EntryId(0), readable
        if start == LATEST or end == EARLIEST:
            last = NO_ENTRY
        if isinstance(start, Position):
            first = _place_in(ledger, start, readable)
        if isinstance(end, Position):
            last = EntryId(_place_in(ledger, end, readable) - 1)
            self._check_end(ledger, end, readable)
        return EntryRange(ledger, first, last)

    def _check_end(self, ledger: Ledger, end: Position, readable: EntryId) -> None:
        is_beyond = end.ledger_id == ledger.ledger_id and end.entry_id > readable + 1
        if is_beyond and self.options.fail_on_data_loss:
            raise NoSuchEntryError(
                f"endingOffsets {end.ledger_id}:{end.entry_id} is beyond the end of ledger "
                f"{ledger.ledger_id}: entries up to {readable} can be read, so the end is at most "
                f"{readable + 1}. With failOnDataLoss=false what there is is read",
                ledger_id=ledger.ledger_id,
                entry_id=end.entry_id,
            )

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
    ids = named_ledgers(options)
    schemas = [ledger.schema for ledger in open_ledgers(context, options, ids)]
    if not schemas:
        raise NoSuchLedgerError(
            "none of the ledgers that were to be read is there; `spark-bookkeeper ledger list` "
            "shows those that are",
            ledger_id=ids[0],
        )
    return Selection(context, options, united(schemas), ids)


def named_ledgers(options: SourceOptions) -> list[LedgerId]:
    """The ledgers that were named, each once, in their order."""
    runs = options.ledgers or ()
    if options.ledger is not None:
        runs = ((options.ledger, options.ledger),)
    named = chain.from_iterable(range(first, last + 1) for first, last in runs)
    return list(dict.fromkeys(parse_ledger_id(ledger) for ledger in named))


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
                raise NoSuchLedgerError(
                    f"there is no ledger {ledger_id}: it was deleted, or never existed. With "
                    "failOnDataLoss=false the others are read without it",
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


def readable_end(context: ClientContext, ledger: Ledger) -> EntryId:
    """The last entry that can be read now; -1 when there is none."""
    last = ledger.metadata.last_entry_id
    return read_last_add_confirmed(context, ledger) if last is None else last


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
        made = pa.schema(fields)
    return made


def truncated(log: str, asked: LedgerId, begins_at: LedgerId) -> DataLossError:
    """What was to be read of a log is no longer in it."""
    return DataLossError(
        f"log {log!r} was truncated: ledger {asked}, where the read was to begin, is no longer in "
        f"it, and it begins at ledger {begins_at} now. With failOnDataLoss=false the read goes on "
        "from there",
        ledger_id=asked,
        entry_id=NO_ENTRY,
    )


def _place_in(ledger: Ledger, position: Position, readable: EntryId) -> EntryId:
    """Where a position is among the entries of a ledger: before, in or behind them."""
    if position.ledger_id < ledger.ledger_id:
        return EntryId(0)
    if position.ledger_id > ledger.ledger_id:
        return EntryId(readable + 1)
    return EntryId(min(position.entry_id, readable + 1))
