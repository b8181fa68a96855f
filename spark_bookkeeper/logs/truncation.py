"""Removing the beginning of a log, by hand or by its retention, and deleting a log.

First the mark in the head moves, by compare-and-swap: from then on the ledgers before it are no
longer part of the log. Then they are deleted, and a second mark records it. A crash in between
leaves ledgers that the next truncation, or the next writer, deletes.

Source: The BookKeeper protocol, "Ledgers to logs" ("ledgers can only be deleted as a whole").
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.deletion import Deletion, noting
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.read.times import appended_at_ms_of
from spark_bookkeeper.errors import (
    BookKeeperError,
    EntryUnreadableError,
    InvalidArgumentError,
    MetadataFormatError,
    NoSuchLedgerError,
    NoSuchLogError,
)
from spark_bookkeeper.logs import truncation
from spark_bookkeeper.logs.consumers import needed_from
from spark_bookkeeper.logs.listing import list_ledgers
from spark_bookkeeper.logs.opening import recover_last
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.metadata import consumers, logs
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import NO_ENTRY, EntryId, LedgerId
from spark_bookkeeper.protocol.log import NOWHERE, LogHead, Position
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.runtime.log_facts import about

_log = logging.getLogger(__name__)


def truncate(context: ClientContext, name: str, nonce: str, before: LedgerId) -> list[LedgerId]:
    """Remove the ledgers below ``before``, never the newest; return the deleted ones.

    A ledger that is still open is kept until the next truncation, with those after it: its writer
    may be rolling, and then still appends to it.

    Raises:
        NoSuchLogError: the log was deleted.
        MetadataUnavailableError: repeat the call, which completes what was begun.
    """
    head, listed = list_ledgers(context, name, nonce)
    gone = _going(context, head, listed, before)
    if gone:
        # Directly after the last removed ledger: a reader of all of it then knows it missed none.
        begins_at, end = LedgerId(gone[-1] + 1), _end_of(context, gone)
        head = logs.change_log(
            context.store.registers, name, nonce, lambda old: old.truncated(begins_at, end)
        )
    return finish(context, name, head)


def planned(context: ClientContext, name: str, nonce: str, before: LedgerId) -> list[LedgerId]:
    """Return the ledgers that ``truncate`` would delete now, with leftovers of an earlier one.

    A ledger that cannot be decoded is left out, since it stays.

    Raises:
        NoSuchLogError: the log was deleted.
    """
    head, listed = list_ledgers(context, name, nonce)
    left = _left(context, name, head)[1] if head.unfinished() else []
    found = context.store.read_ledgers([*left, *_going(context, head, listed, before)])
    return [ledger_id for ledger_id, metadata in found if isinstance(metadata, Versioned)]


def _going(
    context: ClientContext, head: LogHead, listed: Sequence[LedgerId], before: LedgerId
) -> list[LedgerId]:
    gone = [ledger for ledger in listed if ledger < before and ledger != head.newest]
    if gone and gone[-1] in head.to_fence and not _is_closed(context, gone[-1]):
        gone.pop()  # the ledgers before it are closed: one-open-ledger-per-log
    return gone


def _end_of(context: ClientContext, ledgers: Sequence[LedgerId]) -> Position | None:
    """Return the position after the last entry of closed ledgers; see ``LogHead.truncated``."""
    for ledger_id in reversed(ledgers):
        try:
            last = context.store.read_ledger(ledger_id).value.last_entry_id
        except (NoSuchLedgerError, MetadataFormatError):
            return None
        if last != NO_ENTRY:
            return None if last is None else Position(ledger_id, EntryId(last + 1))
    return NOWHERE


def _left(context: ClientContext, name: str, head: LogHead) -> tuple[LogHead, list[LedgerId]]:
    """Return the current head of a log, and its truncated ledgers that still exist."""
    head, listed = list_ledgers(context, name, head.nonce, first=head.deleted_below)
    return head, [ledger for ledger in listed if ledger < head.begins_at]


def _is_closed(context: ClientContext, ledger_id: LedgerId) -> bool:
    """Whether a ledger is closed or deleted. One that cannot be decoded counts as open."""
    try:
        return context.store.read_ledger(ledger_id).value.is_closed
    except NoSuchLedgerError:
        return True
    except MetadataFormatError as error:
        _log.warning("a truncation ends before ledger %d: %s", ledger_id, error.message)
        return False


def ended_before(
    context: ClientContext, name: str, nonce: str, time_ms: int, most: LedgerId | None = None
) -> LedgerId | None:
    """Return a log's first ledger that was still written after a time; ``None`` without ledgers.

    A ledger ended with its last entry, not when the next one was created: a write of many rows
    creates its ledger long before it adds it to the log, and meanwhile the ledger before it grows.
    The newest ledger has not ended. The times are those of the writers' clocks, in milliseconds
    since 1970: for users, and never for a decision about safety.

    Args:
        context: the cluster.
        name: name of the log.
        nonce: identifies one life of the log.
        time_ms: the time.
        most: the first ledger with this id or a higher one is the last that may be returned,
            however long ago it ended. No bookie is queried about it or about later ones.

    Raises:
        EntryUnreadableError: bookies that do not answer may know when the error's ledger ended. All
            ledgers before it had ended by then.
    """
    _, listed = list_ledgers(context, name, nonce)
    if most is not None:
        listed = listed[: bisect_left(listed, most) + 1]
    first: LedgerId | None = None
    before: LedgerMetadata | None = None
    for ledger_id, found in context.store.read_ledgers(listed):
        if found is None:
            continue  # an operator deleted it: it keeps no entries
        metadata = found.value if isinstance(found, Versioned) else None
        if first is not None:
            has_ended = _ended_by(context, first, before, time_ms)
            if has_ended is None:  # not known; it had ended when the next one was created
                has_ended = metadata is not None and _began_by(metadata, time_ms)
            if not has_ended:
                break
        first, before = ledger_id, metadata
    return first


def _began_by(metadata: LedgerMetadata, time_ms: int) -> bool:
    return metadata.ctime_ms is not None and metadata.ctime_ms <= time_ms


def _ended_by(
    context: ClientContext, ledger_id: LedgerId, metadata: LedgerMetadata | None, time_ms: int
) -> bool | None:
    """Whether no entry of a ledger was appended after a time; ``None`` if that is not known.

    The time of an entry is unknown if an earlier version wrote it, or if all bookies answer that
    they do not have it. A lost entry must not keep its ledger, and all later ones, for ever. But
    the ledgers before it may be young.
    """
    if metadata is None:  # the metadata cannot be decoded
        return None
    last = metadata.last_entry_id
    if last is None or not _began_by(metadata, time_ms):
        return False
    if last == NO_ENTRY:
        return True
    ledger = Ledger.of(ledger_id, metadata)
    appended_at_ms = appended_at_ms_of(context, ledger, last, lost_is_old=True)
    return None if appended_at_ms is None else appended_at_ms <= time_ms


def finish(context: ClientContext, name: str, head: LogHead) -> list[LedgerId]:
    """Delete the ledgers that truncations removed from a log and that still exist.

    A ledger that cannot be decoded stays, and the mark stays before it; later ones are deleted.
    """
    if not head.unfinished():
        return []
    registers = context.store.registers
    head, doomed = _left(context, name, head)
    through = head.begins_at
    with noting(context, "truncate_log", f"log {name}") as deleted:
        for ledger_id in doomed:
            try:
                deleted.append(lifecycle.delete_ledger(context, ledger_id))
            except (MetadataFormatError, InvalidArgumentError) as error:
                through = min(through, ledger_id)
                _log.warning("log %s was truncated, and one ledger stays: %s", name, error.message)
    after = logs.change_log(registers, name, head.nonce, lambda old: old.deleted(through))
    for chunk in head.forgotten_chunks(after):
        logs.delete_chunk(registers, name, chunk)
    return [each.ledger_id for each in deleted]


def delete(context: ClientContext, name: str) -> list[Deletion]:
    """Delete a log and all its ledgers; return them. A missing log counts as deleted.

    The writer, if any, is fenced first. Ledgers that a failed deletion leaves are deleted by a
    repeat, or when a log of that name is created.

    Raises:
        RecoveryUndecidedError: the end of its newest ledgers cannot be found now, so they are not
            closed. The log exists as before.
        MetadataFormatError, MetadataUnavailableError: some ledgers stay. The error is that of the
            first one: follow its remedy, and repeat the call.
    """
    head = logs.find_log(context.store.registers, name)
    if head is not None:
        _mark_deleted(context, name, head)
    return finish_deletion(context, name)


def finish_deletion(context: ClientContext, name: str) -> list[Deletion]:
    """Delete the remaining ledgers of a log that was deleted; otherwise do nothing.

    Raises the errors of ``delete``, after it has deleted all ledgers that it can.
    """
    registers = context.store.registers
    head = logs.find_life(registers, name)
    if head is None or not head.is_deleted:
        return []
    logs.delete_staged(registers, name)
    consumers.forget_life(registers, name, head.nonce)
    if not (head.chunks or head.recent):
        return []
    stays: BookKeeperError | None = None

    def delete_all(found: Iterable[LedgerId]) -> None:
        nonlocal stays
        for ledger_id in found:
            try:
                deleted.append(lifecycle.delete_ledger(context, ledger_id))
            except BookKeeperError as error:  # raised below, after the other ledgers are deleted
                stays = stays or error

    with noting(context, "delete_log", f"log {name}") as deleted:
        for chunk in head.chunks:
            try:
                delete_all(logs.read_chunk(registers, name, chunk) or ())
            except MetadataFormatError as error:
                stays = stays or error
        delete_all(head.recent)
    if stays is not None:
        raise stays
    for chunk in head.chunks:
        logs.delete_chunk(registers, name, chunk)
    logs.empty_deleted(registers, name, head.nonce)
    return deleted


def _mark_deleted(context: ClientContext, name: str, head: LogHead) -> None:
    """Fence the writer of one life of a log, and mark that life deleted."""
    while not head.is_deleted:
        recover_last(context, head)
        newest = head.newest

        def step(old: LogHead, newest: LedgerId | None = newest) -> LogHead | None:
            return replace(old, is_deleted=True) if old.newest == newest else None

        try:
            head = logs.mark_deleted(context.store.registers, name, head.nonce, step)
        except NoSuchLogError:  # another client deleted it, and created a log of that name again
            return


def retain(context: ClientContext, name: str, nonce: str, options: LogOptions) -> None:
    """Truncate a log by its retention. Errors are logged, and the next call tries again."""
    if options.retain_seconds is None:
        return
    try:
        # Followers first: ledgers that they still need are not checked, however many there are.
        needed: LedgerId | None = None
        if options.retain_for:
            needed = needed_from(context, name, nonce, options.retain_for)
            if needed is None:
                return
        first = _ended(context, name, nonce, options.retain_seconds, needed)
        if first is not None:
            truncation.truncate(context, name, nonce, first)
    except BookKeeperError as error:
        _log.warning("log %s was not truncated: %s", name, error.message, extra=about(log=name))


def _ended(
    context: ClientContext, name: str, nonce: str, seconds: int, needed: LedgerId | None
) -> LedgerId | None:
    """Return the first ledger that stays; ``None`` if the log has no ledgers."""
    time_ms = context.earlier_ms() - seconds * 1000
    try:
        return truncation.ended_before(context, name, nonce, time_ms, needed)
    except EntryUnreadableError as error:  # the ledgers before it have ended
        _log.warning(
            "retention of log %s stops before ledger %d: %s",
            *(name, error.ledger_id, error.message),
            extra=about(log=name),
        )
        return LedgerId(error.ledger_id)
