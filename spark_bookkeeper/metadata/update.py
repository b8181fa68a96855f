"""The one loop that changes ledger metadata: read, transform, compare-and-swap, retry.

A change is a pure step "old value -> new value". What if somebody else changed the ledger
first? Then the step is asked again, with what is there now. What if the answer to a write was
lost? Then the value is read again and compared with what was meant (SLOT-LOG rule R14); only
when it is something else is the step asked again.

Hence a step must know its own result when it meets it: given a value that already holds its
change, or the change of somebody who was faster, it returns ``None`` or the value itself, or
raises the error that the caller should see.

Source: BookKeeper 4.17 ``client/MetadataUpdateLoop``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from spark_bookkeeper.errors import MetadataUnavailableError, VersionConflictError
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

    Args:
        store: where the metadata is.
        ledger_id: whose.
        transform: the step; it may be asked several times, each time with the value it would
            replace. Whatever it raises goes to the caller, and nothing is written.
        known: a value that the caller has read; saves the first read, and costs nothing when
            it turns out to be old.

    Raises:
        NoSuchLedgerError: it was deleted; it is never created again.
        VersionConflictError: it kept changing (``CONFLICTS_MAX`` times).
        MetadataUnavailableError: the change may or may not have been made.
    """
    current = known if known is not None else store.read_ledger(ledger_id)
    conflicts = unknown = 0
    while True:
        intended = transform(current.value)
        if intended is None or intended == current.value:
            return current
        try:
            return store.write_ledger(ledger_id, intended, current.version)
        except VersionConflictError:
            conflicts += 1
            if conflicts == CONFLICTS_MAX:
                raise
        except MetadataUnavailableError:
            unknown += 1
            if unknown == UNKNOWN_MAX:
                raise
        current = store.read_ledger(ledger_id)
        # After a lost answer this is our own write, or the same change by somebody else. After
        # a conflict it can only be the latter; either way nothing is left to be done.
        if current.value == intended:
            return current
