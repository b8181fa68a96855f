"""One ledger for users: its metadata, and tables of where its entries are.

This module only reads; it fences and changes nothing. It computes from metadata and registrations
alone which bookie should hold which entries; ``check_ledgers`` checks whether the bookie has them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NoReturn

import pyarrow as pa

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.html import fields_table
from spark_bookkeeper.client.ledger import live_members, registered_incarnations
from spark_bookkeeper.client.presence import writer_of, writer_state
from spark_bookkeeper.client.read.newest import Newest, newest_entry
from spark_bookkeeper.client.views import (
    FRAGMENTS,
    SLOTS,
    fragment_rows,
    label_text,
    moment_text,
    slot_rows,
)
from spark_bookkeeper.client.writer_info import WriterInfo
from spark_bookkeeper.metadata.update import read_again
from spark_bookkeeper.protocol.arguments import whole_number
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import NONCE, Fragment, LedgerMetadata
from spark_bookkeeper.runtime.public_names import PublicNames


@dataclass(frozen=True)
class LedgerInfo(PublicNames):
    """One ledger, with its metadata from the time when this object was made."""

    ledger_id: int
    state: str
    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    last_entry_id: int | None
    """``None`` while the ledger is not closed; -1 when it is closed and empty."""
    length_bytes: int | None
    fragments: tuple[Fragment, ...]
    custom_metadata: Mapping[str, bytes] = field(repr=False)
    ctime: int | None
    """Milliseconds since 1970."""
    digest_type: str | None
    writer: WriterInfo | None
    """The process that created it; ``None`` when its client did not record it."""
    writer_state: str | None
    """``lives``, ``gone`` (its process ended, was frozen for long, or lost ZooKeeper) or
    ``unknown`` (it did not record itself); ``None`` when the ledger is closed."""
    last_add_confirmed: int | None
    """The LAC that its bookies know, a little behind the writer's; ``None`` if none answered."""
    newest_entry_ms: int | None
    """When the newest entry of a ledger that is not closed was stored, by its bookie's clock, in
    milliseconds since 1970; for people."""
    _context: ClientContext = field(repr=False, compare=False)
    _frame: Callable[[pa.Table], Any] = field(repr=False, compare=False)

    _INTERNALS: ClassVar[frozenset[str]] = frozenset({"of"})

    @classmethod
    def of(
        cls,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        context: ClientContext,
        frame: Callable[[pa.Table], Any],
    ) -> LedgerInfo:
        """Make it from the metadata; for an open ledger, also query its bookies and its writer.

        Raises ``MetadataUnavailableError``. Bookies that do not answer are skipped.
        """
        if metadata.is_closed:
            state, newest = None, Newest(metadata.last_entry_id)
        else:
            state = writer_state(context, ledger_id, metadata)
            newest = newest_entry(context, ledger_id, metadata)
        return cls(
            ledger_id=ledger_id,
            state=metadata.state.name,
            ensemble_size=metadata.quorum.ensemble_size,
            write_quorum_size=metadata.quorum.write_quorum_size,
            ack_quorum_size=metadata.quorum.ack_quorum_size,
            last_entry_id=metadata.last_entry_id,
            length_bytes=metadata.length_bytes,
            fragments=metadata.fragments,
            custom_metadata=metadata.custom_metadata,
            ctime=metadata.ctime_ms,
            digest_type=metadata.digest_type.name if metadata.digest_type else None,
            writer=writer_of(metadata),
            writer_state=state,
            last_add_confirmed=newest.last_add_confirmed,
            newest_entry_ms=newest.stored_at_ms,
            _context=context,
            _frame=frame,
        )

    @property
    def name(self) -> str | None:
        """The label that ``create_ledger(name=...)`` gave it."""
        return label_text(self.custom_metadata, "name")

    @property
    def owner(self) -> str | None:
        """The label that ``create_ledger(owner=...)`` gave it."""
        return label_text(self.custom_metadata, "owner")

    def fragments_df(self) -> Any:
        """Return its fragments as a DataFrame (``docs/tables.md``)."""
        return self._frame(self.fragments_arrow())

    def fragments_arrow(self) -> pa.Table:
        """Return its fragments, each with its bookies that are not alive now."""
        metadata, alive, _ = self._now(with_end=False)
        rows = list(fragment_rows(self.ledger_id, metadata, alive))
        return pa.Table.from_pylist(rows, schema=FRAGMENTS)

    def placement_df(self) -> Any:
        """Return how much of each fragment each bookie has, as a DataFrame (``docs/tables.md``)."""
        return self._frame(self.placement_arrow())

    def placement_arrow(self) -> pa.Table:
        """Return a row for each bookie of each fragment, by current metadata and registrations."""
        metadata, alive, end = self._now()
        return placement_table(self.ledger_id, metadata, alive, end)

    def stripes_df(self, first: int = 0, last: int | None = None) -> Any:
        """Return which bookies hold which entry, as a DataFrame (``docs/tables.md``)."""
        return self._frame(self.stripes_arrow(first, last))

    def stripes_arrow(self, first: int = 0, last: int | None = None) -> pa.Table:
        """Return a row for each entry and each bookie of its write set.

        For a ledger that is not closed, these are the entries that its bookies know to be
        acknowledged: a writer that pauses sends this after ``explicit_lac_ms``, a second.

        Args:
            first: the first entry.
            last: the last one, itself included; ``None`` is 64 entries, or fewer if the ledger ends
                before. Entries beyond the end have no rows.
        """
        metadata, alive, end = self._now()
        start = whole_number("first", first, 0)
        stop = start + MOST_ENTRIES - 1 if last is None else whole_number("last", last, -1)
        stop = min(stop, -1 if end is None else end)
        return stripes_table(self.ledger_id, metadata, alive, EntryId(start), EntryId(stop))

    def slots_df(self) -> Any:
        """Return the slots of all its bookies as a DataFrame (``docs/tables.md``)."""
        return self._frame(self.slots_arrow())

    def slots_arrow(self) -> pa.Table:
        """Return every readable slot on every bookie of any fragment."""
        self._check_here()
        nonce = self.custom_metadata.get(NONCE)
        ledger, found = self._context.ledger(LedgerId(self.ledger_id), nonce)
        rows = [
            row
            for bookie in sorted(found.value.bookies())
            for row in slot_rows(self._context, ledger, bookie)
        ]
        return pa.Table.from_pylist(rows, schema=SLOTS)

    def _now(
        self, *, with_end: bool = True
    ) -> tuple[LedgerMetadata, Collection[BookieId], EntryId | None]:
        """Return the current metadata, the bookies with live copies, and the last known entry.

        For a ledger that is not closed, this queries the bookies; nothing is fenced.
        """
        self._check_here()
        registered = registered_incarnations(self._context.bookies.registrations())
        ledger_id, nonce = LedgerId(self.ledger_id), self.custom_metadata.get(NONCE)
        metadata = read_again(self._context.store, ledger_id, nonce).value
        end = metadata.last_entry_id
        if end is None and with_end:
            end = newest_entry(self._context, ledger_id, metadata).last_add_confirmed
        return metadata, live_members(metadata, registered), end

    def __reduce__(self) -> NoReturn:
        self._context.refuse_pickling(f"look at ledger {self.ledger_id}", self._looking())

    def _check_here(self) -> None:
        self._context.check_here(f"look at ledger {self.ledger_id}", self._looking())

    def _looking(self) -> str:
        return f".ledger({self.ledger_id})"

    def _repr_html_(self) -> str:
        names = ("ledger_id", "name", "state", "last_entry_id", "length_bytes")
        fields = {name: getattr(self, name) for name in names}
        fields["fragments"] = len(self.fragments)
        if self.writer is not None:
            fields["writer"] = self.writer
        if self.writer_state is not None:
            fields["writer_state"] = self.writer_state
            fields["last_add_confirmed"] = self.last_add_confirmed
            fields["newest_entry"] = moment_text(self.newest_entry_ms)
        return fields_table(fields)


