"""Atomic writes to a log: each one is a ledger that is closed before the log's list names it.

The rows of a write are in the log exactly when its ledger is in the list. One compare-and-swap adds
the ledger and remembers the number of the write, if it has one. A write whose number is remembered
changes nothing; for a stream, an error is raised if that may lose rows.

A write becomes the writer of the log for the moment in which it adds its ledger: it fences the last
two ledgers first, so the current writer loses the log. The compare-and-swaps give the order. Ledger
ids ascend along a log, but a write gets its id when it begins. So a write that finds a higher id in
the list copies its files, as they are, into a ledger with a still higher id, and tries again.

``staged_writes.py`` removes what a failed write leaves behind.
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
"""Number of attempts, each with its own copy, after which a write fails."""


@dataclass(frozen=True, slots=True)
class LogWrite:
    """The result of a write to a log."""

    log: str
    ledger_id: LedgerId | None
    """The ledger with the rows; ``None`` when there were none."""
    last_entry_id: EntryId
    rows: int
    is_new: bool
    """False: the log already had a write with this number or a higher one. Nothing was changed, and
    ``rows`` is the number of rows that would have been written."""

    def _repr_html_(self) -> str:
        state = "written" if self.is_new else "was there already"
        fields = {"log": self.log, "ledger_id": self.ledger_id, "rows": self.rows}
        return fields_table({**fields, "state": state})


class DoneError(Exception):
    """The log already remembers the transaction."""

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
        name: name of the log.
        transaction: the transaction of the write, if it is known already.
        schema: schema of the rows; compared with the log's before anything is created.
        owner: identifies the writer; replaced by the application of a ``transaction``.
        nonce: identifies one life of the log; by default the current one.

    Raises:
        NoSuchLogError: no log has that name.
        InvalidArgumentError: the rows have another schema, or the log cannot remember one more
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
            head.with_transaction(transaction)  # raises when the log is full of applications
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
        NoSuchLogError: no log has that name.
    """
    head = logs.read_log(context.store.registers, name)
    return head.transactions.done(transaction) is not None


def commit(
    context: ClientContext,
    staged: StagedWrite,
    results: Sequence[TaskResult],
    transaction: Transaction | None = None,
) -> LogWrite:
    """Add the rows that tasks wrote to the log, atomically and once.

    Args:
        context: the cluster.
        staged: the result of ``stage``, also of another process.
        results: one result for each task, from its successful attempt.
        transaction: a number that prevents a second write of the same rows.

    Raises:
        NoSuchLogError: the log was deleted meanwhile. Nothing was added.
        LogOwnershipLostError: others were faster each time. Nothing was added.
        MetadataUnavailableError: it may or may not have been added. With a transaction, repeat the
            whole write: the rows are then in the log once.
        InvalidArgumentError: a batch of a stream that does not repeat the last one.
        BookKeeperError: for all other errors, nothing was added.
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
            left.append(before)  # once the list has a higher id, it cannot be added
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
        OvertakenError, LedgerFencedError, LedgerClosedError, NoSuchLedgerError: the rows need
            another ledger.
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
    """Fence the writer of a log, and add a closed ledger at the end of the log.

    Returns:
        the head of the log, as it was last read or written.

    Raises:
        OvertakenError: the list has a higher id, and not this ledger.
        DoneError: the transaction is remembered, and another ledger holds it.
        NoSuchLogError: the log was deleted.
        RecoveryUndecidedError: the end of the newest ledgers cannot be found now.
        MetadataUnavailableError: the ledger may or may not have been added.
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
                return head  # a reply was lost, and other ledgers followed
            if isinstance(error, DoneError):
                raise
            continue
        seal_oldest(context, name, added)
        return added


def _done_before(name: str, transaction: Transaction, rows: int, last: Committed) -> LogWrite:
    """Return the result of a write that the log has already. Raises ``InvalidArgumentError`` for a
    batch of a stream that does not repeat the last one.
    """
    if isinstance(transaction, MicroBatch):
        transaction.check_repeats(last, name)
    holder = last.ledger_id if last.version == transaction.version else None
    return LogWrite(name, holder, NO_ENTRY, rows, is_new=False)


def _step_to_add(
    head: LogHead, ledger_id: LedgerId, transaction: Transaction | None
) -> Callable[[LogHead], LogHead | None]:
    """Return the step that adds a ledger, if the log still ends where ``head`` was fenced."""

    def step(old: LogHead) -> LogHead | None:
        if old.newest == ledger_id:
            return None  # an earlier attempt added it, and its reply was lost
        if transaction is not None and (last := old.transactions.done(transaction)):
            raise DoneError(last)
        if old.newest != head.newest:
            raise OvertakenError
        added = old.with_ledger(ledger_id)
        return added if transaction is None else added.with_transaction(transaction)

    return step


def forget_application(context: ClientContext, name: str, nonce: str, app_id: str) -> None:
    """Remove an application and its last number from the log's head; idempotent."""
    logs.change_log(
        context.store.registers,
        name,
        nonce,
        lambda old: replace(old, transactions=old.transactions.without(app_id)),
    )


def _commit_nothing(
    context: ClientContext, staged: StagedWrite, transaction: Transaction | None
) -> LogWrite:
    """Finish a write without rows: no ledger is added, but its number is remembered."""
    is_new = transaction is None
    last: Committed | None = None

    def step(old: LogHead) -> LogHead | None:
        nonlocal is_new, last
        assert transaction is not None, "asked for a transaction only"
        last = old.transactions.done(transaction)
        if last is not None:
            return None  # ``is_new`` is true if an earlier attempt of this call did it
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
