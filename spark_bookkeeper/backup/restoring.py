"""Restoring: entries go to bookies of a cluster; then each ledger appears, whole and closed.

Ids, entries, positions, labels, digests and passwords stay the same; bookies are new. A ledger's
metadata are created after all of its copies, and the list of a log after all of its ledgers. So
readers never see a ledger or a log that cannot be read. Copies without metadata are garbage
everywhere else; a register protects these (``metadata/restores.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Final

from spark_bookkeeper.backup.folder import BackupFolder, backup_at
from spark_bookkeeper.backup.restoring_entries import RESTORING, RESTORING_FROM_TABLE, pieces_of
from spark_bookkeeper.backup.restoring_logs import (
    ledgers_of_log,
    planned_log,
    restore_log,
    saved_logs,
)
from spark_bookkeeper.backup.saving import BackupReport, about_snapshot
from spark_bookkeeper.backup.snapshot import SavedLedger, Snapshot
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger, with_incarnations
from spark_bookkeeper.client.writer_info import WriterInfo
from spark_bookkeeper.errors import (
    BookKeeperError,
    InvalidArgumentError,
    LedgerExistsError,
    NoSuchLedgerError,
    VersionConflictError,
)
from spark_bookkeeper.metadata import restores
from spark_bookkeeper.protocol.accepted_loss import kept_entries, loss_text
from spark_bookkeeper.protocol.collection import COLLECTED
from spark_bookkeeper.protocol.ids import NO_ENTRY, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import ARCHIVE, Fragment, LedgerState
from spark_bookkeeper.protocol.placement import choose_ensemble, drawn
from spark_bookkeeper.replication.job import Job
from spark_bookkeeper.replication.report import Outcome, Row, some_of
from spark_bookkeeper.replication.runner import Progress, Runner, no_progress
from spark_bookkeeper.table.opening import table_of
from spark_bookkeeper.table.rows import Presence

LOOKED_AT: Final = 5
"""Number of older snapshots that a restore searches for ledgers which the newest lacks."""

KEPT_AT_ONCE: Final = 256
"""Number of ids of the counter that are noted in one write. If the process dies before the write,
these ids are lost: no ledger with such an id can be restored to that cluster."""


def restore(
    context: ClientContext,
    runner: Runner,
    uri: str,
    ledger_ids: Sequence[LedgerId] | None = None,
    log: str | None = None,
    *,
    snapshot: int | None = None,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> BackupReport:
    """Put ledgers and logs of a backup into a cluster that lacks them (``BookKeeper.restore``).

    Repeat it until it is complete: ledgers that exist already, in the same life, are skipped.
    """
    started = context.runtime.now()
    folder = backup_at(context, uri)
    incarnation = folder.incarnation()
    number, taken = folder.snapshots.read(snapshot)
    chosen, log_names = _chosen(number, taken, ledger_ids, log)
    remark = about_snapshot(number, len(taken.ledgers))
    if snapshot is None and ledger_ids is None and log is None:
        remark += _besides(folder, number, {each.ledger_id for each in taken.ledgers})
    run = _Restoring(context, runner, folder, incarnation, progress)
    if dry_run:
        rows = run.plan(chosen)
        there = {each.ledger_id for each in taken.ledgers}
        rows += [planned_log(context, taken.registers, name, there) for name in log_names]
    else:
        who = f"{WriterInfo.of_this_process()}, from {uri}"
        with restores.restoring(context.store.ballots, who, context.runtime):
            rows = run.restore(chosen, taken.registers, log_names)
    duration_ms = round((context.runtime.now() - started) * 1000)
    return BackupReport(
        "restore", tuple(rows), dry_run, duration_ms, snapshot=number, remark=remark
    )


def _chosen(
    number: int, taken: Snapshot, ledger_ids: Sequence[LedgerId] | None, log: str | None
) -> tuple[list[SavedLedger], list[str]]:
    """Return the requested ledgers and logs of a snapshot, both ascending.

    Raises:
        InvalidArgumentError: the snapshot does not have them.
    """
    log_names = saved_logs(taken.registers)
    saved = {each.ledger_id: each for each in taken.ledgers}
    if log is not None and log not in log_names:
        raise InvalidArgumentError(
            f"snapshot {number} has no log {log!r}: it has {', '.join(log_names) or 'none'}"
        )
    if log is not None:
        wanted = [i for i in ledgers_of_log(taken.registers, log) if i in saved]
        return [saved[ledger_id] for ledger_id in sorted(wanted)], [log]
    if ledger_ids is None:
        return [saved[ledger_id] for ledger_id in sorted(saved)], log_names
    if unknown := [i for i in ledger_ids if i not in saved]:
        raise InvalidArgumentError(
            f"snapshot {number} has no ledger {unknown[0]}; nothing was changed. Its ledgers: "
            f"{some_of(sorted(saved))}; an earlier one may have it (`--snapshot`)"
        )
    return [saved[ledger_id] for ledger_id in sorted(ledger_ids)], []


def _besides(folder: BackupFolder, number: int, ledger_ids: Set[LedgerId]) -> str:
    """Describe the older snapshot with most ledgers that this one lacks; empty without one."""
    most = ""
    lacking = 0
    for older in reversed(
        [each for each in folder.snapshots.numbers() if each < number][-LOOKED_AT:]
    ):
        try:
            found = folder.snapshots.ledger_ids(older)
        except InvalidArgumentError:
            continue  # damaged, and not the requested one
        if len(found - ledger_ids) > lacking:
            lacking = len(found - ledger_ids)
            most = f" (snapshot {older} has {len(found):,}, of which this one lacks {lacking:,})"
    return most


class _Restoring:
    """One run of a restore."""

    def __init__(
        self,
        context: ClientContext,
        runner: Runner,
        folder: BackupFolder,
        incarnation: str,
        progress: Progress,
    ) -> None:
        self._context = context
        self._job = Job("restore", context, runner, progress)
        self._folder = folder
        self._incarnation = incarnation
        self._progress = progress
        self._todo: dict[LedgerId, tuple[SavedLedger, Ledger]] = {}
        self._kept = restores.kept(context.store.registers)
        self._rows: dict[LedgerId, Row] = {}
        self._presence: Presence | None = None
        """The presence of a table's files, for a plan."""

    def plan(self, chosen: Sequence[SavedLedger]) -> list[Row]:
        """Return a row for each ledger that a run would restore, or could not restore."""
        if self._folder.table is not None:
            rows = table_of(self._context, self._folder.table).rows
            ledger_ids = [each.ledger_id for each in chosen if each.index is not None]
            self._presence = Presence(rows, ledger_ids)
        return [self.look(each, dry_run=True) for each in chosen]

    def restore(
        self,
        chosen: Sequence[SavedLedger],
        registers: Mapping[str, bytes],
        log_names: Sequence[str],
    ) -> list[Row]:
        """Restore ledgers, and then logs if all of their ledgers exist; return a row for each.

        Args:
            registers: registers of the snapshot.
        """
        rows = [self.look(each, dry_run=False) for each in chosen]
        self._restore_ledgers()
        rows = [self._rows.get(LedgerId(row.ledger_id), row) for row in rows]
        is_whole = all(row.status.is_done for row in rows)
        listed = [i for name in log_names for i in ledgers_of_log(registers, name)]
        if is_whole and listed:
            self._pass_ids(max(listed))
        for name in log_names:
            rows.append(restore_log(self._context, registers, name, is_whole=is_whole))
        return rows

    def look(self, saved: SavedLedger, *, dry_run: bool) -> Row:
        """Return a ledger's row: it exists already, or its restore is planned or queued."""
        ledger_id = saved.ledger_id
        try:
            there = self._context.store.read_ledger(ledger_id)
        except NoSuchLedgerError:
            pass
        except BookKeeperError as error:
            return _row(saved, Outcome.LEFT, error.message)
        else:
            if there.value.nonce == saved.metadata.nonce:
                if not dry_run:
                    restores.end(self._context.store.registers, ledger_id)
                    return _row(saved, Outcome.RESTORED, "it was there already")
                return _row(saved, Outcome.THERE_ALREADY, None)
            return _row(
                saved,
                Outcome.LEFT,
                f"the cluster has another ledger {ledger_id}, and no ledger can be restored under "
                "another id; that one was not touched. Restore into an empty cluster",
            )
        try:
            if self._context.store.has_used(ledger_id, is_kept=ledger_id in self._kept):
                return _row(saved, Outcome.LEFT, _used(ledger_id))
            ledger = self._placed(saved)
            if dry_run and (reason := self._what_is_lacking(saved, ledger)) is not None:
                return _row(saved, Outcome.LEFT, reason)
        except BookKeeperError as error:
            return _row(saved, Outcome.LEFT, error.message)
        if dry_run:
            return _row(saved, Outcome.PLANNED, _how(saved))
        self._todo[ledger_id] = saved, ledger
        return _row(saved, Outcome.LEFT, "it was not reached")

    def _what_is_lacking(self, saved: SavedLedger, ledger: Ledger) -> str | None:
        """Return what the backup lacks of a ledger, as far as its files' headers show it."""
        if saved.last_entry_id == NO_ENTRY:
            return None
        source = self._folder.source(ledger, self._incarnation, saved.index)
        ids = kept_entries(saved.metadata, EntryId(0), saved.last_entry_id)
        lacking = source.holdings(0, saved.last_entry_id).lacking(ids)
        if lacking:
            return self._folder.unreadable(ledger, lacking[0], "no file has it", saved.index)
        listing = self._folder.listing(ledger, saved.index)
        if listing is None or self._presence is None:
            return None
        reason = self._presence.what_is_gone(saved.ledger_id, listing.files)
        if reason is None:
            return None
        return self._folder.unreadable(ledger, 0, reason, saved.index)

    def _placed(self, saved: SavedLedger) -> Ledger:
        """Return the ledger as it will be: closed, in one fragment on bookies of this cluster.

        It always chooses the same bookies, so that a repeated run finds its earlier copies.
        """
        before, quorum = saved.metadata, saved.metadata.quorum
        alive = self._context.bookies.registrations()
        share = f"restore/{saved.ledger_id}-{(before.nonce or b'').decode()}"
        found = self._context.bookies.candidates(alive)  # their free space changes between runs
        candidates = drawn(share, [replace(each, free_bytes=None) for each in found])
        reasons = self._context.bookies.ineligible(alive, quorum.ensemble_size)
        purpose = f"for ledger {saved.ledger_id}"
        ensemble = choose_ensemble(quorum, candidates, reasons, purpose)
        # No table stands for the copies here, and none of them was collected.
        custom = {k: v for k, v in before.custom_metadata.items() if k not in (ARCHIVE, COLLECTED)}
        metadata = replace(
            before,
            state=LedgerState.CLOSED,
            fragments=(Fragment(EntryId(0), ensemble),),
            last_entry_id=saved.last_entry_id,
            length_bytes=saved.length_bytes,
            custom_metadata=custom,
            ctoken=None,
        )
        incarnations = {bookie: alive[bookie].incarnation for bookie in ensemble}
        return Ledger.of(saved.ledger_id, with_incarnations(metadata, incarnations, renewed=True))

    def _pass_ids(self, highest: int) -> None:
        """Advance the cluster's id counter beyond the restored ledgers.

        The ledgers of a log ascend, so its next ledger needs a higher id. This is done after all
        ledgers exist: no other client takes an id that was given out (SLOT-LOG rule R16), so the
        skipped ids are kept for later restores.
        """
        store, given = self._context.store, [LedgerId(-1)]
        while given[-1] <= highest:
            given.append(store.generate_ledger_id())
            if given[-1] > highest or len(given) > KEPT_AT_ONCE:
                restores.keep(store.registers, given[1:])
                del given[:-1]
            self._progress("passing over the ids of restored ledgers", given[-1], highest + 1, 0)

    def _restore_ledgers(self) -> None:
        failed: dict[LedgerId, str] = {}
        others: Counter[LedgerId] = Counter()
        for ledger_id, (saved, _) in self._todo.items():
            try:  # [gc_restored]: protects copies without metadata from here on
                restores.begin(
                    self._context.store.registers, ledger_id, saved.metadata.nonce or b""
                )
            except VersionConflictError as error:
                failed[ledger_id] = error.message
        begun = [each for i, each in self._todo.items() if i not in failed]
        works = [
            work
            for saved, ledger in begun
            for work in pieces_of(ledger, self._folder.uri, self._incarnation, saved.index)
        ]
        is_in_table = any(work.index is not None for work in works)
        for done in self._job.run(RESTORING_FROM_TABLE if is_in_table else RESTORING, works):
            if done.reason is not None:
                failed[done.ledger_id] = done.reason
            others[done.ledger_id] += done.other_bytes
        for ledger_id, (saved, ledger) in self._todo.items():
            reason = failed.get(ledger_id) or self._create(ledger)
            self._rows[ledger_id] = (
                _row(saved, Outcome.RESTORED, _how(saved, others[ledger_id]))
                if reason is None
                else _row(saved, Outcome.LEFT, reason)
            )

    def _create(self, ledger: Ledger) -> str | None:
        """Create the ledger's metadata; return why it failed, or ``None``."""
        try:
            reason = self._create_once(ledger)
            restores.end(self._context.store.registers, ledger.ledger_id)
        except BookKeeperError as error:
            return error.message  # its copies stay for the next run
        return reason

    def _create_once(self, ledger: Ledger) -> str | None:
        """Create the metadata; return why they can never be created here, or ``None``."""
        store, ledger_id = self._context.store, ledger.ledger_id
        try:
            store.create_ledger(ledger_id, ledger.metadata, is_kept=ledger_id in self._kept)
        except LedgerExistsError as error:
            try:
                there = store.read_ledger(ledger_id)
            except NoSuchLedgerError:
                return _used(ledger_id)
            is_ours = there.value.nonce == ledger.metadata.nonce
            return None if is_ours else error.message
        return None


