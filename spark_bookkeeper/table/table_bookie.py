"""A Delta table as a read-only bookie, which replaces copies of a released ledger.

It answers as a bookie that holds every entry. Rows come from the table's files. The other facts
about an entry (its length in the ledger, its digest, the time it was appended), and the digest that
verifies its rows, come from the list below the table.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
from typing_extensions import override

from spark_bookkeeper.bookie.bookie import (
    Bookie,
    Compacted,
    Compaction,
    Delivered,
    EntriesRef,
    EntryDetails,
    EntryView,
    LedgerRef,
    NewCopies,
    NewestRecord,
    NewRecord,
    PartPlace,
    PartSink,
    RangeRef,
    Rows,
    SlotView,
    Span,
    Swept,
    Verification,
    too_large_for_batch,
)
from spark_bookkeeper.bookie.encoding import LedgerEncoding
from spark_bookkeeper.bookie.entry import PartRef, PlacedPart, StoredEntry
from spark_bookkeeper.bookie.holdings import Holdings, LedgerTail
from spark_bookkeeper.bookie.ledger_key import LedgerKey
from spark_bookkeeper.bookie.messages import Int64Array, encode_batches, int64s
from spark_bookkeeper.bookie.verdict import Refusal, RefusalKind, Verdict, Verified
from spark_bookkeeper.errors import (
    BookieReadOnlyError,
    BookieUnavailableError,
    BookKeeperError,
    CorruptEntryError,
)
from spark_bookkeeper.protocol.quorum import Share
from spark_bookkeeper.runtime.answer import Answer
from spark_bookkeeper.table.folder import Folder
from spark_bookkeeper.table.listing import Listed, Listing, digest_of, listing_path, patched
from spark_bookkeeper.table.rows import CannotRebuildError, LedgerRows, TableRows, batches_of
from spark_bookkeeper.table.values import values_digest

_LISTS_KEPT: Final = 16
"""Number of ledgers whose lists are kept in memory."""

A = TypeVar("A")
T = TypeVar("T")


class TableBookie(Bookie):
    """One session with a table. Any thread may call.

    Args:
        folder: the table.
        bookie_id: its name in ledgers' metadata.
    """

    def __init__(self, folder: Folder, bookie_id: str) -> None:
        self._folder = folder
        self._bookie_id = bookie_id
        self.rows = TableRows(folder, bookie_id)
        """Reads the table's rows, also for code that makes the list of a ledger."""
        self._lists: OrderedDict[str, Listing] = OrderedDict()

    def __repr__(self) -> str:
        return f"TableBookie({self._folder.uri!r})"

    @property
    @override
    def bookie_id(self) -> str:
        return self._bookie_id

    @override
    def session(self) -> TableBookie:
        return self  # nothing that it caches can change

    @override
    def answer(self) -> None:
        self.rows.files_of(-1)

    # The list

    def put_listing(self, key: LedgerKey, data: bytes) -> str:
        """Store the list of a ledger below the table, durably; return its digest."""
        digest = digest_of(data)
        path = listing_path(key, digest)
        top, directory = path.split("/")[0], path.rpartition("/")[0]
        self._folder.make_directory(top)
        self._folder.make_directory(directory)
        # The name is the content's digest: an existing file is the same, or was damaged.
        if not self._folder.put_if_absent(path, data) and self._folder.read(path) != data:
            raise BookieUnavailableError(
                f"{self._folder.uri}/{path} is there and is not as its name says; move it away, "
                "and repeat",
                bookie_id=self._bookie_id,
            )
        return digest

    def listing(self, ledger: LedgerRef, *, is_fresh: bool = False) -> Listing:
        """Return the list whose digest is in the ledger's metadata.

        Args:
            is_fresh: read it again even if it is cached.

        Raises:
            BookieUnavailableError: it does not exist, or is damaged.
        """
        digest = ledger.incarnation
        found = self._lists.get(digest)
        if found is not None and not is_fresh:
            return found
        path = listing_path(ledger.key, digest)
        data = self._folder.read(path)
        if data is None:
            self.answer()  # raises that error if the table itself does not exist
            raise BookieUnavailableError(
                f"the table at {self._folder.uri} has no {path} any more: without it nothing "
                f"proves which of its rows are ledger {ledger.key.ledger_id}'s. Put the file back, "
                "from a backup or from where the table was moved from",
                bookie_id=self._bookie_id,
            )
        try:
            if digest_of(data) != digest:
                raise ValueError("its bytes are not those that its name says")
            found = Listing(data, ledger.key)
        except (ValueError, KeyError) as error:
            raise BookieUnavailableError(
                f"{self._folder.uri}/{path} is damaged ({error}); put it back from a backup",
                bookie_id=self._bookie_id,
            ) from error
        self._lists[digest] = found
        while len(self._lists) > _LISTS_KEPT:
            self._lists.popitem(last=False)
        return found

    # For readers

    @override
    def read(
        self, ledger: LedgerRef, entry_ids: Sequence[int], known: Holdings | None = None
    ) -> Delivered[StoredEntry]:
        return self._delivered(ledger, *self._rebuilt(ledger, entry_ids))

    def read_exactly(self, ledger: LedgerRef, entry_ids: Sequence[int]) -> Delivered[StoredEntry]:
        """Read entries as ``read`` does, but only from the files in the list, for a proof of it.

        Raises:
            MissingFileError: one of the files is missing.
            BookieUnavailableError: the table or the list cannot be read.
        """
        return self._delivered(ledger, *self._rebuilt(ledger, entry_ids, is_exact=True))

    def read_many(
        self, ledgers: Sequence[LedgerRef], *, is_exact: bool = False
    ) -> Sequence[tuple[Listing, Delivered[StoredEntry]]]:
        """Return all entries of small ledgers as ``read`` does, each with the list that was used.
        No file of the table is read twice.

        Args:
            is_exact: read as ``read_exactly`` does.

        Raises:
            BookieUnavailableError: it fails for one of them.
        """
        lists = [self.listing(ledger, is_fresh=True) for ledger in ledgers]
        wanted = [
            LedgerRows(ledger.key.ledger_id, ledger.encoding.schema, listing.files)
            for ledger, listing in zip(ledgers, lists, strict=True)
        ]
        return [
            (listing, self._delivered(ledger, *self._matched(ledger, listing, entries, rows)))
            for ledger, listing, rows in zip(
                ledgers, lists, self.rows.read_many(wanted, is_exact=is_exact), strict=True
            )
            for entries in [range(listing.count)]
        ]

    def _delivered(
        self,
        ledger: LedgerRef,
        rebuilt: Sequence[tuple[Listed, pa.RecordBatch]],
        refused: Mapping[int, Refusal],
    ) -> Delivered[StoredEntry]:
        found = [_stored(listed, batch, ledger.encoding) for listed, batch in rebuilt]
        return Delivered(found, _reasons(refused))

    @override
    def scan(
        self,
        ledger: LedgerRef,
        entry_ids: Sequence[int],
        known: Holdings | None = None,
        columns: Sequence[str] | None = None,
        *,
        has_details: bool = False,
    ) -> Delivered[Rows]:
        rebuilt, refused = self._rebuilt(ledger, entry_ids)
        found = []
        for listed, batch in rebuilt:
            count = batch.num_rows
            details = EntryDetails(self._bookie_id, listed.last_add_confirmed, listed.digest)
            rows = Rows(
                batch if columns is None else batch.select(list(columns)),
                np.full(count, listed.entry_id, dtype=np.int64),
                np.arange(count, dtype=np.int64),
                (listed.entry_id,),
                listed.size,
                (details,) if has_details else (),
            )
            found.append(rows)
        return Delivered(found, _reasons(refused))

    @override
    def split(self, wanted: RangeRef) -> Sequence[Span]:
        return []

    def _rebuilt(
        self,
        ledger: LedgerRef,
        entry_ids: Sequence[int],
        *,
        is_fresh: bool = False,
        is_exact: bool = False,
    ) -> tuple[list[tuple[Listed, pa.RecordBatch]], dict[int, Refusal]]:
        """Return the verified rows of entries, and why other entries cannot be used."""
        listing = self.listing(ledger, is_fresh=is_fresh)
        schema = ledger.encoding.schema
        first, last = entry_ids[0], entry_ids[-1]
        rows = self.rows.read(
            ledger.key.ledger_id, schema, listing.files, first, last, is_exact=is_exact
        )
        return self._matched(ledger, listing, entry_ids, rows)

    def _matched(
        self, ledger: LedgerRef, listing: Listing, entry_ids: Sequence[int], rows: pa.Table
    ) -> tuple[list[tuple[Listed, pa.RecordBatch]], dict[int, Refusal]]:
        """Verify rows of entries with the list; return them, and why others cannot be used."""
        schema = ledger.encoding.schema
        found: list[tuple[Listed, pa.RecordBatch]] = []
        refused: dict[int, Refusal] = {}
        try:
            batches = list(batches_of(rows, schema, entry_ids))
        except CannotRebuildError as error:
            refusal = self._changed(str(error))
            return [], dict.fromkeys(entry_ids, refusal)
        for entry_id, batch in batches:
            listed = listing.entry(entry_id)
            if listed is None:
                refused[entry_id] = Refusal(RefusalKind.ABSENT, "does not hold it")
            elif listed.rows != batch.num_rows:
                refused[entry_id] = self._changed(
                    f"it has {batch.num_rows} rows of the entry, which has {listed.rows}"
                )
            elif values_digest(batch) != listed.values:
                refused[entry_id] = self._changed("its rows are not those of the entry")
            else:
                found.append((listed, batch))
        return found, refused

    def _changed(self, how: str) -> Refusal:
        return Refusal(
            RefusalKind.DAMAGED, f"the table at {self._folder.uri} was changed since: {how}"
        )

    # For recovery and copies

    @override
    def fence(self, ledgers: Sequence[LedgerRef]) -> Sequence[Answer[LedgerTail]]:
        return self.tail(ledgers)  # a released ledger is closed, and a table accepts no writes

    @override
    def tail(self, ledgers: Sequence[LedgerRef]) -> Sequence[Answer[LedgerTail]]:
        return _each(ledgers, self._tail)

    def _tail(self, ledger: LedgerRef) -> LedgerTail:
        listing = self.listing(ledger)
        last = listing.entry(listing.count - 1)
        confirmed = -1 if last is None else last.last_add_confirmed
        return LedgerTail(True, confirmed, self._holdings(RangeRef(ledger, confirmed + 1)))

    @override
    def newest(self, ledgers: Sequence[LedgerRef]) -> Sequence[Answer[NewestRecord]]:
        return _each(
            ledgers, lambda ledger: NewestRecord(self._tail(ledger).last_add_confirmed, None)
        )

    @override
    def holdings(self, ranges: Sequence[RangeRef]) -> Sequence[Answer[Holdings]]:
        return _each(ranges, self._holdings)

    def _holdings(self, wanted: RangeRef) -> Holdings:
        listing = self.listing(wanted.ledger)
        last = listing.count - 1 if wanted.last is None else wanted.last
        told = listing.table(wanted.first, last)
        ids = _int64s(told["entry_id"])
        times = told["appended_at_ms"].fill_null(-1)
        return Holdings(
            first=wanted.first,
            last=last,
            entry_ids=ids,
            sizes=_int64s(told["size"]),
            lengths_after=_int64s(told["length_after"]),
            messages=ids,
            appended_at_ms=_int64s(times),
            doubts=(),
            parts=(),
        )

    @override
    def verify(self, wanted: Sequence[Verification]) -> Sequence[Answer[Verdict]]:
        return _each(wanted, self._verify)

    def _verify(self, wanted: Verification) -> Verdict:
        found, refused = self._rebuilt(wanted.ledger, wanted.entry_ids, is_fresh=True)
        good = {listed.entry_id: Verified(listed.size, listed.digest) for listed, _ in found}
        return Verdict(good, refused)

    @override
    def entries(self, wanted: RangeRef) -> Sequence[EntryView]:
        listing = self.listing(wanted.ledger)
        last = listing.count - 1 if wanted.last is None else wanted.last
        told = listing.table(wanted.first, last).to_pylist()
        return [
            EntryView(
                each["entry_id"],
                each["size"],
                each["last_add_confirmed"],
                each["digest"],
                each["rows"],
            )
            for each in told
        ]

    # What it does not do

    @override
    def prepare(self, ledger: LedgerRef) -> None:
        raise self._takes_nothing(ledger.key)

    @override
    def add(self, ledger: LedgerRef, record: NewRecord) -> None:
        raise self._takes_nothing(ledger.key)

    @override
    def begin_part(self, ledger: LedgerRef, name: str) -> PartSink:
        raise self._takes_nothing(ledger.key)

    @override
    def check(self, ledger: LedgerRef) -> None:
        raise self._takes_nothing(ledger.key)

    @override
    def lacking(self, wanted: Sequence[EntriesRef]) -> Sequence[Answer[Sequence[int]]]:
        return [self._takes_nothing(each.ledger.key) for each in wanted]

    @override
    def read_small(
        self, wanted: Sequence[EntriesRef], most_bytes: int
    ) -> Sequence[Answer[Sequence[StoredEntry]]]:
        def read(each: EntriesRef) -> Sequence[StoredEntry]:
            held = self._holdings(RangeRef(each.ledger, each.entry_ids[0], each.entry_ids[-1]))
            if held.pieces(each.entry_ids)[1].sum() > most_bytes:
                raise too_large_for_batch(self._bookie_id)
            return self.read(each.ledger, each.entry_ids).found

        return _each(wanted, read)

    @override
    def write_copies(self, copies: Sequence[NewCopies]) -> Sequence[Answer[None]]:
        return [self._takes_nothing(each.ledger.key) for each in copies]

    @override
    def find_part(self, ledger: LedgerRef, part: PartRef, *, is_copy: bool = True) -> PartPlace:
        raise self._takes_nothing(ledger.key)

    @override
    def read_part(self, ledger: LedgerRef, part: PartRef, offset: int) -> bytes | pa.Buffer:
        raise CorruptEntryError(
            f"the table at {self._folder.uri} has no part {part.name}", bookie_id=self._bookie_id
        )

    @override
    def check_part(self, ledger: LedgerRef, part: PlacedPart) -> bool:
        return False

    @override
    def slots(self, ledger: LedgerRef) -> Sequence[SlotView]:
        return []

    @override
    def ledgers(self) -> Sequence[LedgerKey]:
        return []  # a table does not know which ledgers use it

    @override
    def sizes_of(self, key: LedgerKey) -> Sequence[int]:
        return []

    @override
    def files_of(self, key: LedgerKey) -> int:
        return 0

    @override
    def retire(self, key: LedgerKey) -> None:
        """Do nothing: rows of a deleted ledger stay in the table."""

    @override
    def delete(self, key: LedgerKey) -> None:
        """Do nothing, see ``retire``."""

    @override
    def clear(self, ledger: LedgerRef) -> None:
        """Do nothing, see ``retire``."""

    @override
    def compact(self, wanted: Compaction) -> Compacted:
        """Do nothing: its files belong to the table."""
        return Compacted()

    @override
    def sweep(
        self, ledger: LedgerRef, before_ms: int, shares: Sequence[Share], *, dry_run: bool = False
    ) -> Swept:
        """Do nothing: its files belong to the table."""
        return Swept()

    @override
    def close(self) -> None:
        self._folder.close()

    def _takes_nothing(self, key: LedgerKey) -> BookieReadOnlyError:
        return BookieReadOnlyError(
            f"the table at {self._folder.uri} takes nothing of ledger {key.ledger_id}: it stands "
            "for copies that were released to it. If its rows are damaged, restore the table to a "
            "version that has them",
            bookie_id=self._bookie_id,
        )


