"""The cluster as tables: ledgers, fragments, bookies, slots, replicas side by side.

Everything here reads, and nothing is fenced or changed by looking.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar, Final, NoReturn

import pyarrow as pa

from spark_bookkeeper.bookie.bookie import Verdict
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.html import fields_table
from spark_bookkeeper.client.ledger import Ledger, in_limbo, live_members, registered_incarnations
from spark_bookkeeper.client.placement import MOST_ENTRIES, placement_table, stripes_table
from spark_bookkeeper.client.presence import ledgers_with_writers, writer_of, writer_state
from spark_bookkeeper.client.read.newest import Newest, newest_entry
from spark_bookkeeper.client.read.reader import read_last_add_confirmed
from spark_bookkeeper.client.writer_info import WriterInfo
from spark_bookkeeper.errors import BookieError, EntryUnreadableError, MetadataFormatError
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.metadata.update import read_again
from spark_bookkeeper.protocol.arguments import whole_number
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import NONCE, Fragment, LedgerMetadata
from spark_bookkeeper.protocol.underreplication import entries_at
from spark_bookkeeper.runtime.public_names import PublicNames

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)

UNREADABLE: Final = "UNREADABLE"
"""State of a ledger whose metadata cannot be decoded; ``ledger(id)`` says why."""

LEDGERS: Final = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("ensemble_size", pa.int32(), nullable=False),
        pa.field("write_quorum_size", pa.int32(), nullable=False),
        pa.field("ack_quorum_size", pa.int32(), nullable=False),
        pa.field("fragments", pa.int32(), nullable=False),
        pa.field("last_entry_id", pa.int64()),
        pa.field("length_bytes", pa.int64()),
        pa.field("digest_type", pa.string()),
        pa.field("format_version", pa.int32(), nullable=False),
        pa.field("ctime", pa.timestamp("us", tz="UTC")),
        pa.field("bookies", pa.list_(pa.string()), nullable=False),
        pa.field("custom_metadata", pa.map_(pa.string(), pa.binary()), nullable=False),
        pa.field("writer", pa.string()),
        pa.field("writer_state", pa.string()),
        pa.field("last_add_confirmed", pa.int64()),
        pa.field("newest_entry_at", pa.timestamp("us", tz="UTC")),
    ]
)

FRAGMENTS: Final = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("first_entry_id", pa.int64(), nullable=False),
        pa.field("last_entry_id", pa.int64()),
        pa.field("ensemble", pa.list_(pa.string()), nullable=False),
        pa.field("is_last", pa.bool_(), nullable=False),
        pa.field("missing_bookies", pa.list_(pa.string()), nullable=False),
    ]
)

BOOKIES: Final = pa.schema(
    [
        pa.field("bookie_id", pa.string(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("root_uri", pa.string()),
        pa.field("incarnation", pa.string()),
        pa.field("rack", pa.string()),
        pa.field("ledgers", pa.int64(), nullable=False),
        pa.field("fragments", pa.int64(), nullable=False),
        pa.field("free_bytes", pa.int64()),
        pa.field("total_bytes", pa.int64()),
        pa.field("readonly_reason", pa.string()),
        pa.field("limbo_ledgers", pa.int64(), nullable=False),
    ]
)

SLOTS: Final = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("bookie_id", pa.string(), nullable=False),
        pa.field("slot", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("first_entry_id", pa.int64()),
        pa.field("last_entry_id", pa.int64()),
        pa.field("last_add_confirmed", pa.int64()),
        pa.field("parts", pa.int32(), nullable=False),
        pa.field("bytes", pa.int64()),
        pa.field("writer", pa.string()),
    ]
)

REPLICAS: Final = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("bookie_id", pa.string(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("digest", pa.string()),
        pa.field("bytes", pa.int64()),
        pa.field("reason", pa.string()),
    ]
)


@dataclass(frozen=True)
class LedgerInfo(PublicNames):
    """One ledger as its metadata told it when this was made."""

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
    """The process that created it; ``None`` when its client left no such note."""
    writer_state: str | None
    """``lives``, ``gone`` (its process ended, was frozen for long, or lost ZooKeeper) or
    ``unknown`` (it left no note); ``None`` when the ledger is closed."""
    last_add_confirmed: int | None
    """As far as the bookies were told, a little behind the writer; ``None`` when none answered."""
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
        """As the metadata says; and of one that is not closed, as its bookies and writer do.

        Raises ``MetadataUnavailableError``. Bookies that do not answer are passed over.
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

    def fragments_df(self) -> Any:
        """Its fragments as a DataFrame (``FRAGMENTS``)."""
        return self._frame(self.fragments_arrow())

    def fragments_arrow(self) -> pa.Table:
        """Its fragments, with the bookies of each that are not alive now."""
        metadata, alive, _ = self._now(with_end=False)
        rows = list(fragment_rows(self.ledger_id, metadata, alive))
        return pa.Table.from_pylist(rows, schema=FRAGMENTS)

    def placement_df(self) -> Any:
        """Which bookie has how much of which fragment, as a DataFrame (``PLACEMENT``)."""
        return self._frame(self.placement_arrow())

    def placement_arrow(self) -> pa.Table:
        """A row for each bookie of each fragment, as metadata and registrations tell it now."""
        metadata, alive, end = self._now()
        return placement_table(self.ledger_id, metadata, alive, end)

    def stripes_df(self, first: int = 0, last: int | None = None) -> Any:
        """Which bookies hold which entry, as a DataFrame (``STRIPES``)."""
        return self._frame(self.stripes_arrow(first, last))

    def stripes_arrow(self, first: int = 0, last: int | None = None) -> pa.Table:
        """A row for each entry and each bookie of its write set.

        Args:
            first: the first entry.
            last: the last one, itself included; ``None`` is 64 entries, or fewer where the ledger
                ends before. What is beyond the end has no rows.
        """
        metadata, alive, end = self._now()
        start = whole_number("first", first, 0)
        stop = start + MOST_ENTRIES - 1 if last is None else whole_number("last", last, -1)
        stop = min(stop, -1 if end is None else end)
        return stripes_table(self.ledger_id, metadata, alive, EntryId(start), EntryId(stop))

    def slots_df(self) -> Any:
        """The slots of all its bookies as a DataFrame (``SLOTS``)."""
        return self._frame(self.slots_arrow())

    def slots_arrow(self) -> pa.Table:
        """Every slot on every bookie that any fragment names and that can be read."""
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
        """The metadata of now, who has copies of it, and the last entry that is known.

        Of a ledger that is not closed the bookies are asked for the last; nothing is fenced.
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
        names = ("ledger_id", "state", "last_entry_id", "length_bytes")
        fields = {name: getattr(self, name) for name in names}
        fields["fragments"] = len(self.fragments)
        if self.writer is not None:
            fields["writer"] = self.writer
        if self.writer_state is not None:
            fields["writer_state"] = self.writer_state
            fields["last_add_confirmed"] = self.last_add_confirmed
            fields["newest_entry"] = moment_text(self.newest_entry_ms)
        return fields_table(fields)


def moment_text(milliseconds: int | None) -> str:
    """Milliseconds since 1970 as people read them."""
    at = moment(milliseconds)
    return "unknown" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def ledgers_table(context: ClientContext, *, ask_bookies: bool = False) -> pa.Table:
    """One row for each ledger (``LEDGERS``).

    Args:
        ask_bookies: also how far those have come that are not closed, and when; otherwise that
            is null. It takes some reads of each bookie for each of them.
    """
    rows: list[dict[str, Any]] = []
    for ledger_id, found, state in ledgers_with_writers(context):
        if isinstance(found, MetadataFormatError):
            rows.append(_unreadable_row(ledger_id))
            continue
        if found.is_closed:
            newest = Newest(found.last_entry_id)
        else:
            newest = newest_entry(context, ledger_id, found) if ask_bookies else Newest()
        rows.append(_ledger_row(ledger_id, found, state, newest))
    return pa.Table.from_pylist(rows, schema=LEDGERS)


def bookies_table(context: ClientContext) -> pa.Table:
    """One row for each bookie that is registered, has a cookie, or is named by a ledger."""
    alive = context.bookies.registrations()
    cookies = {c.value.bookie_id: c.value for c in context.store.cookies()}
    ledgers: Counter[BookieId] = Counter()
    fragments: Counter[BookieId] = Counter()
    limbo: Counter[BookieId] = Counter()
    registered = registered_incarnations(context.bookies.registrations())
    for _, found in context.store.read_ledgers(context.store.ledger_ids()):
        if isinstance(found, Versioned):
            ledgers.update(found.value.bookies())
            limbo.update(in_limbo(found.value, registered))
            fragments.update(b for f in found.value.fragments for b in f.ensemble)
    rows = []
    for bookie in sorted(alive.keys() | cookies.keys() | ledgers.keys()):
        live, cookie = alive.get(bookie), cookies.get(bookie)
        known = live or cookie
        state = "lost" if live is None else "readonly" if live.is_readonly else "writable"
        rows.append(
            {
                "bookie_id": bookie,
                "state": state,
                "root_uri": known.root_uri if known else None,
                "incarnation": known.incarnation if known else None,
                "rack": live.rack if live else None,
                "ledgers": ledgers[bookie],
                "fragments": fragments[bookie],
                "free_bytes": live.free_bytes if live else None,
                "total_bytes": live.total_bytes if live else None,
                "readonly_reason": live.readonly_reason if live and live.is_readonly else None,
                "limbo_ledgers": limbo[bookie],
            }
        )
    return pa.Table.from_pylist(rows, schema=BOOKIES)


def replicas_table(context: ClientContext, ledger_id: LedgerId) -> pa.Table:
    """One row for each entry and bookie of its write set (``REPLICAS``), digests verified.

    When no bookie of the last fragment says how far an open ledger goes, the first entry there
    stands for all of them.
    """
    ledger, found = context.ledger(ledger_id)
    rows: list[dict[str, Any]] = []
    for fragment in found.value.fragment_ranges():
        stop = fragment.last_entry_id
        if stop is None:
            try:
                stop = read_last_add_confirmed(context, ledger)
            except EntryUnreadableError:
                stop = fragment.first_entry_id
        for position, bookie in enumerate(fragment.ensemble):
            runs = entries_at(found.value.quorum, position, fragment.first_entry_id, stop)
            entries = [EntryId(e) for run in runs for e in run]
            rows += _replica_rows(context, ledger, bookie, position, entries)
    rows.sort(key=lambda row: (row["entry_id"], row["position"]))
    return pa.Table.from_pylist(rows, schema=REPLICAS)


def _unreadable_row(ledger_id: LedgerId) -> dict[str, Any]:
    sizes = ("ensemble_size", "write_quorum_size", "ack_quorum_size", "fragments")
    return {
        "ledger_id": ledger_id,
        "state": UNREADABLE,
        **dict.fromkeys((*sizes, "format_version"), 0),
        **dict.fromkeys(("bookies", "custom_metadata"), ()),
    }


def _ledger_row(
    ledger_id: LedgerId, m: LedgerMetadata, state: str | None, newest: Newest
) -> dict[str, Any]:
    writer = writer_of(m)
    return {
        "ledger_id": ledger_id,
        "state": m.state.name,
        "ensemble_size": m.quorum.ensemble_size,
        "write_quorum_size": m.quorum.write_quorum_size,
        "ack_quorum_size": m.quorum.ack_quorum_size,
        "fragments": len(m.fragments),
        "last_entry_id": m.last_entry_id,
        "length_bytes": m.length_bytes,
        "digest_type": m.digest_type.name if m.digest_type else None,
        "format_version": m.format_version,
        "ctime": moment(m.ctime_ms),
        "bookies": sorted(m.bookies()),
        "custom_metadata": sorted(m.custom_metadata.items()),
        "writer": None if writer is None else str(writer),
        "writer_state": state,
        "last_add_confirmed": newest.last_add_confirmed,
        "newest_entry_at": moment(newest.stored_at_ms),
    }


def moment(milliseconds: int | None) -> datetime | None:
    """Milliseconds since 1970 as a moment; ``None`` for what no calendar has."""
    if milliseconds is None:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def fragment_rows(ledger_id: int, metadata: LedgerMetadata, alive: Any) -> Iterator[dict[str, Any]]:
    """Rows of ``FRAGMENTS``; ``alive``: where copies of it are now (``live_members``)."""
    for fragment in metadata.fragment_ranges():
        yield {
            "ledger_id": ledger_id,
            "first_entry_id": fragment.first_entry_id,
            "last_entry_id": fragment.last_entry_id,
            "ensemble": list(fragment.ensemble),
            "is_last": fragment.is_last,
            "missing_bookies": [b for b in fragment.ensemble if b not in alive],
        }


def slot_rows(context: ClientContext, ledger: Ledger, bookie: BookieId) -> Iterator[dict[str, Any]]:
    """Rows of ``SLOTS``: of one bookie, none where it cannot be reached."""
    try:
        for slot in context.bookies.replica(bookie, ledger).slots():
            yield {
                "ledger_id": ledger.ledger_id,
                "bookie_id": bookie,
                "slot": slot.slot,
                "kind": slot.kind,
                "first_entry_id": slot.first,
                "last_entry_id": slot.last,
                "last_add_confirmed": slot.last_add_confirmed,
                "parts": slot.parts,
                "bytes": slot.size_bytes,
                "writer": slot.writer,
            }
    except BookieError:
        return  # bookies() says which ones cannot be reached


def _replica_rows(
    context: ClientContext,
    ledger: Ledger,
    bookie: BookieId,
    position: int,
    entries: list[EntryId],
) -> Iterator[dict[str, Any]]:
    if not entries:
        return
    verdict = Verdict({}, {})
    cannot_be_asked: str | None = None
    try:
        replica = context.bookies.replica(bookie, ledger)
        purpose = f"verifying entries of ledger {ledger.ledger_id}"
        verdict = context.bookies.ask(replica, purpose, lambda: replica.verify(entries))
    except BookieError as error:
        cannot_be_asked = error.message
    for entry_id in entries:
        good, refusal = verdict.good.get(entry_id), verdict.refused.get(entry_id)
        reason = cannot_be_asked if refusal is None else refusal.reason
        yield {
            "ledger_id": ledger.ledger_id,
            "entry_id": entry_id,
            "bookie_id": bookie,
            "position": position,
            "status": "verified" if reason is None else "unreadable",
            "digest": good.digest.hex() if good is not None else None,
            "bytes": good.size_bytes if good is not None else None,
            "reason": reason,
        }
