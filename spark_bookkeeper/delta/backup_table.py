"""A Delta table that takes the rows of a backup, by an archive and then the proof of a release.

If the table stood for a ledger in an earlier backup and still has the files in the ledger's list,
nothing is read again. If these files were rewritten (``OPTIMIZE``), a list of the new ones is
stored, and every entry is read back by it, without the bookies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from spark_bookkeeper.backup.folder import BackupFolder, beside_table
from spark_bookkeeper.backup.in_table import InTable, NotInTable, Taken
from spark_bookkeeper.bookie.bookie import LedgerRef
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.delta.archive import OWNER, ArchiveReport
from spark_bookkeeper.delta.pieces import ranges_of
from spark_bookkeeper.delta.proof import Proof, Unproven, batches_to_prove
from spark_bookkeeper.delta.reading_back import READING_BACK, ReadBackWork
from spark_bookkeeper.delta.sums import PLACE_COLUMNS
from spark_bookkeeper.errors import BookieUnavailableError, InvalidArgumentError
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.replication.job import Job
from spark_bookkeeper.replication.report import Outcome
from spark_bookkeeper.replication.runner import Failure, Step
from spark_bookkeeper.replication.stragglers import name_of
from spark_bookkeeper.table.listing import DIRECTORY, encode_listing
from spark_bookkeeper.table.opening import table_of
from spark_bookkeeper.table.snapshot import LOG, NoTableError, TableFiles, schema_of

_OURS: Final = {DIRECTORY, LOG}

AddToTable: TypeAlias = Callable[[Sequence[LedgerId]], ArchiveReport]
"""Puts rows of ledgers that the table lacks into it, and compares all rows."""


class BackupTable:
    """One table, for one run.

    Args:
        job: the job that runs the steps of the proof.
        uri: location of the table, which may not exist yet.
        add: archives ledgers in the table.
    """

    def __init__(self, context: ClientContext, job: Job, uri: str, add: AddToTable) -> None:
        self._context = context
        self._job = job
        self._uri = uri
        self._add = add

    @property
    def uri(self) -> str:
        """URI of the table, which may not exist yet."""
        return self._uri

    def check(self) -> None:
        """Check that it can take ledgers, as far as possible without writing.

        Raises:
            InvalidArgumentError: it is no such table, or it is another cluster's.
        """
        check_table(self._context, self._uri)

    def take(
        self, ledgers: Sequence[Ledger], known: Mapping[LedgerId, str], *, verify: bool
    ) -> Mapping[LedgerId, Taken]:
        """Return the result for each ledger; see ``LedgerTable``."""
        found: dict[LedgerId, Taken] = {}
        stands = self._still_stands([x for x in ledgers if x.ledger_id in known], known, verify)
        found.update({i: InTable(index, None) for i, index in stands.items()})
        new = [ledger for ledger in ledgers if ledger.ledger_id not in found]
        return found | (self._put(new) if new else {})

    def _put(self, ledgers: Sequence[Ledger]) -> dict[LedgerId, Taken]:
        """Archive the rows of ledgers, and prove that the table stands for them."""
        found: dict[LedgerId, Taken] = {}
        report = self._add([ledger.ledger_id for ledger in ledgers])
        for row in report.rows:
            ledger_id = LedgerId(row.ledger_id)
            if row.status is not Outcome.ARCHIVED:
                is_certain = row.status is Outcome.DAMAGED or ledger_id in report.refused
                found[ledger_id] = NotInTable(row.reason or str(row.status), is_certain)
        proof = Proof(self._context, self._job, self._uri)
        for batch in batches_to_prove([x for x in ledgers if x.ledger_id not in found]):
            for ledger_id, judged in proof.of(batch).items():
                found[ledger_id] = (
                    NotInTable(judged.reason, judged.is_certain)
                    if isinstance(judged, Unproven)
                    else InTable(judged.index, judged.length_bytes)
                )
        return found

    def _still_stands(
        self, ledgers: Sequence[Ledger], known: Mapping[LedgerId, str], verify: bool
    ) -> dict[LedgerId, str]:
        """Return the current list's digest of each ledger that the table still stands for."""
        if not ledgers:
            return {}
        rows = table_of(self._context, self._uri).rows
        try:
            files = rows.files_of_each([ledger.ledger_id for ledger in ledgers])
        except NoTableError:
            return {}  # it is created again; an unreadable table ends the run
        works = [
            _LookWork(x, self._uri, known[x.ledger_id], files[x.ledger_id], verify) for x in ledgers
        ]
        looked = {each.ledger_id: each.index for each in self._job.run(_LOOKING, works)}
        stands = {i: index for i, index in looked.items() if index is not None}
        doubtful = [
            ReadBackWork(ledger, self._uri, first, last, index)
            for ledger in ledgers
            if (index := stands.get(ledger.ledger_id)) is not None
            and (verify or index != known[ledger.ledger_id])
            for first, last in ranges_of(ledger)
        ]
        answers = list(self._job.run(READING_BACK, doubtful))
        assert len(answers) == len(doubtful), "backup-after-proof"
        for answer in answers:
            if answer.reason is not None:
                stands.pop(answer.ledger_id, None)
        return stands