def rebuilt_bytes(batch: pa.RecordBatch, encoding: LedgerEncoding, *, is_payload: bool) -> bytes:
    """Return the bytes that this version of Arrow makes of an entry's rows."""
    if is_payload:
        return bytes(batch.column(0)[0].as_py())
    return bytes(memoryview(encode_batches(encoding, [batch])[0]))


def _stored(listed: Listed, batch: pa.RecordBatch, encoding: LedgerEncoding) -> StoredEntry:
    made = rebuilt_bytes(batch, encoding, is_payload=listed.is_payload)
    data = patched(made, listed.patch)
    digester = encoding.digester()
    if data is None or len(data) != listed.size or digester.digest(data) != listed.digest:
        # Another version of Arrow encodes the same rows differently. The rows were verified.
        data = made
    return StoredEntry(
        listed.entry_id,
        listed.length_after,
        listed.last_add_confirmed,
        digester.digest(data),
        listed.is_payload,
        data,
        encoding.schema,
        appended_at_ms=listed.appended_at_ms,
    )


def _reasons(refused: Mapping[int, Refusal]) -> dict[int, str]:
    return {entry_id: refusal.reason for entry_id, refusal in refused.items()}


def _int64s(column: pa.ChunkedArray) -> Int64Array:
    return int64s(column.to_pylist())


def _each(wanted: Sequence[A], answer: Callable[[A], T]) -> list[Answer[T]]:
    answers: list[Answer[T]] = []
    for one in wanted:
        try:
            answers.append(answer(one))
        except BookKeeperError as error:
            answers.append(error)
    return answers
