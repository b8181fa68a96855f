"""Atomic writes to a log: one ledger each, written and closed before the log names it.

The rows of a write are in the log when its ledger is in the list, and not at all before: one
compare-and-swap adds the ledger and remembers the number of the write, if it has one. A write
whose number is remembered changes nothing; a stream is told if rows may be lost by that.

A write leads the log for the moment in which it adds its ledger, as every writer does: it fences
the last two ledgers before, so whoever had the log open is told that it lost it. The order is
that of the compare-and-swaps. Ledger ids ascend along a log, and the id of a write is given when
it begins. So a write that finds a higher one in the list copies its files, as they are, into a
ledger whose id is higher still, and tries again.

What a write that failed leaves behind, ``staged_writes.py`` removes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from spark_bookkeeper.client import staging
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.html import fields_table
from spark_bookkeeper.client.write.bulk import TaskResult
from spark_bookkeeper.client.write.columns import check_schema
from spark_bookkeeper.errors import (
    BookKeeperError,
    LedgerClosedError,
    LedgerFencedError,
    LogOwnershipLostError,
    NoSuchLedgerError,
)
from spark_bookkeeper.logs.listing import list_ledgers
from spark_bookkeeper.logs.opening import OvertakenError, recover_last, seal_oldest
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.logs.staged_writes import (
    StagedWrite,
    abort,
    forget_leftovers,
    note_of,
    remember,
)
from spark_bookkeeper.logs.truncation import retain
from spark_bookkeeper.metadata import logs
from spark_bookkeeper.protocol.ids import NO_ENTRY, EntryId, LedgerId
from spark_bookkeeper.protocol.log import LogHead
from spark_bookkeeper.protocol.transactions import Committed, MicroBatch, Transaction

_log = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 20
"""Copies made because others were faster, after which a write is given up."""


@dataclass(frozen=True, slots=True)
class LogWrite:
    """What became of a write to a log."""

    log: str
    ledger_id: LedgerId | None
    """The ledger with its rows; ``None`` when there were none."""
    last_entry_id: EntryId
    rows: int
    is_new: bool
    """False: a write with its number, or a higher one, was in the log already. Nothing was
    changed, and ``rows`` is what would have been written."""

    def _repr_html_(self) -> str:
        state = "written" if self.is_new else "was there already"
        fields = {"log": self.log, "ledger_id": self.ledger_id, "rows": self.rows}
        return fields_table({**fields, "state": state})


class DoneError(Exception):
    """The transaction is remembered already."""

    def __init__(self, last: Committed) -> None:
        super().__init__()
        self.last = last


def stage(
    context: ClientContext,
    name: str,
    transaction: Transaction | None = None,
    *,
    schema: pa.Schema | None = None,
    owner: str | None = None,
    nonce: str | None = None,
) -> StagedWrite:
    """Begin a write: create the ledger that tasks write to. The log is not changed.

    Args:
        context: the cluster.
        name: of the log.
        transaction: of the write, where it is known by now.
        schema: of the rows; compared with the log's before anything is created.
        owner: stands for whoever writes, in place of the transaction's application.
        nonce: of the life of the log that is meant; without it the one there is.

    Raises:
        NoSuchLogError: there is none of that name.
        InvalidArgumentError: the rows have another schema, or the log can remember no further
            application.
        NotEnoughBookiesError: as ``create_ledger``.
    """
    registers = context.store.registers
    head = (
        logs.read_log(registers, name) if nonce is None else logs.read_life(registers, name, nonce)
    )
    options = LogOptions.from_json(name, head.options)
    if schema is not None:
        check_schema(schema, options.schema)
    if transaction is not None:
        owner = transaction.app_id
        if head.transactions.done(transaction) is None:
            head.with_transaction(transaction)  # raises where there is no room
    behind = min(head.to_fence, default=None)
    plan = staging.stage(
        context,
        options.quorum,
        note_of(name, head.nonce, transaction, owner, behind),
        schema=options.schema,
        password=options.password,
        digest_type=options.digest_type,
        log=name,
        compression=options.compression,
        entry_target_bytes=options.entry_target_bytes,
    )
    staged = StagedWrite(name, head.nonce, plan, owner, behind)
    remember(context, staged)
    return staged


def is_done(context: ClientContext, name: str, transaction: Transaction) -> bool:
    """Whether a log remembers a transaction, or a later one of its application.

    Raises:
        NoSuchLogError: there is none of that name.
    """
    head = logs.read_log(context.store.registers, name)
    return head.transactions.done(transaction) is not None


def commit(
    context: ClientContext,
    staged: StagedWrite,
    results: Sequence[TaskResult],
    transaction: Transaction | None = None,
) -> LogWrite:
    """Add what tasks wrote to the log: all of it, once, or nothing.

    Args:
        context: the cluster.
        staged: of ``stage``, in whichever process.
        results: one for each task, of the attempt that succeeded.
        transaction: a number with which it is not written twice.

    Raises:
        NoSuchLogError: the log was deleted meanwhile. Nothing was added.
        LogOwnershipLostError: others were faster each time. Nothing was added.
        MetadataUnavailableError: it may or may not have been added; with a transaction repeat it
            all, and it is there once.
        InvalidArgumentError: a batch of a stream that is not the last one again.
        BookKeeperError: other errors mean that nothing was added.
    """
    if not any(result.entries for result in results):
        return _commit_nothing(context, staged, transaction)
    note = note_of(staged.log, staged.nonce, transaction, staged.owner, staged.behind)
    left = list[StagedWrite]()
    for _ in range(ATTEMPTS_MAX):
        try:
            written = _attempt(context, staged, results, transaction, note)
        except (OvertakenError, LedgerFencedError, LedgerClosedError, NoSuchLedgerError) as error:
            _log.info("a write to log %s is staged anew: %r", staged.log, error)
        except BookKeeperError:
            abort(context, staged)
            raise
        else:
            for each in left if written.is_new else (*left, staged):
                abort(context, each)
            if written.is_new:
                forget_leftovers(context, staged)
            return written
        before = staged
        plan, results = staging.restage(context, staged.plan, results, note, staged.log)
        staged = replace(staged, plan=plan)
        remember(context, staged)
        if not abort(context, before):
            left.append(before)  # certainly not added when the list has gone past it
    abort(context, staged)
    raise LogOwnershipLostError(
        f"others added ledgers to log {staged.log!r} more quickly than this write could follow, "
        f"{ATTEMPTS_MAX} times in a row. Nothing was added; repeat it when fewer write, or in "
        "smaller pieces",
        log=staged.log,
        ledger_id=staged.ledger_id,
    )


def _attempt(
    context: ClientContext,
    staged: StagedWrite,
    results: Sequence[TaskResult],
    transaction: Transaction | None,
    note: bytes,
) -> LogWrite:
    """Close the ledger and add it.

    Raises:
        OvertakenError, LedgerFencedError, LedgerClosedError, NoSuchLedgerError: it needs another.
    """
    ledger_id, rows = staged.ledger_id, sum(result.rows for result in results)
    head = logs.read_life(context.store.registers, staged.log, staged.nonce)
    try:
        if transaction is not None and (last := head.transactions.done(transaction)):
            raise DoneError(last)
        if head.newest is not None and head.newest >= ledger_id:
            raise OvertakenError
        sealed = staging.seal(context, staged.plan, results, {staging.STAGED: note})
        head = add_sealed(context, staged.log, staged.nonce, ledger_id, transaction)
    except DoneError as error:
        assert transaction is not None, "without one nothing was done before"
        return _done_before(staged.log, transaction, rows, error.last)
    assert sealed.last_entry_id is not None, "a closed ledger has an end"
    retain(context, staged.log, staged.nonce, LogOptions.from_json(staged.log, head.options))
    return LogWrite(staged.log, ledger_id, sealed.last_entry_id, rows, is_new=True)


def add_sealed(
    context: ClientContext,
    name: str,
    nonce: str,
    ledger_id: LedgerId,
    transaction: Transaction | None,
) -> LogHead:
    """Add a closed ledger behind the end of a log, whose writer is fenced before.

    Returns:
        the log then.

    Raises:
        OvertakenError: the list has come to a higher id without it.
        DoneError: the transaction is remembered, and this ledger is not the one that holds it.
        NoSuchLogError: the log was deleted.
        RecoveryUndecidedError: the end of the newest ledgers cannot be found now.
        MetadataUnavailableError: it may or may not have been added.
    """
    registers = context.store.registers
    while True:
        head = logs.read_life(registers, name, nonce)
        if head.newest is not None and head.newest > ledger_id:
            raise OvertakenError
        recover_last(context, head)
        try:
            added = logs.change_log(
                registers, name, nonce, _step_to_add(head, ledger_id, transaction)
            )
        except (DoneError, OvertakenError) as error:
            if ledger_id in list_ledgers(context, name, nonce, ledger_id)[1]:
                return head  # an answer was lost, and others went on
            if isinstance(error, DoneError):
                raise
            continue
        seal_oldest(context, name, added)
        return added


def _done_before(name: str, transaction: Transaction, rows: int, last: Committed) -> LogWrite:
    """Nothing was written, as the log has it. Raises ``InvalidArgumentError``: a batch of a stream
    that it may not have.
    """
    if isinstance(transaction, MicroBatch):
        transaction.check_repeats(last, name)
    holder = last.ledger_id if last.version == transaction.version else None
    return LogWrite(name, holder, NO_ENTRY, rows, is_new=False)


def _step_to_add(
    head: LogHead, ledger_id: LedgerId, transaction: Transaction | None
) -> Callable[[LogHead], LogHead | None]:
    """What adds a ledger behind the end that was fenced, which is that of ``head``."""

    def step(old: LogHead) -> LogHead | None:
        if old.newest == ledger_id:
            return None  # an earlier attempt, whose answer was lost
        if transaction is not None and (last := old.transactions.done(transaction)):
            raise DoneError(last)
        if old.newest != head.newest:
            raise OvertakenError
        added = old.with_ledger(ledger_id)
        return added if transaction is None else added.with_transaction(transaction)

    return step


def forget_application(context: ClientContext, name: str, nonce: str, app_id: str) -> None:
    """Remember nothing of an application any more; idempotent."""
    logs.change_log(
        context.store.registers,
        name,
        nonce,
        lambda old: replace(old, transactions=old.transactions.without(app_id)),
    )


def _commit_nothing(
    context: ClientContext, staged: StagedWrite, transaction: Transaction | None
) -> LogWrite:
    """A write without rows: no ledger, and its number is remembered all the same."""
    is_new = transaction is None
    last: Committed | None = None

    def step(old: LogHead) -> LogHead | None:
        nonlocal is_new, last
        assert transaction is not None, "asked for a transaction only"
        last = old.transactions.done(transaction)
        if last is not None:
            return None  # or an earlier attempt of this very call did it, which is new
        is_new = True
        return old.with_transaction(transaction)

    try:
        if transaction is not None:
            logs.change_log(context.store.registers, staged.log, staged.nonce, step)
    finally:
        abort(context, staged)
    if transaction is not None and last is not None and not is_new:
        return replace(_done_before(staged.log, transaction, 0, last), ledger_id=None)
    return LogWrite(staged.log, None, NO_ENTRY, 0, is_new=is_new)
