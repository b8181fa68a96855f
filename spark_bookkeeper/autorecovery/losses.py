"""The entries at risk without some bookies, computed before an operator takes the bookies away."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa

from spark_bookkeeper.autorecovery.publishing import LEDGERS_AT_ONCE, chunks
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.html import fields_table
from spark_bookkeeper.client.ledger import live_members, registered_incarnations
from spark_bookkeeper.errors import InvalidArgumentError, MetadataFormatError
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.underreplication import below_ack_quorum
from spark_bookkeeper.replication.report import counted, some_of
from spark_bookkeeper.runtime.spool import Spool

AT_RISK: Final = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("first_entry_id", pa.int64(), nullable=False),
        pa.field("last_entry_id", pa.int64()),
        pa.field("ack_quorum_size", pa.int32(), nullable=False),
        pa.field("live_copies", pa.int32(), nullable=False),
        pa.field("copies_without", pa.int32(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class AtRisk:
    """A fragment in which some entry would have fewer than Qa live copies."""

    ledger_id: LedgerId
    first_entry_id: EntryId
    last_entry_id: EntryId | None
    ack_quorum_size: int
    live_copies: int
    """Live copies now, of the entries that have the fewest."""
    copies_without: int
    """The same without the bookies. 0: there are entries that no client could read."""


@dataclass(frozen=True)
class Losses:
    """The effect of losing some bookies at once, according to the metadata."""

    bookies: tuple[BookieId, ...]
    at_risk: Sequence[AtRisk]
    """More than ``spool.IN_MEMORY`` of them are kept in a temporary file, not in memory."""
    unreadable: tuple[LedgerId, ...]
    """Ledgers whose metadata cannot be read; their risk is unknown."""

    @property
    def is_safe(self) -> bool:
        """Whether every entry of every ledger would certainly keep Qa live copies."""
        return not self.at_risk and not self.unreadable

    def __bool__(self) -> bool:
        return self.is_safe

    def __str__(self) -> str:
        parts = []
        if self.at_risk:
            count = len({each.ledger_id for each in self.at_risk})
            parts.append(
                f"not safe: {counted(count, 'ledger')} would have fewer than Qa live copies of "
                "something"
            )
        if self.unreadable:
            parts.append(
                f"of {counted(len(self.unreadable), 'ledger')} nobody can say, as their metadata "
                f"cannot be decoded: {some_of(self.unreadable)}"
            )
        safe = f"without {', '.join(self.bookies)} every entry keeps its Qa live copies"
        return "; ".join(parts) or safe

    def to_arrow(self) -> pa.Table:
        """Return the fragments at risk (``docs/tables.md``)."""
        tables = [
            pa.Table.from_pylist(rows, schema=AT_RISK)
            for rows in chunks(map(asdict, self.at_risk), LEDGERS_AT_ONCE)
        ]
        return pa.concat_tables([AT_RISK.empty_table(), *tables])

    def to_dict(self) -> dict[str, Any]:
        """Return a dict, for programs."""
        at_risk = [asdict(each) for each in self.at_risk]
        named = {"bookies": self.bookies, "at_risk": at_risk, "unreadable": self.unreadable}
        return {"is_safe": self.is_safe, **named}

    def _repr_html_(self) -> str:
        return fields_table({"without": ", ".join(self.bookies), "it is": str(self)})


def losses(context: ClientContext, bookies: Collection[BookieId]) -> Losses:
    """Return the ledgers with fewer than Qa live copies without these bookies; changes nothing.

    A registered bookie counts as live; ``check_ledgers`` shows whether it holds its entries.

    Raises:
        InvalidArgumentError: no bookie is named, or an unknown one.
    """
    named = tuple(dict.fromkeys(bookies))
    if not named:
        raise InvalidArgumentError("no bookie was named; bookies() shows those there are")
    registered = registered_incarnations(context.bookies.registrations())
    known = {cookie.value.bookie_id for cookie in context.store.cookies()} | registered.keys()
    unreadable: list[LedgerId] = []

    def at_risk() -> Iterator[AtRisk]:
        for ledger_id, found in context.store.read_ledgers(context.store.ledger_ids()):
            if isinstance(found, MetadataFormatError):
                unreadable.append(ledger_id)
            if not isinstance(found, Versioned):
                continue
            known.update(found.value.members())
            live = live_members(found.value, registered)
            for fragment, now, then in below_ack_quorum(found.value, live, named):
                first, last = fragment.first_entry_id, fragment.last_entry_id
                yield AtRisk(ledger_id, first, last, found.value.quorum.ack_quorum_size, now, then)

    found = Spool(at_risk())
    for bookie in named:
        if bookie not in known:
            raise InvalidArgumentError(
                f"bookie {bookie} is unknown: it has no registration, no cookie and no fragment "
                "names it. `spark-bookkeeper bookie list` shows the bookies"
            )
    kept = tuple(found) if found.is_in_memory else found
    return Losses(named, kept, tuple(unreadable))
