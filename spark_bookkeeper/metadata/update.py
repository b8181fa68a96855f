"""The loops that change ledger metadata: read, transform, compare-and-swap, retry.

A change is a pure step "old value -> new value". What if somebody else changed the ledger
first? Then the step is asked again, with what is there now. What if the answer to a write was
lost? Then the value is read again and compared with what was meant (SLOT-LOG rule R14); only
when it is something else is the step asked again.

Hence a step must know its own result when it meets it: given a value that already holds its
change, or the change of somebody who was faster, it returns ``None`` or the value itself, or
raises the error that the caller should see.

What is read again must be the same ledger, and not another with its id (SLOT-LOG rule R16): its
nonce is compared. What the compare-and-swap itself proves is said at ``Versioned.own_writes``.

Source: BookKeeper 4.17 ``client/MetadataUpdateLoop``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from spark_bookkeeper.errors import (
    MetadataFormatError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    VersionConflictError,
)
from spark_bookkeeper.metadata import refusals
from spark_bookkeeper.metadata.store import LedgerStore, Versioned
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata

Transform = Callable[[LedgerMetadata], LedgerMetadata | None]
"""One step. ``None``, or a value equal to the old one, means that there is nothing to write."""

CONFLICTS_MAX: Final = 100
"""Lost races after which the loop gives up: each was won by somebody, so more are a fault."""

UNKNOWN_MAX: Final = 3
"""Lost answers after which the loop gives up; the store has retried each of them itself."""


def update_ledger(
    store: LedgerStore,
    ledger_id: LedgerId,
    transform: Transform,
    *,
    known: Versioned[LedgerMetadata] | None = None,
) -> Versioned[LedgerMetadata]:
    """Change a ledger's metadata by a pure step, and return what is stored afterwards.

    The ledger meant is the one first seen: ``known``, or else what is there now.

    Args:
        store: where the metadata is.
        ledger_id: whose.
        transform: the step; it may be asked several times, each time with the value it would
            replace. Whatever it raises goes to the caller, and nothing is written.
        known: a value that the caller has read; saves the first read, and costs nothing when
            it turns out to be old.

    Raises:
        NoSuchLedgerError: it was deleted, also when its id is another ledger's by now.
        VersionConflictError: it kept changing (``CONFLICTS_MAX`` times).
        MetadataUnavailableError: the change may or may not have been made.
    """
    current = known if known is not None else store.read_ledger(ledger_id)
    conflicts = unknown = 0
    doubt: str | None = None  # not the error: with its frames it would keep itself alive
    while True:
        intended = transform(current.value)
        if intended is None or intended == current.value:
            return current
        try:
            return store.write_ledger(ledger_id, intended, current)
        except VersionConflictError:
            conflicts += 1
            if conflicts == CONFLICTS_MAX:
                raise
        except MetadataUnavailableError as error:
            doubt = error.message
            unknown += 1
            if unknown == UNKNOWN_MAX:
                raise
        current = _read_after(store, ledger_id, current, doubt)
        # After a lost answer this is our own write, or the same change by somebody else. After
        # a conflict it can only be the latter; either way nothing is left to be done.
        if current.value == intended:
            return current


def delete_ledger(
    store: LedgerStore, ledger_id: LedgerId, *, known: Versioned[LedgerMetadata] | None = None
) -> None:
    """Delete the ledger that is there now, or ``known``; one that is gone counts as deleted.

    Never another one that was made with its id meanwhile. Only a ledger that cannot be decoded
    is deleted without a comparison.

    Raises:
        VersionConflictError: it kept changing (``CONFLICTS_MAX`` times).
        MetadataUnavailableError: it may or may not have been deleted.
    """
    conflicts = unknown = 0
    doubt: str | None = None
    try:
        current = known if known is not None else store.read_ledger(ledger_id)
        while True:
            try:
                return store.delete_ledger(ledger_id, current)
            except VersionConflictError:
                conflicts += 1
                if conflicts == CONFLICTS_MAX:
                    raise
            except MetadataUnavailableError as error:
                doubt = error.message
                unknown += 1
                if unknown == UNKNOWN_MAX:
                    raise
            current = _read_after(store, ledger_id, current, doubt)
    except NoSuchLedgerError:
        return
    except MetadataFormatError:
        store.delete_ledger(ledger_id, None)


def read_again(
    store: LedgerStore, ledger_id: LedgerId, nonce: bytes | None
) -> Versioned[LedgerMetadata]:
    """Read the ledger with a nonce that was read before.

    Raises:
        NoSuchLedgerError: it was deleted, also when its id is another ledger's by now.
    """
    found = store.read_ledger(ledger_id)
    if found.value.nonce != nonce:
        raise refusals.other_life(ledger_id)
    return found


def _read_after(
    store: LedgerStore,
    ledger_id: LedgerId,
    before: Versioned[LedgerMetadata],
    doubt: str | None,
) -> Versioned[LedgerMetadata]:
    """``read_again``, after a change of which it may not be known whether it was made.

    When that cannot be found out either, the caller is told of the change, and not of the read.
    """
    try:
        return read_again(store, ledger_id, before.value.nonce)
    except MetadataUnavailableError:
        if doubt is not None:
            raise MetadataUnavailableError(doubt) from None
        raise