def check_table(context: ClientContext, uri: str) -> None:
    """Check that a table at a URI may take this cluster's ledgers, or may be created there.

    Raises:
        InvalidArgumentError: it is no such table, it is another cluster's, or it cannot be reached.
            Nothing was changed.
    """
    try:
        _check_table(context, uri)
    except BookieUnavailableError as error:
        said = error.message.replace(f"bookie {error.bookie_id}", f"the table at {uri}")
        raise InvalidArgumentError(
            f"no backup can be made in a table at {uri}: {said}. Nothing was changed"
        ) from error


def _check_table(context: ClientContext, uri: str) -> None:
    _check_no_backup(context, uri)
    folder = beside_table(context, uri)
    instance_id = context.store.instance_id()
    if folder.is_there:
        folder.incarnation(instance_id)
    table = table_of(context, uri)
    fields = schema_of(table.rows.folder, table.bookie_id)
    if fields is None:
        if not folder.is_there:
            _check_free(context, uri)
        return
    by_name = {field["name"].lower(): field for field in fields}
    if lacking := [name for name in PLACE_COLUMNS if name not in by_name]:
        raise InvalidArgumentError(
            f"the Delta table at {uri} has no column {lacking[0]}: it is none of ledgers (its "
            f"columns are {', '.join(list(by_name)[:5])}). Nothing was changed. Choose a path "
            "where there is nothing, or a table of `archive_to_delta`"
        )
    owner = (by_name[PLACE_COLUMNS[0]].get("metadata") or {}).get(OWNER, instance_id)
    if owner != instance_id:
        raise InvalidArgumentError(
            f"the table at {uri} has the ledgers of cluster {owner}, and this is cluster "
            f"{instance_id}, whose ledgers may have the same ids: nothing was changed. Back up to "
            "another table"
        )


def _check_no_backup(context: ClientContext, uri: str) -> None:
    """Check that a URI is no backup's: a restore could not know which of the two is meant."""
    folder = BackupFolder(context, uri)
    if folder.table is not None:
        raise InvalidArgumentError(
            f"{uri} is the directory beside a table: back up to {folder.table}. Nothing was changed"
        )
    if folder.is_there:
        raise InvalidArgumentError(
            f"{uri} is the directory of a backup without a table: without in_table (`--table`) it "
            "goes on there; one with it needs another path. Nothing was changed"
        )


def _check_free(context: ClientContext, uri: str) -> None:
    """Check that a URI without a table has no other files."""
    found = [name for name in table_of(context, uri).rows.folder.list("") if name not in _OURS]
    if not found:
        return
    raise InvalidArgumentError(
        f"{uri} is not empty (it holds {', '.join(found[:5])}) and no Delta table; nothing was "
        "changed. Choose a path where there is nothing, or a table of `archive_to_delta`"
    )


# What it stood for before


@dataclass(frozen=True, slots=True)
class _LookWork:
    """Check whether the table has the files in a ledger's list. Picklable."""

    ledger: Ledger
    table: str
    index: str
    """The digest of the list that names the files."""
    files: TableFiles
    """The files that may have rows of the ledger now."""
    verify: bool
    """Whether the list has to name exactly these: rows may have been added in other files."""
    size_bytes: int = 0
    """Always 0: no rows are read."""

    @property
    def ledger_id(self) -> LedgerId:
        """The id of the ledger."""
        return self.ledger.ledger_id

    def name(self) -> str:
        """Return the name of the ledger, for messages."""
        return name_of(self.ledger_id)


@dataclass(frozen=True, slots=True)
class _Looked:
    ledger_id: LedgerId
    index: str | None
    """The digest of a list whose files the table has; ``None``: there is no such list."""
    bytes: int = 0


def _look(context: ClientContext, work: _LookWork) -> Sequence[_Looked]:
    bookie, key = table_of(context, work.table), work.ledger.key
    listing = bookie.listing(LedgerRef(key, work.index, work.ledger.encoding), is_fresh=True)
    named, files = set(listing.files.paths), work.files
    if named <= set(files.untouched) and not (work.verify and named != set(files.paths)):
        return [_Looked(work.ledger_id, work.index)]
    if files.partly_deleted:
        return [_Looked(work.ledger_id, None)]
    entries = listing.table(0, listing.count - 1)
    again = bookie.put_listing(key, encode_listing(key, work.files, [entries]))
    return [_Looked(work.ledger_id, again)]


def _not_looked(work: _LookWork, failure: Failure) -> _Looked:
    return _Looked(work.ledger_id, None)


_LOOKING: Final = Step("looking at the table", _look, _not_looked)
