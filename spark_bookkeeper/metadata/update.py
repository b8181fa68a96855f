"""Changes of ledger metadata, by the loop in ``compare_and_swap.py``.

Each later read must find the same ledger, not another one with its id (SLOT-LOG rule R16), so the
nonce is compared. ``Versioned.own_writes`` says what the compare-and-swap itself proves.
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
    """Change a ledger's metadata by a pure step, and return the metadata stored afterwards.

    The change applies to the ledger first seen: ``known``, or else the ledger that exists now.

    Args:
        store: the store with the metadata.
        ledger_id: the ledger's id.
        transform: the step, see ``compare_and_swap.change``.
        known: a value that the caller has read, see there.

    Raises:
        NoSuchLedgerError: it was deleted, even if another ledger has its id by now.
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
    """Delete ``known``, or else the ledger that exists now; a deleted one counts as success.

    Another ledger that was made with its id meanwhile is never deleted. Only a ledger that cannot
    be decoded is deleted without a comparison.

    Args:
        store: the store with the metadata.
        ledger_id: the ledger's id.
        known: a value that the caller has read.
        unless_closed: keep a ledger that is closed, or was closed meanwhile, or cannot be decoded.

    Returns:
        whether it no longer exists.

    Raises:
        VersionConflictError: it kept changing.
        MetadataUnavailableError: it may or may not have been deleted.
        MetadataFormatError: with ``unless_closed``: it cannot be decoded, so it may be closed.
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
    """Read a ledger again, and check that it has the nonce that was read before.

    Raises:
        NoSuchLedgerError: it was deleted, even if another ledger has its id by now.
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
    """Whether the ledger that was seen is deleted; once it is deleted, reading it raises."""

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