def _used(ledger_id: LedgerId) -> str:
    return (
        f"this cluster has used ledger id {ledger_id} before: for a ledger that was deleted, for a "
        "restore that was forgotten, or its counter has passed it. No id is used twice, so restore "
        "into an empty cluster, before anything else is written there"
    )


def _how(saved: SavedLedger, other_bytes: int = 0) -> str | None:
    """Return the remark about a restored ledger.

    Args:
        other_bytes: number of entries whose bytes differ from the original ones.
    """
    if other_bytes:
        return (
            f"of {other_bytes:,} of its entries the table gave other bytes than they had, as "
            "another version of Arrow makes them; every value is the same"
        )
    if saved.metadata.is_closed:
        return loss_text(saved.metadata)
    return (
        f"it was {saved.metadata.state.name}, and is closed at entry {saved.last_entry_id}, the "
        "last add confirmed when it was backed up"
    )


def _row(saved: SavedLedger, status: Outcome, reason: str | None) -> Row:
    last = saved.last_entry_id
    is_done = status in (Outcome.RESTORED, Outcome.PLANNED)
    return Row(
        saved.ledger_id,
        "restore",
        status,
        reason,
        None if last == NO_ENTRY else 0,
        None if last == NO_ENTRY else last,
        entries=len(kept_entries(saved.metadata, EntryId(0), last)) if is_done else 0,
        bytes=saved.length_bytes if is_done else 0,
    )
