"""Whether a table stands for ledgers: a release and a backup count on it only after this proof.

1. Every entry is made again of the table's rows, and compared with what bookies have, byte for
   byte (``comparing.py``); how both differ, if at all, goes into the list of entries, which is put
   beside the table.
2. Every entry is read back by the list, as readers will (``reading_back.py``).

Many ledgers go through both together: each step is one job, whatever their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.delta.comparing import COMPARING, Compared, CompareWork, put_list
from spark_bookkeeper.delta.pieces import ranges_of
from spark_bookkeeper.delta.reading_back import READING_BACK, ReadBackWork
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.replication.job import Job
from spark_bookkeeper.replication.runner import ItemT, ResultT, Step
from spark_bookkeeper.table.opening import table_of
from spark_bookkeeper.table.snapshot import TableFiles

BATCH_ENTRIES: Final = 1 << 20
"""About so many entries are proven together: their lists are in memory, some 100 bytes for
each."""

BATCH_LEDGERS: Final = 1000
"""And so many ledgers, at the most."""

BATCH_BYTES: Final = 4 << 30
"""And about so many bytes: what is read again when all of it is killed before it counts."""


@dataclass(frozen=True, slots=True)
class Proven:
    """The table stands for a ledger."""

    index: str
    """The digest of its list."""
    version: int
    """Of the table."""
    length_bytes: int
    """Of the ledger, as its last entry says."""


@dataclass(frozen=True, slots=True)
class Unproven:
    """It does not, or nobody could find out."""

    reason: str
    is_certain: bool
    """That it does not, also when it is asked again."""


Judged: TypeAlias = Proven | Unproven


def batches_to_prove(ledgers: Iterable[Ledger]) -> Iterator[list[Ledger]]:
    """Closed ledgers that go through the steps together: neighbours, as many as are within the
    limits. One that exceeds a limit by itself goes alone.
    """
    batch: list[Ledger] = []
    entries = size = 0
    for each in ledgers:
        metadata = each.metadata
        assert metadata.last_entry_id is not None, "release-needs-an-end"
        entries += metadata.last_entry_id + 1
        size += metadata.length_bytes or 0
        is_full = len(batch) == BATCH_LEDGERS or entries > BATCH_ENTRIES or size > BATCH_BYTES
        if batch and is_full:
            yield batch
            batch, entries, size = [], metadata.last_entry_id + 1, metadata.length_bytes or 0
        batch.append(each)
    if batch:
        yield batch


class Proof:
    """Proves closed ledgers that have entries, together.

    Args:
        job: of whose steps these are two.
        table: URI of the Delta table.
        begin: told the number of each step, from 0 on.
    """

    def __init__(
        self,
        context: ClientContext,
        job: Job,
        table: str,
        begin: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._context = context
        self._job = job
        self._table = table
        self._begin = begin
        self._refused: dict[LedgerId, Unproven] = {}

    def of(self, ledgers: Sequence[Ledger]) -> Mapping[LedgerId, Judged]:
        """What is to be said of each; those of one batch (``batches_to_prove``).

        Raises:
            BookKeeperError: the table's log cannot be read. Nothing was asked of bookies.
        """
        self._refused = {}
        files = self._files(ledgers)
        self._begin(0)
        compared = self._compare([(ledger, files.get(ledger.ledger_id)) for ledger in ledgers])
        self._begin(1)
        self._read_back([x for x in ledgers if x.ledger_id in compared], compared)
        return {
            x.ledger_id: self._refused.get(x.ledger_id) or compared[x.ledger_id] for x in ledgers
        }

    def _refuse(self, ledger_id: LedgerId, reason: str, *, is_certain: bool = False) -> None:
        """It goes no further; what is said first holds."""
        self._refused.setdefault(ledger_id, Unproven(reason, is_certain))

    def _files(self, ledgers: Sequence[Ledger]) -> Mapping[LedgerId, TableFiles]:
        """One look at the table, for all of them."""
        ledger_ids = [ledger.ledger_id for ledger in ledgers]
        if not ledger_ids:
            return {}
        found = table_of(self._context, self._table).rows.files_of_each(ledger_ids)
        for ledger_id in ledger_ids:
            files = found[ledger_id]
            if not files.paths:
                self._refuse(
                    ledger_id,
                    f"the table at {self._table} has no rows of it yet: it is to be archived first",
                )
            elif files.partly_deleted:
                self._refuse(
                    ledger_id,
                    f"rows of {files.partly_deleted[0]}, which may be its own, were deleted from "
                    f"the table at {self._table} by a deletion vector, and these are not read "
                    "here: `REORG TABLE ... APPLY (PURGE)` writes the file without such rows",
                )
        return {i: found[i] for i in ledger_ids if i not in self._refused}

    def _answers(self, step: Step[ItemT, ResultT], works: Sequence[ItemT]) -> list[ResultT]:
        """What each piece of the proof came to; all of them are there."""
        answers = list(self._job.run(step, works))
        assert len(answers) == len(works), "release-after-proof, backup-after-proof"
        return answers

    def _compare(
        self, ledgers: Sequence[tuple[Ledger, TableFiles | None]]
    ) -> dict[LedgerId, Proven]:
        """Compare all, and put the lists; those of which all was compared."""
        works = {
            (ledger.ledger_id, first): CompareWork(ledger, self._table, first, last, files)
            for ledger, files in ledgers
            if files is not None
            for first, last in ranges_of(ledger)
        }
        pieces: dict[LedgerId, dict[EntryId, Compared]] = {}
        for piece in self._answers(COMPARING, list(works.values())):
            if piece.reason is not None:
                self._refuse(piece.ledger_id, piece.reason, is_certain=piece.is_certain)
            pieces.setdefault(piece.ledger_id, {})[piece.first] = piece
        proven: dict[LedgerId, Proven] = {}
        for ledger, files in ledgers:
            ledger_id = ledger.ledger_id
            if files is None or ledger_id in self._refused:
                continue
            ordered = [pieces[ledger_id][first] for first in sorted(pieces[ledger_id])]
            try:
                index = self._index_of(works[ledger_id, ordered[0].first], ordered)
            except BookKeeperError as error:
                self._refuse(ledger_id, error.message)
            else:
                proven[ledger_id] = Proven(index, files.version, ordered[-1].length_after)
        return proven

    def _index_of(self, work: CompareWork, ordered: Sequence[Compared]) -> str:
        """The digest of the list, which is there afterwards.

        Args:
            work: any of the ledger's pieces.
        """
        if ordered[0].index is not None:
            return ordered[0].index
        return put_list(work.open_table(self._context), work, ordered)

    def _read_back(self, ledgers: Sequence[Ledger], compared: Mapping[LedgerId, Proven]) -> None:
        """Read everything back by the lists."""
        works = [
            ReadBackWork(ledger, self._table, first, last, compared[ledger.ledger_id].index)
            for ledger in ledgers
            for first, last in ranges_of(ledger)
        ]
        for read in self._answers(READING_BACK, works):
            if read.reason is not None:
                self._refuse(read.ledger_id, read.reason)
