"""What one bookie really holds of some entries: each read and verified, or the reason why not.

An entry may lie in several places on a bookie (a slot and a copy); one good place is enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import numpy as np

from spark_bookkeeper.bookie.entry import Location, StoredEntry
from spark_bookkeeper.bookie.index import EntryIndex
from spark_bookkeeper.bookie.log import LedgerLog
from spark_bookkeeper.bookie.reading import ScannedRows
from spark_bookkeeper.errors import BookieError, BookKeeperError
from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.protocol.metadata import DigestType

Refusals = dict[EntryId, str]
"""Entries that could not be read, each with the reason."""


def locate(log: LedgerLog, entries: Sequence[EntryId]) -> EntryIndex:
    """Where a bookie has entries. Raises ``BookieError``: it cannot be asked at all."""
    return log.locate(entries[0], entries[-1])


def read_verified(
    log: LedgerLog, entries: Sequence[EntryId], index: EntryIndex | None = None
) -> tuple[dict[EntryId, StoredEntry], Refusals]:
    """Read entries from one bookie.

    Returns:
        those that were read and verified, and the reasons for the others.
    """
    found: dict[EntryId, StoredEntry] = {}
    refused: Refusals = {}
    try:
        known = index or locate(log, entries)
    except BookKeeperError as error:
        return found, dict.fromkeys(entries, error.message)
    places = _first_places(known, entries, refused)
    try:
        for stored in log.read_many(places):
            found[EntryId(stored.entry_id)] = stored
    except BookieError:
        for entry_id in entries:  # which of them is it? one by one, in every place
            if entry_id not in found and entry_id not in refused:
                _read_anywhere(log, known, entry_id, found, refused)
    return found, refused


def scan_verified(
    log: LedgerLog, entries: Sequence[EntryId], index: EntryIndex
) -> tuple[list[ScannedRows], Refusals]:
    """The same as ``read_verified``, as rows, a message at a time; not in any order."""
    refused: Refusals = {}
    places = _first_places(index, entries, refused)
    found: list[ScannedRows] = []
    try:
        found.extend(log.scan(places))
    except BookieError:
        got = {place.entry_id for rows in found for place in rows.locations}
        for entry_id in entries:  # which of them is it? one by one, in every place
            if entry_id in got or entry_id in refused:
                continue
            kept: dict[EntryId, StoredEntry] = {}
            place = _read_anywhere(log, index, entry_id, kept, refused)
            if place is not None:
                found.append(_as_rows(place, kept[entry_id]))
    return found, refused


def _as_rows(place: Location, stored: StoredEntry) -> ScannedRows:
    batch = stored.batch()
    return ScannedRows(
        batch,
        np.full(batch.num_rows, stored.entry_id, dtype=np.int64),
        np.arange(batch.num_rows, dtype=np.int64),
        (place,),
    )


def verify(
    log: LedgerLog, entries: Sequence[EntryId], index: EntryIndex | None = None
) -> tuple[dict[EntryId, Location], Refusals]:
    """The same without keeping the bytes: where each good entry is, and why others are not.

    Whatever counts is also made durable: it was merely found (SLOT-LOG rule R9b).
    """
    good: dict[EntryId, Location] = {}
    refused: Refusals = {}
    try:
        known = index or locate(log, entries)
    except BookKeeperError as error:
        return good, dict.fromkeys(entries, error.message)
    places = _first_places(known, entries, refused)
    by_id = {EntryId(place.entry_id): place for place in places}
    try:
        for rows in log.scan(places):
            good.update({EntryId(place.entry_id): place for place in rows.locations})
    except BookieError:
        for entry_id in by_id.keys() - good.keys():
            kept: dict[EntryId, StoredEntry] = {}
            place = _read_anywhere(log, known, entry_id, kept, refused)
            if place is not None:
                good[entry_id] = place
    paths = {place.path for place in good.values()}
    # A part is found through the record that lists it, which must be as durable as the part.
    paths |= {
        holding.path
        for holding in known.holdings
        if any(log.key.part(part.ref.name) in paths for part in holding.record.parts)
    }
    try:
        log.storage.sync(*sorted(paths))
    except BookieError as error:
        return {}, dict.fromkeys(entries, error.message)
    return good, refused


def crosswise(
    logs: Sequence[LedgerLog], entries: Sequence[EntryId]
) -> Iterator[tuple[LedgerLog, EntryIndex, list[EntryId]]]:
    """Every way to read what one bookie's records tell of from the files of another.

    The last resort, when on each bookie either the record of an entry is damaged or its bytes
    are: parts have one name everywhere, and slots often hold the same on every bookie. Whatever
    is read is verified with the digest of the good record; without digests there is no way.

    Yields:
        the bookie to read from, another's index, and the entries that the index knows.
    """
    indexes: list[tuple[LedgerLog, EntryIndex]] = []
    for log in logs:
        with suppress(BookKeeperError):
            indexes.append((log, locate(log, entries)))
    for teller, index in indexes:
        known = [entry_id for entry_id in entries if entry_id in index]
        for log in logs:
            if known and log is not teller and log.encoding.digest_type is not DigestType.DUMMY:
                yield log, index, known


def _first_places(
    index: EntryIndex, entries: Iterable[EntryId], refused: Refusals
) -> list[Location]:
    places = []
    wanted = list(entries)
    for entry_id, place in zip(wanted, index.first_places(wanted), strict=True):
        if place is not None:
            places.append(place)
            continue
        try:
            index.check_absent(entry_id)
        except BookKeeperError as error:
            refused[entry_id] = error.message
        else:
            refused[entry_id] = "does not hold it"
    return places


def _read_anywhere(
    log: LedgerLog,
    index: EntryIndex,
    entry_id: EntryId,
    found: dict[EntryId, StoredEntry],
    refused: Refusals,
) -> Location | None:
    for place in index.places(entry_id):
        try:
            found[entry_id] = log.read(place)
        except BookieError as error:
            refused[entry_id] = error.message
        else:
            refused.pop(entry_id, None)
            return place
    return None
