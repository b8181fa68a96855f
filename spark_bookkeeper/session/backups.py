"""Copies of ledgers and logs outside bookies: in tables that stand for them, and in backups.

Each call imports its own job: every program and command imports this module, but few use a job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from spark_bookkeeper.replication.runner import Progress, Runner
from spark_bookkeeper.session.arguments import either_of, error_text, ids_of, uri_of
from spark_bookkeeper.session.handle import ClusterHandle

if TYPE_CHECKING:
    from spark_bookkeeper.backup.saving import BackupReport
    from spark_bookkeeper.delta.archive import Archive, ArchiveReport
    from spark_bookkeeper.delta.backup_table import BackupTable


def archive_to_delta(
    self: ClusterHandle,
    path: str,
    ledger_ids: Iterable[int] | None = None,
    log: str | None = None,
    *,
    release: bool = False,
    keep: int = 1,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ArchiveReport:
    """Put the rows of closed ledgers into a Delta table, each exactly once, and verify them.

    Repeat it as often as you like, also after a kill at any point, or in parallel with another
    run: no ledger is added twice. Small ledgers share commits of the table. The table has the
    columns ``_ledger_id``, ``_entry_id`` and ``_row``, then those of the ledgers.

    Args:
        path: path of the table, which is created if it does not exist.
        ledger_ids: which ledgers; without ids and without ``log``, all ledgers.
        log: the closed ledgers of this log, in its order.
        release: make bookies drop copies of the archived ledgers, once every entry was rebuilt
            from the table and compared byte for byte. Where no copy is left, reads use the
            table; nothing else changes for readers. The report has one more row per ledger.
        keep: with ``release``, copies of every entry that stay on bookies; 0 keeps none.
        dry_run: only report what would be done.
        progress: called with phase, ledgers done, ledgers in all, bytes so far; ``None`` shows
            it.

    Raises:
        InvalidArgumentError: both ledgers and a log were given; the table has the ledgers of
            another cluster; or ``release``, and readers could not find the table at ``path``.
        NoSuchLogError: there is no such log.
        MissingRequirementError: the session has no Delta; ``spark_session(delta=True)`` has.
        BookKeeperError: a Spark job of the archive was cancelled. Committed ledgers are whole,
            and nothing was released. Run it again to do the rest.
    """
    from spark_bookkeeper.delta.release import check_release, release_archived

    chosen = either_of(ledger_ids, log)
    context = self.context
    if release:
        check_release(context, path, keep)
    if log is not None:
        wanted = list(self.calls.open_log(log).ledgers())
    else:
        wanted = sorted(context.store.ledger_ids()) if chosen is None else list(chosen)
    archive = _archive_at(self, path)

    def run(runner: Runner, tell: Progress) -> ArchiveReport:
        report = archive.add(wanted, log=log, dry_run=dry_run, progress=tell)
        if release:
            report = release_archived(context, runner, path, report, keep, progress=tell)
        return report

    return self.reported("archive_to_delta", path, dry_run, progress, run, looks_on_spark=True)


def _archive_at(self: ClusterHandle, path: str) -> Archive:
    """Return the archive that adds rows to the table at a path.

    Raises:
        MissingRequirementError: the session has no Delta, or none of its file systems has such
            paths.
    """
    from spark_bookkeeper.delta.archive import Archive
    from spark_bookkeeper.delta.sums import PLACE_COLUMNS

    context = self.context
    return Archive(
        context,
        self.spark,
        lambda ranges, schema: self.frames.read(context, schema, ranges, places=PLACE_COLUMNS),
        path,
    )


def backup(
    self: ClusterHandle,
    uri: str,
    ledger_ids: Iterable[int] | None = None,
    log: str | None = None,
    *,
    in_table: bool = False,
    verify: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> BackupReport:
    """Copy ledgers, a log or the whole cluster to a directory, as a Spark job; repeatable.

    Each run copies what is new. It ends with a snapshot of the saved ledgers, if there are any. A
    ledger that is not closed is copied up to its last add confirmed; its writer is not stopped.

    Args:
        uri: a path or an fsspec URI, created if it does not exist. It will hold the ledgers'
            entries and passwords. A relative path starts at this process's directory.
        ledger_ids: which; without ids and without ``log``, all, with all logs and consumers.
        log: the ledgers of this log, with its list and consumers.
        in_table: put the rows of closed ledgers into a Delta table at ``uri``, as
            ``archive_to_delta`` does, and prove that every entry comes back from it byte for
            byte. Ledgers that are not closed, or that the table cannot return exactly, are copied
            to ``_spark_bookkeeper/backup`` in the table's directory, next to the snapshots.
        verify: also read again what earlier runs copied, and repair it.
        dry_run: only report what would be copied.
        progress: called with phase, items done, items in all, bytes so far; ``None`` shows it.

    Returns:
        a row for each ledger, whose ``target`` is the table if that stands for it. ``snapshot``
        is the number of the snapshot that was written.

    Raises:
        InvalidArgumentError: both ledgers and a log were given, ``uri`` has something else, or
            nothing can be written there.
        NoSuchLogError: there is no such log.
        MissingRequirementError: ``in_table``, and the session has no Delta;
            ``spark_session(delta=True)`` has.
        BookKeeperError: ``in_table``, and the table cannot be read, or its Spark job was
            cancelled. No snapshot was written. Run it again to do the rest.
    """
    from spark_bookkeeper.backup.saving import backup as backup_job

    wanted = either_of(ledger_ids, log)
    uri = uri_of(uri)
    table_at = _backup_table_at(self, uri) if in_table else None
    return self.reported(
        "backup",
        uri,
        dry_run,
        progress,
        lambda runner, tell: backup_job(
            self.context,
            runner,
            uri,
            wanted,
            log,
            table=None if table_at is None else table_at(runner, tell),
            verify=verify,
            dry_run=dry_run,
            progress=tell,
        ),
    )


def _backup_table_at(self: ClusterHandle, uri: str) -> Callable[[Runner, Progress], BackupTable]:
    """Return a function that makes the table of a backup for one run."""
    from spark_bookkeeper.delta.backup_table import BackupTable, check_table
    from spark_bookkeeper.replication.job import Job

    check_table(self.context, uri)  # before Spark is started
    archive = _archive_at(self, uri)

    def table(runner: Runner, tell: Progress) -> BackupTable:
        job = Job("backup", self.context, runner, tell)
        return BackupTable(
            self.context, job, uri, lambda ledger_ids: archive.add(ledger_ids, progress=tell)
        )

    return table


def restore(
    self: ClusterHandle,
    uri: str,
    ledger_ids: Iterable[int] | None = None,
    log: str | None = None,
    *,
    snapshot: int | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> BackupReport:
    """Put ledgers and logs of a backup into this cluster, as a Spark job; repeatable.

    Ids, entries, positions, labels, digests and passwords stay the same. A ledger that was not
    closed is closed at its last entry in the backup. The cluster should be empty: a ledger whose
    id was used there is not restored. Parts of a backup may be restored one after the other.

    Args:
        uri: the ``uri`` that ``backup`` was called with, also if it is that of a table.
        ledger_ids: which; without ids and without ``log``, all of the snapshot.
        log: this log and its ledgers.
        snapshot: its number; ``None`` is the newest.
        dry_run: only report what would be restored.
        progress: called with phase, items done, items in all, bytes so far; ``None`` shows it.

    Returns:
        a row for each ledger and log. ``snapshot`` is the number of the restored snapshot;
        ``remark`` shows how many ledgers an older one has that it lacks.

    Raises:
        InvalidArgumentError: there is no such backup, snapshot, ledger or log.
    """
    from spark_bookkeeper.backup.restoring import restore as restore_job

    wanted = either_of(ledger_ids, log)
    uri = uri_of(uri)
    return self.reported(
        "restore",
        uri,
        dry_run,
        progress,
        lambda runner, tell: restore_job(
            self.context,
            runner,
            uri,
            wanted,
            log,
            snapshot=snapshot,
            dry_run=dry_run,
            progress=tell,
        ),
    )


def forget_restores(
    self: ClusterHandle,
    ledger_ids: Iterable[int] | None = None,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> BackupReport:
    """Abandon restores that did not end: garbage collection removes their copies.

    A forgotten ledger can never be restored to this cluster; a ledger that is complete stays.
    To continue a restore, call ``restore`` again instead.

    Args:
        ledger_ids: which; ``None`` is all whose restore did not end.
        dry_run: only report these ledgers, and what would be removed.
        progress: called with phase, items done, items in all, bytes so far; ``None`` shows it.

    Returns:
        a row for each bookie that has such copies, with their bytes.

    Raises:
        InvalidArgumentError: a restore runs, or no restore of such a ledger was begun.
    """
    from spark_bookkeeper.backup.forgetting import forget_restores as forget_restores_job

    wanted = ids_of(ledger_ids)
    return self.reported(
        "forget_restores",
        error_text("ledger", wanted),
        dry_run,
        progress,
        lambda _, tell: forget_restores_job(self.context, wanted, dry_run=dry_run, progress=tell),
    )
