"""Writes to a log that have begun: their ledgers are staged, and may be left behind.

A staged ledger may never be added, since a task failed or the process ended. Its metadata says that
it is staged (``staging.STAGED``). This module removes such a ledger only where no client can add it
any more. That is so while it is open, since a client closes a ledger before it adds it, and the
deletion flags it first; and once the list has a higher id without it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spark_bookkeeper.client import lifecycle, staging
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.staging import STAGED
from spark_bookkeeper.client.write.bulk import BulkPlan
from spark_bookkeeper.errors import BookKeeperError, NoSuchLogError
from spark_bookkeeper.logs.listing import list_ledgers
from spark_bookkeeper.metadata import logs
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.stored_json import decoded, number
from spark_bookkeeper.protocol.transactions import Transaction

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StagedWrite:
    """A write that has begun. Picklable: tasks write by its plan; any process can commit it."""

    log: str
    nonce: str
    """Identifies one life of the log."""
    plan: BulkPlan
    owner: str | None = None
    """Identifies the writer. A later write of the same owner may remove this one's leftovers."""
    behind: LedgerId | None = None
    """The oldest ledger of the log that may have been open when the write began."""

    @property
    def ledger_id(self) -> LedgerId:
        return LedgerId(self.plan.key.ledger_id)


def note_of(
    log: str,
    nonce: str,
    transaction: Transaction | None,
    owner: str | None,
    behind: LedgerId | None = None,
) -> bytes:
    """Return the note about a write that the metadata of its staged ledger carry."""
    told: dict[str, Any] = {"log": log, "nonce": nonce, "owner": owner}
    if behind is not None:
        told["behind"] = behind
    if transaction is not None:
        told |= {"app_id": transaction.app_id, "version": transaction.version}
    return json.dumps(told, sort_keys=True, separators=(",", ":")).encode()


def behind_of(metadata: LedgerMetadata) -> LedgerId | None:
    """Return the oldest ledger of the log that may have been open when a staged write began. All
    ledgers before it had ended by then. ``None`` if the metadata do not say.
    """
    try:
        told = metadata.custom_metadata[STAGED]
        return decoded(told, lambda values: LedgerId(number(values["behind"])))
    except (KeyError, ValueError):
        return None


def abort(context: ClientContext, staged: StagedWrite) -> bool:
    """Cancel a write, unless it is in the log or may still be added to it.

    Returns:
        whether nothing of it is left.
    """
    try:
        gone = _discard_ledger(context, staged.log, staged.nonce, staged.ledger_id)
        if gone:
            _forget(context, staged, {staged.ledger_id})
    except BookKeeperError as error:
        _log.info("ledger %d of no log stays for now: %s", staged.ledger_id, error)
        return False
    return gone


def _discard_ledger(context: ClientContext, name: str, nonce: str, ledger_id: LedgerId) -> bool:
    """Delete a staged ledger, unless the log has it or may get it. Return whether it is gone."""
    if staging.discard(context, ledger_id):
        return True
    # It was closed, so a client may be about to add it, unless the list has a higher id.
    try:
        head, listed = list_ledgers(context, name, nonce, ledger_id)
    except NoSuchLogError:
        pass
    else:
        if ledger_id in listed or head.newest is None or head.newest < ledger_id:
            return False
    lifecycle.delete_ledger(context, ledger_id)
    return True


def remember(context: ClientContext, staged: StagedWrite) -> None:
    """Note the ledger in the list that the owner's next write searches for leftovers."""
    if staged.owner is None:
        return
    try:
        _change_noted(context, staged, lambda noted: [*noted, staged.ledger_id])
    except BookKeeperError as error:  # its metadata still show that it is staged
        _log.info("ledger %d is not noted as staged: %s", staged.ledger_id, error)


def forget_leftovers(context: ClientContext, staged: StagedWrite) -> None:
    """Remove the leftovers of the owner's earlier writes, once this write is in the log."""
    if staged.owner is not None:
        _remove_leftovers(context, staged.log, staged.nonce, staged.owner, staged.ledger_id)


def remove_leftovers(context: ClientContext, name: str, owner: str) -> None:
    """Remove the leftovers of an owner's writes, none of which may be running.

    A ledger that is in the log, or that may still be added to it, is kept.

    Raises:
        NoSuchLogError: no log has that name.
    """
    nonce = logs.read_log(context.store.registers, name).nonce
    _remove_leftovers(context, name, nonce, owner)


def _remove_leftovers(
    context: ClientContext, name: str, nonce: str, owner: str, done: LedgerId | None = None
) -> None:
    """Remove leftovers; the owner's next write retries those that cannot be removed now."""
    gone = set() if done is None else {done}
    registers, key = context.store.registers, _key(owner)
    try:
        for ledger_id in logs.read_staged(registers, name, key):
            if ledger_id not in gone and _discard_ledger(context, name, nonce, ledger_id):
                gone.add(ledger_id)
        logs.change_staged(registers, name, key, lambda noted: [i for i in noted if i not in gone])
    except BookKeeperError as error:
        _log.info("leftovers of writes to log %s stay for now: %s", name, error)


def _forget(context: ClientContext, staged: StagedWrite, gone: set[LedgerId]) -> None:
    if staged.owner is not None:
        _change_noted(context, staged, lambda noted: [i for i in noted if i not in gone])


def _change_noted(
    context: ClientContext, staged: StagedWrite, step: Callable[[list[LedgerId]], list[LedgerId]]
) -> None:
    assert staged.owner is not None
    logs.change_staged(context.store.registers, staged.log, _key(staged.owner), step)


def _key(owner: str) -> str:
    return hashlib.sha256(owner.encode()).hexdigest()[:32]