PLACEMENT: Final = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("fragment", pa.int32(), nullable=False),
        pa.field("first_entry_id", pa.int64(), nullable=False),
        pa.field("last_entry_id", pa.int64()),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("bookie_id", pa.string(), nullable=False),
        pa.field("entries", pa.int64()),
        pa.field("is_missing", pa.bool_(), nullable=False),
    ]
)

STRIPES: Final = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("fragment", pa.int32(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("bookie_id", pa.string(), nullable=False),
        pa.field("copy", pa.int32(), nullable=False),
        pa.field("is_missing", pa.bool_(), nullable=False),
    ]
)

MOST_ENTRIES: Final = 64
"""How many entries' stripes are shown if the caller sets no last entry."""


def placement_table(
    ledger_id: int, metadata: LedgerMetadata, alive: Collection[BookieId], end: EntryId | None
) -> pa.Table:
    """Return one row for each bookie of each fragment (``PLACEMENT``).

    Args:
        alive: bookies with live copies now (``live_members``); the others are ``is_missing``.
        end: the last entry of the last fragment, as far as known. Without it, ``entries`` of that
            fragment is null.
    """
    rows: list[dict[str, Any]] = []
    for number, fragment in enumerate(metadata.fragment_ranges()):
        last = end if fragment.last_entry_id is None else fragment.last_entry_id
        for position, bookie in enumerate(fragment.ensemble):
            rows.append(
                {
                    "ledger_id": ledger_id,
                    "fragment": number,
                    "first_entry_id": fragment.first_entry_id,
                    "last_entry_id": fragment.last_entry_id,
                    "position": position,
                    "bookie_id": bookie,
                    "entries": None
                    if last is None
                    else metadata.quorum.entries_held(position, fragment.first_entry_id, last),
                    "is_missing": bookie not in alive,
                }
            )
    return pa.Table.from_pylist(rows, schema=PLACEMENT)


def stripes_table(
    ledger_id: int,
    metadata: LedgerMetadata,
    alive: Collection[BookieId],
    first: EntryId,
    last: EntryId,
) -> pa.Table:
    """Return a row for each entry ``first .. last`` and each bookie of its write set (``STRIPES``).

    ``copy`` counts the write set from 0, in the order in which the entry is striped to it.
    """
    rows = list(_stripes(ledger_id, metadata, alive, first, last))
    return pa.Table.from_pylist(rows, schema=STRIPES)


def _stripes(
    ledger_id: int,
    metadata: LedgerMetadata,
    alive: Collection[BookieId],
    first: EntryId,
    last: EntryId,
) -> Iterator[dict[str, Any]]:
    for number, fragment in enumerate(metadata.fragment_ranges()):
        stop = last if fragment.last_entry_id is None else min(last, fragment.last_entry_id)
        for entry_id in range(max(first, fragment.first_entry_id), stop + 1):
            for copy, position in enumerate(metadata.quorum.write_set(EntryId(entry_id))):
                bookie = fragment.ensemble[position]
                yield {
                    "ledger_id": ledger_id,
                    "entry_id": entry_id,
                    "fragment": number,
                    "position": position,
                    "bookie_id": bookie,
                    "copy": copy,
                    "is_missing": bookie not in alive,
                }
