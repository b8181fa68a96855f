"""What one bookie really holds of some entries: each read and verified, or the reason why not.

An entry may lie in several places on a bookie (a slot and a copy); one good place is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, takewhile
from operator import attrgetter

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
    turn = 0
    while places:
        bad: Refusals = {}
        count = 0
        try:
            for stored in log.read_many(places):
                found[EntryId(stored.entry_id)] = stored
                count += 1
        except BookieError:
            for place, answer in log.read_each(places[count:]):
                entry_id = EntryId(place.entry_id)
                if isinstance(answer, BookieError):
                    bad[entry_id] = answer.message
                else:
                    found[entry_id] = answer
        refused |= bad
        turn += 1
        places = _other_places(known, bad, turn)
    return found, {entry_id: why for entry_id, why in refused.items() if entry_id not in found}


def scan_verified(
    log: LedgerLog,
    entries: Sequence[EntryId],
    index: EntryIndex,
    columns: Sequence[str] | None = None,
) -> tuple[list[ScannedRows], Refusals]:
    """The same as ``read_verified``, as rows, a message at a time; not in any order."""
    found: list[ScannedRows] = []
    return found, _scan(log, entries, index, found.append, columns)


def _scan(
    log: LedgerLog,
    entries: Sequence[EntryId],
    index: EntryIndex,
    keep: Callable[[ScannedRows], None],
    columns: Sequence[str] | None = None,
) -> Refusals:
    """Hands on the rows of all that is good; the reasons for the rest."""
    refused: Refusals = {}
    places = _first_places(index, entries, refused)
    turn = 0
    while places:
        bad = _scan_places(log, places, keep, columns)
        turn += 1
        places = _other_places(index, bad, turn)
        refused |= bad
        for place in places:
            refused.pop(EntryId(place.entry_id))
    return refused


def _scan_places(
    log: LedgerLog,
    places: Sequence[Location],
    keep: Callable[[ScannedRows], None],
    columns: Sequence[str] | None,
) -> Refusals:
    bad: Refusals = {}
    done = 0
    while done < len(places):
        try:
            for rows in log.scan(places[done:], columns):
                keep(rows)
                done += len(rows.locations)
        except BookieError:  # a message that is damaged: what is good in it, and on behind it
            group = _message_at(places, done)
            for place, answer in log.read_each(group):
                if isinstance(answer, BookieError):
                    bad[EntryId(place.entry_id)] = answer.message
                else:
                    keep(_as_rows(place, answer, columns, log.bookie_id))
            done += len(group)
    return bad


def _message_at(places: Sequence[Location], start: int) -> list[Location]:
    """The places from an index on that are in the same message."""
    path, offset = places[start].path, places[start].offset
    rest = islice(places, start, None)
    return list(takewhile(lambda place: (place.path, place.offset) == (path, offset), rest))


def _as_rows(
    place: Location, stored: StoredEntry, columns: Sequence[str] | None, bookie_id: str
) -> ScannedRows:
    batch = stored.batch()
    if columns is not None:
        batch = batch.select(columns)
    return ScannedRows(
        batch,
        np.full(batch.num_rows, stored.entry_id, dtype=np.int64),
        np.arange(batch.num_rows, dtype=np.int64),
        (place,),
        (bookie_id,),
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

    def keep(rows: ScannedRows) -> None:
        good.update({EntryId(place.entry_id): place for place in rows.locations})

    refused = _scan(log, entries, known, keep)
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


def in_spoilt_files(
    log: LedgerLog, index: EntryIndex, good: Mapping[EntryId, Location]
) -> Refusals:
    """Of good entries, those that are in no whole file, each with what is wrong with its file."""
    spoilt = log.spoilt_files(index)
    if not spoilt:
        return {}
    why: Refusals = {}
    sound: set[EntryId] = set()
    for holding in index.holdings:
        record = holding.record
        for place in record.locations(np.arange(len(record.ids)), log.key, holding.path):
            entry_id = EntryId(place.entry_id)
            if entry_id not in good or entry_id in sound:
                continue
            path = next((p for p in (holding.path, place.path) if p in spoilt), None)
            if path is not None:
                why[entry_id] = f"{path}: {spoilt[path]}"
            elif place == good[entry_id] or _is_good(log, place):
                sound.add(entry_id)
    return {entry_id: reason for entry_id, reason in why.items() if entry_id not in sound}


def _is_good(log: LedgerLog, place: Location) -> bool:
    try:
        log.read(place)
    except BookieError:
        return False
    return True


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
    return in_file_order(places)


def _other_places(index: EntryIndex, bad: Iterable[EntryId], turn: int) -> list[Location]:
    """Where else the bookie has entries that were bad in the first ``turn`` places of each.

    By number, never by value: two records may list one part, and then two places are equal. An
    entry has finitely many places, and each turn uses one of them up.
    """
    return in_file_order([place for e in bad for place in index.places(e)[turn : turn + 1]])


def in_file_order(places: list[Location]) -> list[Location]:
    """Sorted so that no message is read twice.

    Two files may have entries in turn, as where a stripe was copied from two sources, and one
    slot has the messages of small entries and of batches side by side.
    """
    places.sort(key=attrgetter("path", "offset", "row"))
    return places
