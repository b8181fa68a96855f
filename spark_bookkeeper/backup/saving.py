"""Backing up: copies missing entries to a directory, and writes a snapshot that lists them.

The snapshot is written last. So a killed run leaves copies that the next run finds and completes.
Existing copies are not read again, unless ``verify`` is set.

Below a table the directory has only the ledgers that the table cannot stand for: open ones, and
those that it does not return exactly. The snapshot has the others with the digest of their list
(rule ``backup-after-proof``). After a kill their rows are found, too. But the proof of a ledger
counts only once a snapshot has it; until then it is repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from spark_bookkeeper.backup.folder import BackupFolder, beside_table
from spark_bookkeeper.backup.in_table import LastPlaces, LedgerTable, NotInTable
from spark_bookkeeper.backup.saving_entries import SAVING, Saved, pieces_of
from spark_bookkeeper.backup.snapshot import SavedLedger, Snapshot
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.read.last_add_confirmed import read_last_add_confirmed
from spark_bookkeeper.errors import (
    BookieFullError,
    BookKeeperError,
    InvalidArgumentError,
    MetadataFormatError,
    NoSuchLogError,
)
from spark_bookkeeper.logs.listing import list_ledgers
from spark_bookkeeper.metadata import logs
from spark_bookkeeper.metadata.consumers import CONSUMERS_PARENT
from spark_bookkeeper.protocol.accepted_loss import kept_entries, loss_text
from spark_bookkeeper.protocol.ids import NO_ENTRY, EntryId, LedgerId
from spark_bookkeeper.replication.job import Job
from spark_bookkeeper.replication.report import Outcome, Report, Row, counted
from spark_bookkeeper.replication.runner import Progress, Runner, no_progress

_AS_BEFORE: Final = "in the directory beside the table, as before"

_ROUNDS: Final = 5
"""Number of reads of the logs' lists, for ledgers that were added during the copying."""


@dataclass(frozen=True, repr=False)
class BackupReport(Report):
    """The report of ``backup`` and ``restore``: one row for each ledger."""

    snapshot: int | None = None
    """The number of the snapshot that was written or restored; ``None``: no snapshot."""
    remark: str | None = None
    """How many ledgers that snapshot has, and how many an older one has that it lacks."""

    def totals(self) -> dict[str, Any]:
        """Return the totals of every report, and the snapshot."""
        return {**super().totals(), "snapshot": self.snapshot, "remark": self.remark}


