"""Staged ledgers: tasks write all their rows, and one process closes them before readers see them.

A staged ledger is created before its rows are written, because their files are in its directory. It
has no writer at first: tasks anywhere add part files, which do not count until a slot lists them
(SLOT-LOG rule R15). In the end one process claims the ledger by compare-and-swap, lists the parts
of the attempts that succeeded, and closes it. A ledger is claimed once, so that it has one writer
session for all its life (R16).

A process flags an unclosed staged ledger before it removes it. So a process that closed one knows
that no other has removed it, and that none will without checking whether it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from spark_bookkeeper.bookie.bookie import LedgerRef
from spark_bookkeeper.bookie.entry import PartRef
from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.client import deletion, lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import STAGER, Ledger
from spark_bookkeeper.client.write.bulk import BulkPlan, TaskResult, WrittenPart
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import BookieError, BookieUnavailableError, LedgerFencedError
from spark_bookkeeper.metadata.update import read_again, update_ledger
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum

STAGED: Final = "spark-bookkeeper.staged"
"""JSON by the process that staged the ledger: its purpose, so that leftovers are recognised."""

CLAIMED: Final = "spark-bookkeeper.claimed"
"""A token of the process that lists its parts."""


def stage(context: ClientContext, quorum: Quorum, note: bytes, **options: Any) -> BulkPlan:
    """Create a ledger for tasks to write to; return the plan that they need.

    Args:
        context: the cluster.
        quorum: of the ledger.
        note: kept in its metadata as ``STAGED``.
        options: others of ``lifecycle.make_ledger``.

    Raises what ``lifecycle.create_ledger`` does.
    """
    notes = {STAGED: note}
    if context.writer is not None:
        notes[STAGER] = context.writer.encode()
    ledger, _ = lifecycle.make_ledger(context, quorum, notes=notes, **options)
    return _plan(context, ledger)


def seal(
    context: ClientContext,
    plan: BulkPlan,
    results: Sequence[TaskResult],
    notes: Mapping[str, bytes] | None = None,
) -> LedgerMetadata:
    """List the parts that tasks wrote, and close the ledger; no reader saw any of it before.

    Args:
        context: the cluster.
        plan: the result of ``stage``, in this or another process.
        results: one for each task, of the attempt that succeeded. Some of them have rows.
        notes: more custom metadata, keys of ours.

    Returns:
        the metadata of the ledger, which is CLOSED.

    Raises:
        LedgerFencedError, LedgerClosedError, NoSuchLedgerError: another client recovered, claimed
            or deleted it. While its files exist, ``restage`` can stage its rows again.
        AppendFailedError, MetadataUnavailableError: it is not sealed; it may be closed.
    """
    writer = _claim(context, plan, notes or {})
    try:
        writer.append_written(results)
        writer.close()
    except BaseException:
        writer.abandon()
        raise
    return writer.metadata


def restage(
    context: ClientContext,
    plan: BulkPlan,
    results: Sequence[TaskResult],
    note: bytes,
    log: str | None = None,
) -> tuple[BulkPlan, list[TaskResult]]:
    """Copy the part files unchanged to a new staged ledger, whose id is higher.

    Args:
        context: the cluster.
        plan: of the ledger that the tasks wrote to.
        results: of the tasks that wrote there.
        note: kept in the metadata of the new ledger as ``STAGED``.
        log: that the new ledger is made for, as by ``lifecycle.create_ledger``.

    Returns:
        the plan of the new ledger, and the results as if its tasks had written there.

    Raises:
        BookieUnavailableError: no bookie could deliver a part. The new ledger is removed.
        NotEnoughBookiesError, MetadataUnavailableError: as ``stage``.
    """
    new = stage(
        context,
        plan.quorum,
        note,
        schema=plan.encoding.schema,
        password=plan.encoding.password,
        digest_type=plan.encoding.digest_type,
        log=log,
        compression=plan.encoding.compression,
        entry_target_bytes=plan.entry_target_bytes,
    )
    copied = []
    try:
        for result in results:
            parts = tuple(_copied(context, plan, new, part) for part in result.parts)
            copied.append(replace(result, parts=parts, failures={}))
    except BaseException:
        discard(context, LedgerId(new.key.ledger_id))
        raise
    return new, copied


def discard(context: ClientContext, ledger_id: LedgerId) -> bool:
    """Remove a staged ledger that is not closed; return whether it is gone. Idempotent.

    It is flagged and fenced, so that a process that is about to close it fails. A closed ledger
    stays, even if it was closed just now: the closing process may have shown it to others.
    """
    return deletion.delete_unless_closed(context, ledger_id)


def _plan(context: ClientContext, ledger: Ledger) -> BulkPlan:
    return BulkPlan(
        key=ledger.key,
        encoding=ledger.encoding,
        quorum=ledger.metadata.quorum,
        first_entry_id=EntryId(0),
        targets=tuple(
            (position, bookie, ledger.incarnations[bookie], context.bookies.root_uri(bookie))
            for position, bookie in enumerate(ledger.metadata.last_fragment.ensemble)
        ),
        entry_target_bytes=ledger.entry_target_bytes,
    )


def _claim(context: ClientContext, plan: BulkPlan, notes: Mapping[str, bytes]) -> LedgerWriter:
    ledger_id = LedgerId(plan.key.ledger_id)
    token = context.runtime.token().encode()

    def step(old: LedgerMetadata) -> LedgerMetadata | None:
        claimed_by = old.custom_metadata.get(CLAIMED)
        if claimed_by == token:
            return None  # an earlier attempt, whose answer was lost
        if claimed_by is not None or old.state is not LedgerState.OPEN:
            why = f"it is {old.state.name}" if claimed_by is None else "somebody else seals it"
            raise LedgerFencedError(
                f"ledger {ledger_id}, whose rows are written, cannot be sealed: {why}. Nobody was "
                "shown anything of it by this process",
                ledger_id=ledger_id,
            )
        return old.with_custom(**{**notes, CLAIMED: token})

    known = read_again(context.store, ledger_id, plan.key.nonce.encode())
    claimed = update_ledger(context.store, ledger_id, step, known=known)
    return LedgerWriter(context, Ledger.of(ledger_id, claimed.value), claimed)


def _copied(
    context: ClientContext, plan: BulkPlan, new: BulkPlan, part: WrittenPart
) -> WrittenPart:
    """Copy a part to the directory of another ledger, on each bookie that needs it there."""
    positions = new.quorum.write_set(EntryId(part.stripe_class))
    roots = {bookie: uri for _, bookie, _, uri in (*plan.targets, *new.targets)}
    context.bookies.learn(roots)
    targets = [target for target in new.targets if target[0] in positions]
    causes: list[str] = []

    def copy(target: tuple[int, BookieId, str, str]) -> tuple[BookieId, str] | None:
        _, bookie, incarnation, _ = target
        # Prefer the bookie's own storage, which needs no network.
        for holder in sorted(part.holders, key=lambda each: each[0] != bookie):
            try:
                _copy_file(context, plan, new, part.ref, holder, (bookie, incarnation))
            except BookieError as error:
                causes.append(f"from {holder[0]} to {bookie}: {error.message}")
            else:
                return bookie, incarnation
        return None

    holders = tuple(done for done in context.runtime.map(copy, targets) if done is not None)
    if not holders:
        raise BookieUnavailableError(
            f"part {part.ref.name} of ledger {plan.key.ledger_id} could not be copied to any "
            f"bookie ({'; '.join(causes) or 'nobody holds it'}); nothing of it is in ledger "
            f"{new.key.ledger_id}",
            bookie_id=part.holders[0][0] if part.holders else targets[0][1],
        )
    return replace(part, holders=holders)


def _copy_file(
    context: ClientContext,
    plan: BulkPlan,
    new: BulkPlan,
    ref: PartRef,
    source: tuple[BookieId, str],
    target: tuple[BookieId, str],
) -> None:
    def replica(plan: BulkPlan, bookie: BookieId, incarnation: str) -> Replica:
        ref = LedgerRef(plan.key, incarnation, plan.encoding)
        return Replica(context.bookies.bookie(bookie), ref)

    there = replica(new, *target)
    there.prepare()
    copied = there.copy_part(replica(plan, *source), ref, is_copy=False)
    if copied.name != ref.name:  # every bookie's slot lists this name
        raise BookieUnavailableError(
            f"bookie {target[0]} has something else under the name of part {ref.name}",
            bookie_id=target[0],
        )
