"""Changes of ledger metadata, by the loop in ``compare_and_swap.py``.

What is read again must be the same ledger, and not another with its id (SLOT-LOG rule R16): its
nonce is compared. What the compare-and-swap itself proves is said at ``Versioned.own_writes``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spark_bookkeeper.errors import MetadataFormatError, NoSuchLedgerError
from spark_bookkeeper.metadata import refusals
from spark_bookkeeper.metadata.compare_and_swap import ABSENT, change
from spark_bookkeeper.metadata.store import LedgerStore, Versioned
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata

Transform = Callable[[LedgerMetadata], LedgerMetadata | None]
"""One step. ``None``, or a value equal to the old one, means that there is nothing to write."""


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
        transform: the step, see ``compare_and_swap.change``.
        known: a value that the caller has read, see there.

    Raises:
        NoSuchLedgerError: it was deleted, also when its id is another ledger's by now.
        VersionConflictError, MetadataUnavailableError: see there.
    """
    current = known if known is not None else store.read_ledger(ledger_id)
    return change(_Ledger(store, ledger_id, current.value.nonce), transform, known=current)


def delete_ledger(
    store: LedgerStore,
    ledger_id: LedgerId,
    *,
    known: Versioned[LedgerMetadata] | None = None,
    unless_closed: bool = False,
) -> bool:
    """Delete the ledger that is there now, or ``known``; one that is gone counts as deleted.

    Never another one that was made with its id meanwhile. Only a ledger that cannot be decoded
    is deleted without a comparison.

    Args:
        store: where the metadata is.
        ledger_id: whose.
        known: a value that the caller has read.
        unless_closed: leave one that is closed, by now too, or that cannot be decoded.

    Returns:
        whether it is gone.

    Raises:
        VersionConflictError: it kept changing.
        MetadataUnavailableError: it may or may not have been deleted.
        MetadataFormatError: it cannot be decoded, and so may be closed; with ``unless_closed``.
    """
    try:
        current = known if known is not None else store.read_ledger(ledger_id)
        deletion = _Deletion(store, ledger_id, current)

        def step(_: bool) -> bool | None:
            return None if unless_closed and deletion.seen.value.is_closed else True

        return change(deletion, step, known=deletion.as_seen()).value
    except NoSuchLedgerError:
        return True
    except MetadataFormatError:
        if unless_closed:
            raise
        store.delete_ledger(ledger_id, None)
        return True


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


@dataclass(frozen=True, slots=True)
class _Ledger:
    """The metadata of the ledger with one id and nonce."""

    store: LedgerStore
    ledger_id: LedgerId
    nonce: bytes | None

    def read(self) -> Versioned[LedgerMetadata]:
        return read_again(self.store, self.ledger_id, self.nonce)

    def write(
        self, new: LedgerMetadata, old: Versioned[LedgerMetadata]
    ) -> Versioned[LedgerMetadata]:
        return self.store.write_ledger(self.ledger_id, new, old)


@dataclass(slots=True)
class _Deletion:
    """Whether the ledger that was seen is deleted; once it is, reading it raises."""

    store: LedgerStore
    ledger_id: LedgerId
    seen: Versioned[LedgerMetadata]

    def as_seen(self) -> Versioned[bool]:
        return Versioned(False, self.seen.version)

    def read(self) -> Versioned[bool]:
        self.seen = read_again(self.store, self.ledger_id, self.seen.value.nonce)
        return self.as_seen()

    def write(self, new: bool, old: Versioned[bool]) -> Versioned[bool]:
        self.store.delete_ledger(self.ledger_id, self.seen)
        return Versioned(new, ABSENT)
