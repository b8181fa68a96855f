"""Which ledgers a read reads, in their order, and which of their entries exist now."""

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
from spark_bookkeeper.client.read.unreadable import warn_of_accepted_loss
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
"""For a larger number of ledger ids, the ids are looked up in the list of all ledgers."""

_OPTIONS: Final = {"starting_offsets": "startingOffsets", "ending_offsets": "endingOffsets"}


@dataclass(frozen=True)
class Selection:
    """The ledgers or the log that a read reads, with the read's options and columns."""

    context: ClientContext
    options: SourceOptions
    schema: pa.Schema
    """The schema of all rows; it can hold those of every ledger."""
    ledgers: Sequence[LedgerId] = ()
    """In reading order. Empty for a log, whose ledgers are listed when it is read."""

    def ranges(self) -> list[EntryRange]:
        """Return the ranges of entries to read now, in order: at most one for each ledger.

        Ledgers that are not closed are recovered, unless ``openMode`` is ``noRecovery``.

        Raises:
            NoSuchLedgerError, NoSuchEntryError, DataLossError: a part does not exist; with
                ``failOnDataLoss=false`` it is skipped.
            InvalidArgumentError: the given bookie holds none of the entries.
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
        """Return the ranges of these ledgers of a log from one position to another."""
        if isinstance(start, Position):
            listed = [ledger for ledger in listed if ledger >= start.ledger_id]
        if isinstance(end, Position):
            listed = [ledger for ledger in listed if ledger <= end.ledger_id]
        password = LogOptions.from_json(name, head.options).password
        ranges = []
        for ledger in open_ledgers(self.context, self.options, listed, password):
            ranges.append(self._range(ledger, start, end))
            if not ledger.metadata.is_closed:
                break  # later ledgers may hold entries that are not acknowledged before it
        return [each for each in ranges if each.first <= each.last]

    def _in_log(self, name: str, option: str) -> Place | None:
        """Return a place in the log, with a time replaced by its position."""
        place: Place | None = getattr(self.options, option)
        if isinstance(place, Moment):
            is_end = option == "ending_offsets"
            return open_log(self.context, name).position_at(place.time, is_end=is_end)
        return place

    def _in(self, ledger: Ledger, place: Place | None) -> Place | None:
        """Return a place in one ledger, with a time replaced by its position."""
        if not isinstance(place, Moment):
            return place
        reader = LedgerReader(self.context, ledger)
        return Position(ledger.ledger_id, reader.entry_at(place.time))

    def _range(self, ledger: Ledger, start: Place | None, end: Place | None) -> EntryRange:
        warn_of_accepted_loss(ledger)
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
        """Check that the given bookie has copies: otherwise the read would silently be empty."""
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
    """Return what the options select.

    Raises:
        NoSuchLedgerError, NoSuchLogError, UnauthorizedError, MetadataUnavailableError.
        InvalidArgumentError: the schemas of the ledgers cannot be united.
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
    """Return the ledgers that the options name, each once, in order; ``None`` if they name none.

    Of very many named ids, return those that exist. For a read that may not miss any, also return
    the first missing one.
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
    """Return the ledgers that a view shows, without missing ones; ``None`` means all ledgers.

    Raises:
        NoSuchLedgerError: ``ledger`` names one that does not exist.
    """
    if options.ledger is not None:
        with suppress(MetadataFormatError):  # it exists; the view shows what can be read of it
            context.store.read_ledger(parse_ledger_id(options.ledger))
    return named_ledgers(context, options)


def _there(there: Sequence[int], first: int, last: int, may_miss: bool) -> Iterator[int]:
    """Yield the ids of a run that exist, or only the first one that does not exist."""
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
    """Return ledgers with their current metadata; deleted ones are left out where that is allowed.

    Args:
        password: the password of all ledgers; ``None`` takes that of the options.

    Raises:
        NoSuchLedgerError, UnauthorizedError.
        MetadataFormatError: a ledger of another client, or one with damaged metadata.
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
    """Return one schema for the rows of all ledgers: missing columns are null, and numbers have the
    widest type.

    Raises:
        InvalidArgumentError: a column has incompatible types; the message shows both schemas.
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
    """Return the error for a read whose first entries were truncated."""
    return DataLossError(
        f"log {log!r} was truncated: what it had from {start.ledger_id}:{start.entry_id} on, where "
        f"the read was to begin, up to ledger {begins_at}, where it begins now, is deleted. With "
        "failOnDataLoss=false the read goes on from there",
        ledger_id=start.ledger_id,
        entry_id=start.entry_id,
    )


def _place_in(ledger: Ledger, position: Position, readable: EntryId) -> EntryId:
    """Return a position as an entry of a ledger: its first, one of it, or the one after its end."""
    if position.ledger_id < ledger.ledger_id:
        return EntryId(0)
    if position.ledger_id > ledger.ledger_id:
        return EntryId(readable + 1)
    return EntryId(min(position.entry_id, readable + 1))
