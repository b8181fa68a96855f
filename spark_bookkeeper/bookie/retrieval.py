"""Read and verify entries on one bookie, or report why one cannot be read.

An entry may have several locations on a bookie (a slot and a copy); one good location is enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final

import numpy as np

from spark_bookkeeper.bookie.bookie import Delivered, Rows
from spark_bookkeeper.bookie.entry import StoredEntry
from spark_bookkeeper.bookie.index import EntryIndex
from spark_bookkeeper.bookie.location import Location
from spark_bookkeeper.bookie.log import LedgerLog
from spark_bookkeeper.bookie.reading import Message, Refused, Wanted
from spark_bookkeeper.bookie.verdict import Refusal, RefusalKind, Verdict, Verified
from spark_bookkeeper.errors import BookieError, BookKeeperError, CorruptEntryError

LOOKS: Final = 3
"""How often locations are looked up again when their files are gone."""


class Retrieval:
    """Entries of one ledger on one bookie, read from the locations in an index.

    Args:
        log: to read from.
        entries: their ids, ascending.
        index: their locations on this bookie, or on another whose slots often hold the same.
        looks: how often to look up again the locations of entries whose files are gone; with 0
            only those of the index are tried.
    """

    def __init__(
        self, log: LedgerLog, entries: Sequence[int], index: EntryIndex, looks: int = LOOKS
    ) -> None:
        self.log = log
        """The log that it reads."""
        self._entries = entries
        self._index = index
        self._looks = looks
        self._absent: dict[int, Refusal] = {}
        """Entries without a location."""
        self._bad: dict[int, list[Refused]] = {}
        """Entries that no location delivered so far: the locations that were tried, each with its
        error."""

    def read(self, read: Mapping[str, bytes] | None = None) -> Delivered[StoredEntry]:
        """Yield whole entries.

        Args:
            read: small files that the look-up of locations has read whole, by their paths.
        """
        schema = self.log.encoding.schema
        messages = self._messages(Wanted.ENTRIES, read=read)
        found = [entry for message in messages for entry in message.entries(schema)]
        return Delivered(found, self._reasons())

    def scan(
        self, columns: Sequence[str] | None = None, *, has_details: bool = False
    ) -> Delivered[Rows]:
        """Yield their rows, one message at a time."""
        bookie_id = self.log.bookie_id if has_details else None
        found = [message.rows(bookie_id) for message in self._messages(Wanted.ROWS, columns)]
        return Delivered(found, self._reasons())

    def verify(self, *, with_files: bool = False) -> Verdict:
        """Compare the entries with their digests, and make the good ones durable, since they were
        only found so far (SLOT-LOG rule R9b).
        """
        good = self.compare()
        try:
            self.log.storage.sync(*self.relied_on(good))
        except BookieError as error:
            unknown = Refusal(RefusalKind.UNREADABLE, error.message)
            return Verdict({}, dict.fromkeys(self._entries, unknown))
        return self.verdict(good, with_files=with_files)

    def compare(self, read: Mapping[str, bytes] | None = None) -> dict[int, Location]:
        """Return the entries that match their digests, each with its location.

        Args:
            read: small files that the fence of this session has read whole, by their paths.
        """
        good: dict[int, Location] = {}
        for message in self._messages(Wanted.NOTHING, read=read):
            good.update((place.entry_id, place) for place in message.places)
        return good

    def verdict(self, good: Mapping[int, Location], *, with_files: bool = False) -> Verdict:
        """Return the verdict on compared entries; their files were made durable before."""
        refused = self._absent | {
            entry_id: Refusal(self._kind(bad), bad[-1][1].message)
            for entry_id, bad in self._bad.items()
        }
        return Verdict(
            {e: Verified(place.size, place.digest) for e, place in good.items()},
            refused,
            self._in_spoilt_files(good) if with_files else {},
        )

    def _messages(
        self,
        wanted: Wanted,
        columns: Sequence[str] | None = None,
        read: Mapping[str, bytes] | None = None,
    ) -> Iterator[Message]:
        """Yield the messages of all readable entries, each entry from its first good location."""
        places = self._first_places()
        turn, looks = 0, self._looks
        while places:
            bad: list[int] = []
            for message in self.log.reader.messages(places, wanted, columns, read or {}):
                for place, error in message.refused:
                    self._bad.setdefault(place.entry_id, []).append((place, error))
                    bad.append(place.entry_id)
                if message.places:
                    if self._bad:
                        for place in message.places:
                            self._bad.pop(place.entry_id, None)
                    yield message
            turn += 1
            places = _other_places(self._index, bad, turn)
            if not places and looks and (gone := self._gone()):
                turn, looks = 0, looks - 1
                places = self._places_now(gone)

    def _gone(self) -> list[int]:
        """Return the entries whose files are all gone: compaction moved them after the look-up."""
        found = [e for e, bad in self._bad.items() if all(_is_gone(error) for _, error in bad)]
        return sorted(found)

    def _places_now(self, entry_ids: Sequence[int]) -> list[Location]:
        """Look up entries again; return nothing if all their files were tried already."""
        self.log.look_again()
        try:
            index = self.log.locate(entry_ids[0], entry_ids[-1])
        except BookKeeperError:
            return []
        before = {place.path for bad in self._bad.values() for place, _ in bad}
        found = [place for place in index.first_places(entry_ids) if place is not None]
        if all(place.path in before for place in found):
            return []
        self._index = index
        return in_file_order(found)

    def _first_places(self) -> list[Location]:
        places = []
        found = self._index.first_places(self._entries)
        for entry_id, place in zip(self._entries, found, strict=True):
            if place is not None:
                places.append(place)
                continue
            try:
                self._index.check_absent(entry_id)
            except BookKeeperError as error:
                self._absent[entry_id] = Refusal(RefusalKind.DAMAGED, error.message)
            else:
                self._absent[entry_id] = Refusal(RefusalKind.ABSENT, "does not hold it")
        return in_file_order(places)

    def _reasons(self) -> Mapping[int, str]:
        reasons = {entry_id: refusal.reason for entry_id, refusal in self._absent.items()}
        return reasons | {entry_id: bad[-1][1].message for entry_id, bad in self._bad.items()}

    def _kind(self, bad: Iterable[Refused]) -> RefusalKind:
        """Return "damaged" if every location is certainly bad or gone; else "unreadable"."""
        is_damaged = all(self._is_damaged(place, error) for place, error in bad)
        return RefusalKind.DAMAGED if is_damaged else RefusalKind.UNREADABLE

    def _is_damaged(self, place: Location, error: BookieError) -> bool:
        if isinstance(error, CorruptEntryError):
            return True
        try:
            return not self.log.storage.exists(place.path)
        except BookieError:
            return False

    def relied_on(self, good: Mapping[int, Location]) -> Sequence[str]:
        """Return the files that are needed to find the entries again."""
        paths = {place.path for place in good.values()}
        # The record that lists a part leads to it, and must be as durable as the part.
        paths |= {
            holding.path
            for holding in self._index.holdings
            if any(self.log.paths.part(p.ref.name) in paths for p in holding.record.parts)
        }
        return sorted(paths)

    def _in_spoilt_files(self, good: Mapping[int, Location]) -> dict[int, str]:
        """Return the good entries whose files are all damaged in other places, with the damage."""
        spoilt = self.log.spoilt_files(self._index)
        if not spoilt:
            return {}
        why: dict[int, str] = {}
        sound: set[int] = set()
        for holding in self._index.holdings:
            record = holding.record
            for place in record.locations(np.arange(len(record.ids)), self.log.paths, holding.path):
                entry_id = place.entry_id
                if entry_id not in good or entry_id in sound:
                    continue
                path = next((p for p in (holding.path, place.path) if p in spoilt), None)
                if path is not None:
                    why[entry_id] = f"{path}: {spoilt[path]}"
                elif place == good[entry_id] or self._is_good(place):
                    sound.add(entry_id)
        return {entry_id: reason for entry_id, reason in why.items() if entry_id not in sound}

    def _is_good(self, place: Location) -> bool:
        (message,) = self.log.reader.messages([place], Wanted.NOTHING)
        return not message.refused


def _is_gone(error: BookieError) -> bool:
    return bool(error.facts.get("is_gone"))


def _other_places(index: EntryIndex, bad: Iterable[int], turn: int) -> list[Location]:
    """Return the next locations of entries that were bad in the first ``turn`` of each.

    Locations count by number, not by value: two records may list one part, and then two locations
    are equal. An entry has finitely many, and each turn uses up one of them.
    """
    return in_file_order([place for e in bad for place in index.places(e)[turn : turn + 1]])


def in_file_order(places: list[Location]) -> list[Location]:
    """Return the locations in an order in which no message is read twice.

    The entries of two files may alternate, for example where a stripe was copied from two sources;
    and one slot has both a message of small entries and messages of batches.
    """
    places.sort(key=attrgetter("path", "offset", "row"))
    return places
