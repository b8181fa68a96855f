"""Ledgers and logs elsewhere: in tables that stand for them, and in backups.

Each call imports its job itself: every program and command imports this file, and few call one.
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

    Repeat it as often as you like, also after a kill at any point and at the same time as
    another: no ledger is added twice. Small ledgers share commits of the table. It has the columns
    of the ledgers behind ``_ledger_id``, ``_entry_id`` and ``_row``.

    Args:
        path: of the table; made when there is none.
        ledger_ids: which ledgers; without them and without ``log``, all there are.
        log: the ledgers of this log, in its order, as far as they are closed.
        release: have bookies drop copies of what is in the table, once every entry was made
            again of it and compared byte for byte. Reads then come from the table where no
            copy is left, and nothing else changes for who reads. One row more for each ledger.
        keep: with ``release``, copies of every entry that stay on bookies; 0 is none.
        dry_run: only say what there is to do.
        progress: called with phase, ledgers done, ledgers in all, bytes so far; ``None`` shows
            it.

    Raises:
        InvalidArgumentError: both ledgers and a log were given; the table has the ledgers of
            another cluster; or ``release``, and readers could not find the table at ``path``.
        NoSuchLogError: there is no such log.
        MissingRequirementError: the session has no Delta; ``spark_session(delta=True)`` has.
        BookKeeperError: somebody cancelled a Spark job of the archive. What was committed is
            whole, and nothing was released. Run it again to do the rest.
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
    """The table at a path, as it takes rows.

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

    Each run copies what is new, and ends with a snapshot of what it saved, unless that is nothing.
    A ledger that is not closed is copied up to its last add confirmed, and its writer goes on.

    Args:
        uri: a path or an fsspec URI; made when it is not there. It will hold what the ledgers
            hold, and their passwords. A relative path is of this process's directory.
        ledger_ids: which; without them and without ``log`` all, with logs and consumers.
        log: the ledgers of this log, with its list and consumers.
        in_table: put the rows of closed ledgers into a Delta table at ``uri``, as
            ``archive_to_delta`` does, and prove that every entry comes back from it byte for
            byte. What it cannot give back exactly, and what is not closed, is copied to
            ``_spark_bookkeeper/backup`` in the table's directory, where the snapshots are.
        verify: read again also what earlier runs copied, and mend it.
        dry_run: only say what would be copied.
        progress: called with phase, items done, items in all, bytes so far; ``None`` shows it.

    Returns:
        a row for each ledger, whose ``target`` is the table if that stands for it; ``snapshot``
        is the number of the one that was put.

    Raises:
        InvalidArgumentError: both ledgers and a log, or something else is at ``uri``, or nothing
            can be written there.
        NoSuchLogError: there is no such log.
        MissingRequirementError: ``in_table``, and the session has no Delta;
            ``spark_session(delta=True)`` has.
        BookKeeperError: ``in_table``, and the table cannot be read, or somebody cancelled a Spark
            job of it. No snapshot was put. Run it again to do the rest.
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
    """The table of a backup, for a run."""
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

    Ids, entries, positions, labels, digests and passwords are those that they were. What was
    not closed is closed at the last entry that the backup has. The cluster should be empty:
    an id that it has used is not taken. Parts of a backup may be restored one after the other.

    Args:
        uri: of the backup, as ``backup`` was given it, also when that was a table's.
        ledger_ids: which; without them and without ``log``, all of the snapshot.
        log: this log and its ledgers.
        snapshot: its number; ``None`` is the newest.
        dry_run: only say what would be restored.
        progress: called with phase, items done, items in all, bytes so far; ``None`` shows it.

    Returns:
        a row for each ledger and log; ``snapshot`` is the number of the one that was taken, and
        ``remark`` says what an older one has besides.

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
    """Give up restores that did not end: garbage collection takes what they have copied.

    A ledger that was forgotten cannot be restored to this cluster any more; what is whole
    stays. To go on with a restore, call ``restore`` again instead.

    Args:
        ledger_ids: which; ``None`` is all whose restore did not end.
        dry_run: only say which they are, and what would be taken.
        progress: called with phase, items done, items in all, bytes so far; ``None`` shows it.

    Returns:
        a row for each bookie that has such copies, with their bytes.

    Raises:
        InvalidArgumentError: a restore runs, or none has begun with such a ledger.
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