def backup(
    context: ClientContext,
    runner: Runner,
    uri: str,
    ledger_ids: Sequence[LedgerId] | None = None,
    log: str | None = None,
    *,
    table: LedgerTable | None = None,
    verify: bool = False,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> BackupReport:
    """Copy ledgers, those of a log, or a whole cluster to a directory (``BookKeeper.backup``).

    Args:
        table: the table at ``uri``, which takes ledgers; the directory is then below it.
    """
    started = context.runtime.now()
    if table is not None:
        table.check()
        folder = beside_table(context, uri)
    else:
        folder = BackupFolder(context, uri)
        if folder.table is not None:
            raise InvalidArgumentError(
                f"{uri} is the directory beside a table: back up to {folder.table} with "
                "in_table=True (`cluster backup --table`). Nothing was changed"
            )
    instance_id = context.store.instance_id()
    incarnation = ""
    if dry_run:
        folder.check(instance_id)
    else:
        incarnation = folder.prepare(instance_id)
    saving = _Saving(
        context, runner, folder, incarnation, table=table, verify=verify, progress=progress
    )
    names = [log] if log is not None else None if ledger_ids is None else []
    lists = lists_of(context, names)
    if log is not None:
        wanted: Sequence[LedgerId] = sorted(listed(lists))
    else:
        wanted = list(context.store.ledger_ids() if ledger_ids is None else ledger_ids)
    if dry_run:
        return BackupReport("backup", tuple(saving.plan(wanted)), True, _ms(context, started))
    saving.save(wanted)
    for _ in range(_ROUNDS if ledger_ids is None else 0):
        lists = lists_of(context, names)
        if not (missing := listed(lists) - saving.rows.keys()):
            break
        saving.save(sorted(missing))
    taken = Snapshot(
        instance_id,
        context.runtime.wall_ms(),
        tuple(saving.saved[i] for i in sorted(saving.saved)),
        {name: value for each in lists.values() for name, value in each.registers.items()},
    )
    rows = [saving.rows[i] for i in sorted(saving.rows)]
    number = remark = None
    if taken.ledgers or taken.registers:  # an empty snapshot would become the newest one
        try:
            number = folder.snapshots.put(taken)
            remark = about_snapshot(number, len(taken.ledgers))
            if ledger_ids is not None or log is not None:
                remark += "; a restore takes it, the newest, unless it is told another"
        except BookieFullError as error:
            reason = f"{folder.without_room(error)}. No snapshot of this run was written"
            rows.append(Row(-1, "snapshot", Outcome.LEFT, reason))
    duration_ms = _ms(context, started)
    return BackupReport("backup", tuple(rows), False, duration_ms, snapshot=number, remark=remark)


def about_snapshot(snapshot: int, ledgers: int) -> str:
    """Return a description of a snapshot for operators."""
    return f"snapshot {snapshot}, which has {counted(ledgers, 'ledger')}"


def _ms(context: ClientContext, started: float) -> int:
    return round((context.runtime.now() - started) * 1000)


class _Saving:
    """One run of a backup."""

    def __init__(
        self,
        context: ClientContext,
        runner: Runner,
        folder: BackupFolder,
        incarnation: str,
        *,
        table: LedgerTable | None,
        verify: bool,
        progress: Progress,
    ) -> None:
        self._context = context
        self._job = Job("backup", context, runner, progress)
        self._folder = folder
        self._incarnation = incarnation
        self._table = table
        self._verify = verify
        self._places: LastPlaces | None = None
        self._refused: set[LedgerId] = set()
        """Closed ledgers that the table can never stand for."""
        self.rows: dict[LedgerId, Row] = {}
        self.saved: dict[LedgerId, SavedLedger] = {}

    def plan(self, ledger_ids: Sequence[LedgerId]) -> Iterator[Row]:
        """Yield a row for each ledger that a run would copy or skip."""
        places = None if self._table is None else LastPlaces(self._folder)
        for ledger, last in self._readable(ledger_ids):
            row = _row(ledger, last, Outcome.PLANNED, _how(ledger))
            if self._table is not None and places is not None and _can_be_in_table(ledger):
                places.find([ledger])
                if places.is_refused(ledger):
                    row = replace(row, reason=_AS_BEFORE)
                else:
                    row = replace(row, target=self._table.uri)
            yield row
        yield from self.rows.values()

    def save(self, ledger_ids: Sequence[LedgerId]) -> None:
        """Copy ledgers, and add a row and an entry of the snapshot for each."""
        found = {ledger.ledger_id: (ledger, last) for ledger, last in self._readable(ledger_ids)}
        why = {} if self._table is None else self._put(self._table, found)
        works = [
            work
            for ledger, last in found.values()
            for work in pieces_of(
                ledger, last, self._folder.uri, self._incarnation, verify=self._verify
            )
        ]
        done: dict[LedgerId, list[Saved]] = {ledger_id: [] for ledger_id in found}
        for saved in self._job.run(SAVING, works):
            done[saved.ledger_id].append(saved)
        for ledger_id, (ledger, last) in found.items():
            pieces = done[ledger_id]
            reason = next((p.reason for p in pieces if p.reason is not None), None)
            entries, size = sum(p.entries for p in pieces), sum(p.bytes for p in pieces)
            if reason is not None:
                self.rows[ledger_id] = _row(ledger, last, Outcome.LEFT, reason, entries, size)
                continue
            length = max((p.length_after for p in pieces), default=0)
            told = why.get(ledger_id, _how(ledger))
            row = _row(ledger, last, Outcome.SAVED, told, entries, size)
            is_refused = ledger_id in self._refused
            saved_here = SavedLedger(
                ledger_id, ledger.metadata, last, length, is_refused=is_refused
            )
            self._add(saved_here, row)

    def _add(self, saved: SavedLedger, row: Row) -> None:
        """Add a ledger to the snapshot, unless its length contradicts its metadata."""
        said = saved.metadata.length_bytes
        if said in (None, saved.length_bytes):
            self.saved[saved.ledger_id] = saved
        else:
            reason = f"its metadata say {said} bytes, and its entries have {saved.length_bytes}"
            row = replace(row, status=Outcome.DAMAGED, reason=reason)
        self.rows[saved.ledger_id] = row

    def _put(
        self, table: LedgerTable, found: dict[LedgerId, tuple[Ledger, EntryId]]
    ) -> Mapping[LedgerId, str]:
        """Let a table take the closed ledgers. Those that it stands for are complete, and are
        removed from ``found``.

        Returns:
            why each other one is copied to the directory below it.
        """
        places = self._places = self._places or LastPlaces(self._folder)
        why: dict[LedgerId, str] = {}
        asked: list[Ledger] = []
        possible = [ledger for ledger, _ in found.values() if _can_be_in_table(ledger)]
        places.find(possible)
        for ledger in possible:
            if places.is_refused(ledger):
                self._refused.add(ledger.ledger_id)
                why[ledger.ledger_id] = _AS_BEFORE
            else:
                asked.append(ledger)
        known = {x.ledger_id: index for x in asked if (index := places.index_of(x)) is not None}
        taken = table.take(asked, known, verify=self._verify)
        for ledger in asked:
            answer = taken[ledger.ledger_id]
            if isinstance(answer, NotInTable):
                told = "which does not stand for it"
                if answer.is_certain:
                    self._refused.add(ledger.ledger_id)
                else:
                    told = "which could not take it now, and is asked again by the next run"
                why[ledger.ledger_id] = (
                    f"in the directory beside the table, {told}: {answer.reason}"
                )
                continue
            _, last = found.pop(ledger.ledger_id)
            length, row = ledger.metadata.length_bytes or 0, _row(ledger, last, Outcome.SAVED, None)
            if answer.length_bytes is not None:
                length = answer.length_bytes
                row = replace(row, entries=last + 1, bytes=length)
            saved = SavedLedger(ledger.ledger_id, ledger.metadata, last, length, answer.index)
            self._add(saved, replace(row, target=table.uri))
        return why

    def _readable(self, ledger_ids: Sequence[LedgerId]) -> Iterator[tuple[Ledger, EntryId]]:
        """Yield the readable ledgers, each with its current last entry; add rows for the others."""
        for ledger_id, found in self._context.store.read_ledgers(ledger_ids):
            if found is None:
                reason = "it was deleted"
                self.rows[ledger_id] = Row(ledger_id, "backup", Outcome.GONE, reason)
                continue
            try:
                if isinstance(found, MetadataFormatError):
                    raise found
                ledger = Ledger.of(ledger_id, found.value)
                last = found.value.last_entry_id
                if last is None:
                    last = read_last_add_confirmed(self._context, ledger)
            except BookKeeperError as error:
                self.rows[ledger_id] = Row(ledger_id, "backup", Outcome.LEFT, error.message)
                continue
            yield ledger, last


def _can_be_in_table(ledger: Ledger) -> bool:
    """Whether a ledger is closed, has entries, and lacks none of them."""
    last = ledger.metadata.last_entry_id
    kept = () if last is None else kept_entries(ledger.metadata, EntryId(0), last)
    return bool(kept) and last == len(kept) - 1


def _how(ledger: Ledger) -> str | None:
    if ledger.metadata.is_closed:
        return loss_text(ledger.metadata)
    return f"{ledger.metadata.state.name}: up to its last add confirmed"


def _row(
    ledger: Ledger,
    last: EntryId,
    status: Outcome,
    reason: str | None,
    entries: int = 0,
    size: int = 0,
) -> Row:
    first = None if last == NO_ENTRY else 0
    return Row(
        ledger.ledger_id,
        "backup",
        status,
        reason,
        first,
        None if last == NO_ENTRY else last,
        entries=entries,
        bytes=size,
    )


@dataclass(frozen=True, slots=True)
class SavedList:
    """The list of a log, and the registers that store it."""

    ledgers: tuple[LedgerId, ...]
    registers: Mapping[str, bytes]


def listed(lists: Mapping[str, SavedList]) -> set[LedgerId]:
    """Return the ledgers of all lists."""
    return {ledger_id for each in lists.values() for ledger_id in each.ledgers}


def lists_of(context: ClientContext, names: Sequence[str] | None) -> dict[str, SavedList]:
    """Return the lists of logs. Raise for a deleted log in ``names``; else leave it out."""
    found = {}
    for name in logs.log_names(context.store.registers) if names is None else names:
        try:
            found[name] = _list_of(context, name)
        except NoSuchLogError:
            if names is not None:
                raise
    return found


def _list_of(context: ClientContext, name: str) -> SavedList:
    """Return the list of a log: read the registers until the head is the same before and after."""
    registers = context.store.registers
    while True:
        nonce = logs.read_log(registers, name).nonce
        path = f"{logs.LOGS_PARENT}/{name}"
        before = registers.read(path)
        head, ledgers = list_ledgers(context, name, nonce)
        found = {path: before.value if before is not None else b""}
        consumers = f"{CONSUMERS_PARENT}/{name}"
        wanted = [f"{path}/{chunk.name}" for chunk in head.chunks]
        wanted += [f"{consumers}/{each}" for each in registers.names(consumers)]
        for each in wanted:
            value = registers.read(each)
            if value is not None:
                found[each] = value.value
        after = registers.read(path)
        if before is not None and after is not None and before.value == after.value:
            return SavedList(tuple(ledgers), found)
