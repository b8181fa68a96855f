"""A loss that an operator accepted, so that a ledger could be closed without the lost entries.

A mark in the ledger's metadata says from then on which entries may be missing (decision 0056).
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import Any, Final

from spark_bookkeeper.protocol.ids import NO_ENTRY, BookieId, EntryId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.stored_json import decoded, number, text

ACCEPTED_LOSS: Final = "spark-bookkeeper.accepted-loss"
"""The key of custom metadata that holds an ``AcceptedLoss``."""

SHOWN: Final = 10
"""The most ranges in a text. In a striped DataFrame every fourth entry may be a range."""

EntrySpan = tuple[EntryId, "EntryId | None"]
"""The first and the last entry of a range; ``None``: its end is unknown."""


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """An accepted loss: who accepted it, the bookies that are gone, and finally the entries."""

    accepted_by: str
    accepted_at_ms: int
    gone: tuple[BookieId, ...]
    """Before the close, the bookies that the operator named as gone for good; after it, those with
    which entries were lost."""
    missing: tuple[EntrySpan, ...] = ()
    """Before the close, the entries that may be given up, as the operator saw them; after it, those
    that only gone bookies can have had. Ascending; only the last may have no end."""

    def __str__(self) -> str:
        lost = f"{spans_text(self.missing)} may be missing, lost with {', '.join(self.gone)}"
        return f"{lost}; accepted by {self.accepted_by}"

    def has_hole(self, entry_id: EntryId) -> bool:
        """Return whether the accepted loss includes an entry before the ledger's end."""
        last = self._end_from(entry_id)
        return last is not None and entry_id <= last

    def exceeded_by(self, given_up: Sequence[EntrySpan]) -> str | None:
        """Return a text for people if more is given up than was shown; otherwise ``None``."""
        for first, last in given_up:
            end = self._end_from(first)
            if end is not None and (last is None or last > end):
                shown = f"the loss that was accepted is of {spans_text(self.missing)}"
                return f"{spans_text(given_up)} may be missing now, and {shown}"
        return None

    def _end_from(self, entry_id: EntryId) -> EntryId | None:
        """Return the end of the last range that begins at or before an entry; ``None``: open."""
        at = bisect_right(self.missing, entry_id, key=itemgetter(0))  # there may be thousands
        return self.missing[at - 1][1] if at else NO_ENTRY

    def encode(self) -> bytes:
        """Return one JSON object, readable for people too."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()


def spans_text(spans: Sequence[EntrySpan]) -> str:
    """Return ranges of entries as text for people."""
    shown = [f"{first}..{'' if last is None else last}" for first, last in spans]
    if len(shown) > SHOWN:
        shown[SHOWN - 2 : -1] = [f"{len(shown) - SHOWN + 1:,} ranges more"]
    return f"entries {', '.join(shown)}" if shown else "no entry"


def accepted_loss_of(custom_metadata: Mapping[str, bytes]) -> AcceptedLoss | None:
    """Return a ledger's accepted loss, or ``None``. A damaged mark accepts any entry's loss."""
    if ACCEPTED_LOSS not in custom_metadata:
        return None
    try:
        return decoded(custom_metadata[ACCEPTED_LOSS], _accepted_loss)
    except ValueError:
        unknown = f"nobody knows whom: {ACCEPTED_LOSS} in its metadata cannot be decoded"
        return AcceptedLoss(unknown, 0, (), ((EntryId(0), None),))


def loss_text(metadata: LedgerMetadata) -> str | None:
    """Return the accepted loss of a ledger as text for people, or ``None``."""
    loss = accepted_loss_of(metadata.custom_metadata)
    return None if loss is None else str(loss)


def kept_entries(metadata: LedgerMetadata, first: EntryId, last: EntryId) -> Sequence[int]:
    """Return the entries ``first .. last`` of a closed ledger without its holes."""
    loss, every = accepted_loss_of(metadata.custom_metadata), range(first, last + 1)
    if loss is None or not loss.missing or loss.missing[0][1] is None:  # only the end is open
        return every
    return [entry_id for entry_id in every if not loss.has_hole(EntryId(entry_id))]


def _accepted_loss(values: Any) -> AcceptedLoss:
    missing = tuple(
        (EntryId(number(first)), None if last is None else EntryId(number(last)))
        for first, last in values["missing"]
    )
    gone = tuple(BookieId(text(bookie)) for bookie in values["gone"])
    at_ms = number(values["accepted_at_ms"])
    return AcceptedLoss(text(values["accepted_by"]), at_ms, gone, missing)


def not_gone(
    ensemble: Iterable[BookieId],
    replaced: Collection[BookieId],
    named: Collection[BookieId],
    answered: Collection[BookieId],
    registered: Collection[BookieId],
) -> dict[BookieId, str]:
    """Return the bookies of an ensemble of which nothing is given up, each with the reason.

    A bookie that was formatted again lost everything. A bookie that is away must be named; if it is
    registered, it may still answer. Naming one that answers gives up its unreadable entries.
    """
    kept: dict[BookieId, str] = {}
    for bookie in ensemble:
        if bookie not in (*replaced, *named):
            why = "it answers" if bookie in answered else "it may be away only"
            kept[bookie] = f"{why}. If what it had is gone for good, name it: --gone {bookie}"
        elif bookie not in (*replaced, *answered) and bookie in registered:
            kept[bookie] = "it is registered and may answer yet. Stop its agent for good before"
    return kept
