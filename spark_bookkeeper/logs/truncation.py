"""Taking the beginning off a log, and deleting a log.

The mark in the head moves first, by compare-and-swap: from then on the ledgers before it are no
longer part of the log. Then they are deleted, and a second mark says so. A crash in between
leaves ledgers that the next truncation, or the next writer, deletes.

Source: The BookKeeper protocol, "Ledgers to logs" ("ledgers can only be deleted as a whole").
"""

from __future__ import annotations

from dataclasses import replace

from spark_bookkeeper.client import ledgers
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.recovery import recover_ledger
from spark_bookkeeper.errors import NoSuchLedgerError
from spark_bookkeeper.logs.listing import list_ledgers
from spark_bookkeeper.metadata import logs
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.log import LogHead


def truncate(context: ClientContext, name: str, nonce: str, before: LedgerId) -> list[LedgerId]:
    """Remove the ledgers below ``before``, the newest never; returns those that were deleted.

    A ledger that its writer is just closing stays until the next truncation.

    Raises:
        NoSuchLogError: the log was deleted.
        MetadataUnavailableError: repeat it; nothing is half done that a repeat does not finish.
    """
    head, listed = list_ledgers(context, name, nonce)
    gone = [ledger for ledger in listed if ledger < before and ledger != head.newest]
    if gone:
        # Right behind the last one that goes, so that whoever has read it knows that he lost none.
        begins_at = LedgerId(gone[-1] + 1)
        head = logs.change_log(
            context.store.registers, name, nonce, lambda old: old.truncated(begins_at)
        )
    return finish(context, name, head)


def ended_before(context: ClientContext, name: str, nonce: str, time_ms: int) -> LedgerId | None:
    """The first ledger of a log that was still written at a time, or later; ``None`` if there is
    none.

    A ledger ends when the next one begins. The times are those of the writers' clocks, in
    milliseconds since 1970: for people, and never for a decision about safety.
    """
    _, listed = list_ledgers(context, name, nonce)
    first: LedgerId | None = None
    for ledger_id, found in context.store.read_ledgers(listed):
        began_ms = found.value.ctime_ms if isinstance(found, Versioned) else None
        if first is None or (began_ms is not None and began_ms <= time_ms):
            first = ledger_id
        else:
            break
    return first


def finish(context: ClientContext, name: str, head: LogHead) -> list[LedgerId]:
    """Delete what truncations of a log have taken off it and not deleted yet."""
    if not head.unfinished():
        return []
    registers = context.store.registers
    head, listed = list_ledgers(context, name, head.nonce, first=head.deleted_below)
    doomed = [ledger for ledger in listed if ledger < head.begins_at]
    deleted: list[LedgerId] = []
    through = head.begins_at
    for ledger_id in doomed:
        try:
            is_closed = context.store.read_ledger(ledger_id).value.is_closed
        except NoSuchLedgerError:
            continue
        if not is_closed:
            through = ledger_id
            break
        ledgers.delete_ledger(context, ledger_id)
        deleted.append(ledger_id)
    after = logs.change_log(registers, name, head.nonce, lambda old: old.deleted(through))
    for chunk in head.forgotten_chunks(after):
        logs.delete_chunk(registers, name, chunk)
    return deleted


def delete(context: ClientContext, name: str) -> None:
    """Delete a log with all its ledgers; one that is not there counts as deleted.

    Its writer, if there is one, is fenced first.

    Raises:
        RecoveryUndecidedError: the end of its newest ledgers cannot be found now, so they are not
            closed. The log is there as before.
    """
    registers = context.store.registers
    head = logs.find_log(registers, name)
    if head is None:
        return
    while True:
        for ledger_id in head.to_fence:
            try:
                recover_ledger(context, ledger_id)
            except NoSuchLedgerError:
                continue
        newest = head.newest

        def step(old: LogHead, newest: LedgerId | None = newest) -> LogHead | None:
            return replace(old, is_deleted=True) if old.newest == newest else None

        head = logs.mark_deleted(registers, name, head.nonce, step)
        if head.is_deleted:
            break
    for chunk in head.chunks:
        for ledger_id in logs.read_chunk(registers, name, chunk) or ():
            ledgers.delete_ledger(context, ledger_id)
        logs.delete_chunk(registers, name, chunk)
    for ledger_id in head.recent:
        ledgers.delete_ledger(context, ledger_id)
