"""The proof that a table stands for ledgers, which a release and a backup require.

1. Every entry is rebuilt from the table's rows, and compared with the bookies' copies, byte by byte
(``comparing.py``). A difference in bytes goes into the list of entries, which is stored below the
table.
2. Every entry is read back by the list, as readers will (``reading_back.py``).

A batch of ledgers goes through both steps: each step is one job, whatever their number.
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
"""Approximate limit of a batch's entries: their lists are in memory, some 100 bytes for each
entry."""

BATCH_LEDGERS: Final = 1000
"""The most ledgers in a batch."""

BATCH_BYTES: Final = 4 << 30
"""Approximate limit of a batch's bytes, which are read again if the run is killed earlier."""


@dataclass(frozen=True, slots=True)
class Proven:
    """The table stands for a ledger."""

    index: str
    """The digest of its list."""
    version: int
    """The version of the table."""
    length_bytes: int
    """The length of the ledger, from its last entry."""


@dataclass(frozen=True, slots=True)
class Unproven:
    """The table does not stand for a ledger, or the proof could not be completed."""

    reason: str
    is_certain: bool
    """Whether another proof would fail, too."""


Judged: TypeAlias = Proven | Unproven


def batches_to_prove(ledgers: Iterable[Ledger]) -> Iterator[list[Ledger]]:
    """Yield batches of neighbouring closed ledgers within the limits. A ledger that exceeds a limit
    by itself is a batch of its own.
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
    """Proves a batch of closed ledgers that have entries.

    Args:
        job: the job that runs the two steps.
        table: URI of the Delta table.
        begin: called with the number of each step, from 0 on.
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
        """Return the result for each ledger of one batch (``batches_to_prove``).

        Raises:
            BookKeeperError: the table's log cannot be read. No bookie was queried.
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
        """Record why a ledger is unproven; the first reason is kept."""
        self._refused.setdefault(ledger_id, Unproven(reason, is_certain))

    def _files(self, ledgers: Sequence[Ledger]) -> Mapping[LedgerId, TableFiles]:
        """Read the table's log once; return the files of each ledger, or refuse the ledger."""
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
        """Return the results of all works; the proof needs every one."""
        answers = list(self._job.run(step, works))
        assert len(answers) == len(works), "release-after-proof, backup-after-proof"
        return answers

    def _compare(
        self, ledgers: Sequence[tuple[Ledger, TableFiles | None]]
    ) -> dict[LedgerId, Proven]:
        """Compare all ledgers, and store their lists; return those that are equal."""
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
        """Return the digest of a ledger's list, after storing it if a task has not.

        Args:
            work: any piece of the ledger.
        """
        if ordered[0].index is not None:
            return ordered[0].index
        return put_list(work.open_table(self._context), work, ordered)

    def _read_back(self, ledgers: Sequence[Ledger], compared: Mapping[LedgerId, Proven]) -> None:
        """Read all entries back by the lists."""
        works = [
            ReadBackWork(ledger, self._table, first, last, compared[ledger.ledger_id].index)
            for ledger in ledgers
            for first, last in ranges_of(ledger)
        ]
        for read in self._answers(READING_BACK, works):
            if read.reason is not None:
                self._refuse(read.ledger_id, read.reason)
