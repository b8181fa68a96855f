"""Becoming the writer of a log, and adding ledgers to it.

A node that believes to lead reads the list, fences the last two ledgers, creates a ledger and
adds it to the list by compare-and-swap; only then it accepts writes. The fences stop whoever led
before; the compare-and-swap lets one of several go through.

A crash between any two of these steps leaves at most a ledger that no list names, empty, and
writable by nobody else.

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
"""Lost races after which one gives up: others lead, or believe to."""


class OvertakenError(Exception):
    """Somebody else added a ledger first, and this one is not in the list."""


class FollowedError(Exception):
    """This ledger is in the list, and somebody else, who has fenced it, added one behind it."""


def take_over(
    context: ClientContext,
    name: str,
    nonce: str,
    frames: Frames | None,
    is_leader: Callable[[], bool] | None = None,
) -> LedgerWriter:
    """Fence whoever writes the log, and return the writer of its new last ledger.

    Args:
        context: the cluster.
        name: of the log.
        nonce: of its life.
        frames: the door to DataFrames.
        is_leader: asked again after a lost race, before the next attempt; by default one tries on.

    Raises:
        NoSuchLogError: it was deleted.
        LogOwnershipLostError: others were faster each time, or ``is_leader`` said no.
        RecoveryUndecidedError, NotEnoughBookiesError: as ``open_ledger`` and ``create_ledger``.
        MetadataUnavailableError: repeat it; a ledger that is in the log by then is empty.
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
    """Fence whoever writes the log: its last two ledgers are closed afterwards, or gone.

    Raises:
        RecoveryUndecidedError: the end of one cannot be found now.
    """
    for ledger_id in head.to_fence:
        try:
            recover_ledger(context, ledger_id)
        except NoSuchLedgerError:
            continue  # deleted: nobody writes it any more


def new_ledger(
    context: ClientContext, name: str, head: LogHead, frames: Frames | None
) -> LedgerWriter:
    """A ledger made as the log says, which no list names yet.

    Its id is above all in the list, since they ascend along a log.
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
    """Add a ledger to the list, if its end is still the one in ``head``.

    Raises:
        OvertakenError: it is not, since somebody else added one. This one is not in the list.
        FollowedError: an answer was lost, and somebody else added one behind it.
        NoSuchLogError: the log was deleted, so it is not in the list either.
        MetadataUnavailableError: it may or may not be.
    """

    def step(old: LogHead) -> LogHead | None:
        if old.newest == ledger_id:
            return None  # an earlier attempt did it
        if old.newest != head.newest:
            raise FollowedError if old.may_hold(ledger_id) else OvertakenError
        return old.with_ledger(ledger_id)

    seal_oldest(context, name, logs.change_log(context.store.registers, name, head.nonce, step))


def withdraw(context: ClientContext, writer: LedgerWriter, error: Exception | None = None) -> None:
    """Give up an empty ledger: one that is in no list is removed.

    Args:
        context: the cluster.
        writer: of the ledger.
        error: why ``add_to_list`` did not make it the newest one.
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
    """Move the oldest ledgers out of the head when there are many; whoever fails leaves it so."""
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
