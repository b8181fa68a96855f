"""Becoming the writer of a log, and adding ledgers to it.

A process that wants to lead reads the list, fences the last two ledgers, creates a ledger and adds
it to the list by compare-and-swap. Only then it accepts writes. The fences stop the previous
leader. The compare-and-swap admits one of several candidates.

A crash between two of these steps leaves at most one ledger. It is empty, no list names it, and no
other process can write it.

Source: The BookKeeper protocol, "Ledgers to logs", "Opening a log".
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.recover.recovery import recover_ledger
from spark_bookkeeper.client.write.bulk import Frames
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import (
    BookKeeperError,
    LogOwnershipLostError,
    NoSuchLedgerError,
    NoSuchLogError,
)
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.metadata import logs
from spark_bookkeeper.protocol.ids import NO_ENTRY, LedgerId
from spark_bookkeeper.protocol.log import LogHead

_log = logging.getLogger(__name__)

ATTEMPTS_MAX = 10
"""Number of attempts. If all are lost, another process leads, or believes that it does."""


class OvertakenError(Exception):
    """Another client added a ledger first, and this ledger is not in the list."""


class FollowedError(Exception):
    """This ledger is in the list, but another client fenced it and added one after it."""


def take_over(
    context: ClientContext,
    name: str,
    nonce: str,
    frames: Frames | None,
    is_leader: Callable[[], bool] | None = None,
) -> LedgerWriter:
    """Fence the current writer of a log, and return the writer of its new last ledger.

    Args:
        context: the cluster.
        name: name of the log.
        nonce: identifies one life of the log.
        frames: the access to Spark DataFrames.
        is_leader: called after a lost race; false ends the attempts. By default all are made.

    Raises:
        NoSuchLogError: the log was deleted.
        LogOwnershipLostError: others were faster each time, or ``is_leader`` returned false.
        RecoveryUndecidedError, NotEnoughBookiesError: as ``open_ledger`` and ``create_ledger``.
        MetadataUnavailableError: repeat it; a ledger that was added to the log is empty.
    """
    newest = LedgerId(NO_ENTRY)
    for _ in range(ATTEMPTS_MAX):
        head = logs.read_life(context.store.registers, name, nonce)
        newest = newest if head.newest is None else head.newest
        recover_last(context, head)
        writer = new_ledger(context, name, head, frames)
        try:
            add_to_list(context, name, head, writer.ledger_id)
        except (OvertakenError, FollowedError) as error:
            withdraw(context, writer, error)
            if is_leader is not None and not is_leader():
                break
        except NoSuchLogError as error:
            withdraw(context, writer, error)
            raise
        except BaseException:
            writer.abandon()
            raise
        else:
            return writer
    raise LogOwnershipLostError(
        f"another writer of log {name!r} was faster. Nothing was written. Find out who is to "
        "lead before you try again",
        log=name,
        ledger_id=newest,
    )


def recover_last(context: ClientContext, head: LogHead) -> None:
    """Fence the current writer of a log. Afterwards its last two ledgers are closed or deleted.

    Raises:
        RecoveryUndecidedError: the end of one of them cannot be found now.
    """
    for ledger_id in head.to_fence:
        try:
            recover_ledger(context, ledger_id)
        except NoSuchLedgerError:
            continue  # a deleted ledger has no writer


def new_ledger(
    context: ClientContext, name: str, head: LogHead, frames: Frames | None
) -> LedgerWriter:
    """Create a ledger with the log's options, which no list names yet.

    Ids ascend along a log, so a ledger whose id is not above all listed ones is withdrawn.
    """
    options = LogOptions.from_json(name, head.options)
    while True:
        writer = lifecycle.create_ledger(
            context,
            options.quorum,
            schema=options.schema,
            password=options.password,
            digest_type=options.digest_type,
            log=name,
            compression=options.compression,
            entry_target_bytes=options.entry_target_bytes,
            frames=frames,
        )
        if head.newest is None or writer.ledger_id > head.newest:
            return writer
        withdraw(context, writer)


def add_to_list(context: ClientContext, name: str, head: LogHead, ledger_id: LedgerId) -> None:
    """Add a ledger to the list, if the list still ends as ``head`` does.

    Raises:
        OvertakenError: another client added a ledger. This one is not in the list.
        FollowedError: the ledger was added, the reply was lost, and another one follows it.
        NoSuchLogError: the log was deleted, so the ledger is not in its list.
        MetadataUnavailableError: the ledger may or may not be in the list.
    """

    def step(old: LogHead) -> LogHead | None:
        if old.newest == ledger_id:
            return None  # an earlier attempt added it, and its reply was lost
        if old.newest != head.newest:
            raise FollowedError if old.may_hold(ledger_id) else OvertakenError
        return old.with_ledger(ledger_id)

    seal_oldest(context, name, logs.change_log(context.store.registers, name, head.nonce, step))


def withdraw(context: ClientContext, writer: LedgerWriter, error: Exception | None = None) -> None:
    """Delete an empty ledger, or only abandon it if a list names it.

    Args:
        context: the cluster.
        writer: the writer of the ledger.
        error: the reason why ``add_to_list`` did not make it the newest ledger.
    """
    if isinstance(error, FollowedError):
        writer.abandon()
        return
    try:
        writer.close()
        lifecycle.delete_ledger(context, writer.ledger_id)
    except BookKeeperError as error:
        writer.abandon()
        _log.info("ledger %d of no log, and empty, stays: %s", writer.ledger_id, error)


def seal_oldest(context: ClientContext, name: str, head: LogHead) -> None:
    """Move the oldest ledgers from the head to a chunk, if there are many. Errors are logged."""
    due = head.to_seal()
    if not due:
        return
    registers = context.store.registers
    chunk = context.runtime.token()

    def step(old: LogHead) -> LogHead | None:
        return old.with_chunk(chunk, due) if old.recent[: len(due)] == due else None

    try:
        logs.write_chunk(registers, name, chunk, due)
        logs.change_log(registers, name, head.nonce, step)
    except BookKeeperError as error:
        _log.info("the list of log %s stays as long as it is for now: %s", name, error)
