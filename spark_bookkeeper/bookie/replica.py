"""One ledger on one bookie, for a caller that works on that ledger alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from spark_bookkeeper.bookie.bookie import (
    Bookie,
    Delivered,
    EntryView,
    LedgerRef,
    NewCopies,
    NewestRecord,
    NewRecord,
    PartSink,
    RangeRef,
    Rows,
    SlotView,
    Span,
    Verification,
)
from spark_bookkeeper.bookie.digest import crc
from spark_bookkeeper.bookie.entry import PartRef, PlacedPart, StoredEntry
from spark_bookkeeper.bookie.holdings import Holdings, LedgerTail
from spark_bookkeeper.bookie.verdict import Verdict
from spark_bookkeeper.errors import BookieUnavailableError, CorruptEntryError
from spark_bookkeeper.runtime.answer import value_of


@dataclass(frozen=True, slots=True)
class Replica:
    """The calls of ``Bookie`` for one ledger. Each returns its result, or raises its error."""

    bookie: Bookie
    ledger: LedgerRef

    @property
    def bookie_id(self) -> str:
        """The bookie's id."""
        return self.bookie.bookie_id

    def prepare(self) -> None:
        self.bookie.prepare(self.ledger)

    def check(self) -> None:
        self.bookie.check(self.ledger)

    def add(self, record: NewRecord) -> None:
        self.bookie.add(self.ledger, record)

    def ending(self) -> Replica:
        """Return the same replica for a caller that ends the ledger (see ``may_take_last``)."""
        return replace(self, ledger=replace(self.ledger, may_take_last=True))

    def begin_part(self, name: str) -> PartSink:
        return self.bookie.begin_part(self.ledger, name)

    def fence(self) -> LedgerTail:
        return value_of(self.bookie.fence([self.ledger])[0])

    def tail(self) -> LedgerTail:
        return value_of(self.bookie.tail([self.ledger])[0])

    def newest(self) -> NewestRecord:
        return value_of(self.bookie.newest([self.ledger])[0])

    def holdings(self, first: int, last: int | None = None) -> Holdings:
        return value_of(self.bookie.holdings([RangeRef(self.ledger, first, last)])[0])

    def verify(
        self, entry_ids: Sequence[int], known: Holdings | None = None, *, with_files: bool = False
    ) -> Verdict:
        wanted = Verification(self.ledger, entry_ids, known, with_files)
        return value_of(self.bookie.verify([wanted])[0])

    def write_copies(
        self, entries: Sequence[StoredEntry] = (), parts: Sequence[PlacedPart] = ()
    ) -> None:
        """Store copies. The caller checks that a look-up finds them, when all are stored."""
        copies = NewCopies(self.ledger, entries, parts, is_all=False)
        value_of(self.bookie.write_copies([copies])[0])

    def copy_part(
        self,
        source: Replica,
        part: PartRef,
        progress: Callable[[int], None] = lambda _: None,
        *,
        is_copy: bool = True,
    ) -> PartRef:
        """Copy a part to this bookie from another, piece by piece.

        Args:
            progress: called after every piece, with the number of its bytes.
            is_copy: see ``Bookie.find_part``.

        Returns:
            The part with its name here.

        Raises:
            CorruptEntryError: the source's bytes do not match the checksum; nothing is left here.
            BookieUnavailableError: no answer from one of the bookies.
            BookieReadOnlyError: see ``Bookie.begin_part``.
        """
        place = self.bookie.find_part(self.ledger, part, is_copy=is_copy)
        copied = replace(part, name=place.name)
        if place.is_there:
            return copied
        sink = self.bookie.begin_part(self.ledger, place.name)
        checksum = offset = 0
        try:
            while offset < max(part.size_bytes, 1):
                data = source.bookie.read_part(source.ledger, part, offset)
                if not len(data):
                    break
                sink.write(data)
                checksum = crc(data, checksum)
                offset += len(data)
                progress(len(data))
            if checksum != part.crc32c:
                raise CorruptEntryError(
                    f"bookie {source.bookie_id}: part {part.name} of ledger {self.ledger.key} does "
                    "not match its checksum; copy it from another replica",
                    bookie_id=source.bookie_id,
                    path=part.name,
                )
            try:
                sink.finish()
            except BookieUnavailableError:
                # Another process copied the same part meanwhile, or an answer was lost: look again.
                found = self.bookie.find_part(self.ledger, part, is_copy=is_copy)
                if not found.is_there or found.name != place.name:
                    raise
        finally:
            sink.abandon()
        return copied

    def check_part(self, part: PlacedPart) -> bool:
        return self.bookie.check_part(self.ledger, part)

    def read(
        self, entry_ids: Sequence[int], known: Holdings | None = None
    ) -> Delivered[StoredEntry]:
        return self.bookie.read(self.ledger, entry_ids, known)

    def scan(
        self,
        entry_ids: Sequence[int],
        known: Holdings | None = None,
        columns: Sequence[str] | None = None,
        *,
        has_details: bool = False,
    ) -> Delivered[Rows]:
        return self.bookie.scan(self.ledger, entry_ids, known, columns, has_details=has_details)

    def split(self, first: int, last: int) -> Sequence[Span]:
        return self.bookie.split(RangeRef(self.ledger, first, last))

    def entries(self, first: int, last: int) -> Sequence[EntryView]:
        return self.bookie.entries(RangeRef(self.ledger, first, last))

    def slots(self) -> Sequence[SlotView]:
        return self.bookie.slots(self.ledger)
