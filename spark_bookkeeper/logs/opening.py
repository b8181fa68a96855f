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

from spark_bookkeeper.client import ledgers
from spark_bookkeeper.client.bulk import Frames
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.recovery import recover_ledger
from spark_bookkeeper.client.writer import LedgerWriter
from spark_bookkeeper.errors import (
    BookKeeperError,
    LogOwnershipLostError,
    NoSuchLedgerError,
    NoSuchLogError,
    VersionConflictError,
)
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.metadata import logs
from spark_bookkeeper.protocol.ids import NO_ENTRY, LedgerId
from spark_bookkeeper.protocol.log import LogHead

_log = logging.getLogger(__name__)

ATTEMPTS_MAX = 10
"""Lost races after which one gives up: others lead, or believe to."""


class OvertakenError(Exception):
    """Somebody else added a ledger first."""


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
        for ledger_id in head.to_fence:
            try:
                recover_ledger(context, ledger_id)
            except NoSuchLedgerError:
                continue  # deleted: nobody writes it any more
        try:
            return add_ledger(context, name, head, frames)
        except OvertakenError:
            if is_leader is not None and not is_leader():
                break
    raise LogOwnershipLostError(
        f"another writer of log {name!r} was faster. Nothing was written. Find out who is to "
        "lead before you try again",
        log=name,
        ledger_id=newest,
    )


def add_ledger(
    context: ClientContext, name: str, head: LogHead, frames: Frames | None
) -> LedgerWriter:
    """Create a ledger and add it to the list, if its end is still the one in ``head``.

    Raises:
        OvertakenError: it is not. The ledger that was created for it is gone again.
        NoSuchLogError: the log was deleted. So is the ledger.
    """
    writer = _newer_ledger(context, name, head, frames)

    def step(old: LogHead) -> LogHead | None:
        if old.newest == writer.ledger_id:
            return None  # an earlier attempt did it
        if old.newest != head.newest:
            raise OvertakenError
        return old.with_ledger(writer.ledger_id)

    try:
        with_it = logs.change_log(context.store.registers, name, head.nonce, step)
    except (OvertakenError, BookKeeperError) as error:
        writer.abandon()
        if isinstance(error, OvertakenError) or _is_certain(error):
            ledgers.delete_ledger(context, writer.ledger_id)
        raise
    _seal(context, name, with_it)
    return writer


def _newer_ledger(
    context: ClientContext, name: str, head: LogHead, frames: Frames | None
) -> LedgerWriter:
    """A ledger whose id is above all in the list, since they ascend along a log."""
    options = LogOptions.from_json(name, head.options)
    while True:
        writer = ledgers.create_ledger(
            context,
            options.quorum,
            schema=options.schema,
            password=options.password,
            digest_type=options.digest_type,
            labels={"log": name.encode()},
            compression=options.compression,
            entry_target_bytes=options.entry_target_bytes,
            frames=frames,
        )
        if head.newest is None or writer.ledger_id > head.newest:
            return writer
        writer.abandon()
        ledgers.delete_ledger(context, writer.ledger_id)


def _is_certain(error: BookKeeperError) -> bool:
    """Whether the ledger is certainly not in the list."""
    return isinstance(error, NoSuchLogError | VersionConflictError)


def _seal(context: ClientContext, name: str, head: LogHead) -> None:
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
