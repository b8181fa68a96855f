"""The errors of a metadata store that refuses; all back ends use the same words."""

from __future__ import annotations

from spark_bookkeeper.errors import (
    CookieMismatchError,
    InvalidArgumentError,
    LedgerExistsError,
    MetadataError,
    NoClusterError,
    NoSuchLedgerError,
    VersionConflictError,
)
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import BookieId, LedgerId


def no_cluster(where: str) -> NoClusterError:
    """Return the error for a store that answers but holds no cluster."""
    return NoClusterError(
        f"there is no BookKeeper cluster at {where}. `spark-bookkeeper cluster init` makes one; "
        "if there should be one, check the host and the root in the metadata URI"
    )


def cluster_exists(where: str) -> InvalidArgumentError:
    """Return the error for creating a cluster where nodes exist already."""
    return InvalidArgumentError(
        f"there is something at {where} already; nothing was changed. Choose another root, or "
        "look at it with `spark-bookkeeper cluster info`"
    )


def no_such_ledger(ledger_id: LedgerId) -> NoSuchLedgerError:
    """Return the error for a ledger that was deleted or never existed."""
    return NoSuchLedgerError(
        f"there is no ledger {ledger_id}: it was deleted or never existed. "
        "`spark-bookkeeper ledger list` shows those there are",
        ledger_id=ledger_id,
    )


def ledger_exists(ledger_id: LedgerId) -> LedgerExistsError:
    """Return the error for an id with which another client made a ledger."""
    return LedgerExistsError(
        f"ledger {ledger_id} exists already; nothing was written. Choose another id, or let one "
        "be generated",
        ledger_id=ledger_id,
    )


def id_used(ledger_id: LedgerId) -> LedgerExistsError:
    """Return the error for an id whose ledger was deleted, or may have existed."""
    return LedgerExistsError(
        f"ledger id {ledger_id} was used before, by a ledger that was deleted, or was given out by "
        "the cluster's counter; nothing was written. No id is used twice: whoever still has the "
        "former ledger open would write to the new one, or read it as the old one. Choose an id "
        "that was never used, or let one be generated",
        ledger_id=ledger_id,
        was_used=True,
    )


def other_life(ledger_id: LedgerId) -> NoSuchLedgerError:
    """Return the error for an id that belongs to another ledger by now."""
    return NoSuchLedgerError(
        f"the ledger {ledger_id} that was opened is gone: it was deleted, and somebody else "
        "created another with the same id, by a tool that does not refuse that; nothing was "
        "changed. Open the ledger again to work with the one that is there now",
        ledger_id=ledger_id,
        is_another=True,
    )


def ledger_conflict(ledger_id: LedgerId, expected: int, found: int | None) -> VersionConflictError:
    """Return the error for a ledger that another client changed first."""
    there = "another" if found is None else str(found)
    return VersionConflictError(
        f"ledger {ledger_id}: its metadata has version {there} and not {expected}, so somebody "
        "else changed it; nothing was written. Read it again, then decide",
        expected=expected,
        found=found,
    )


def ledger_occupied(ledger_id: LedgerId, path: str) -> MetadataError:
    """Return the error for a ledger's node with children, which no client of BookKeeper makes."""
    return MetadataError(
        f"ledger {ledger_id} was not deleted: somebody made a node by hand below {path}, and "
        f"ZooKeeper deletes no node that has others below it. In ZooKeeper's own shell (zkCli.sh) "
        f"`ls {path}` shows it; remove it there (`delete {path}/...`), and repeat",
        ledger_id=ledger_id,
        path=path,
    )


def held_elsewhere(bookie_id: BookieId) -> CookieMismatchError:
    """Return the error for a bookie whose registration another session holds."""
    return CookieMismatchError(
        f"bookie {bookie_id} is registered by another session, which is alive; nothing was "
        "changed. Stop the other agent of this bookie, or start this one under its own id",
        bookie_id=bookie_id,
        nothing_changed=True,
    )


def cookie_conflict(
    bookie_id: BookieId, expected: int | None, found: int | None
) -> VersionConflictError:
    """Return the error for a cookie that its writer does not know in its present version."""
    there = "there is none" if found is None else f"there is one of version {found}"
    wanted = "none" if expected is None else f"one of version {expected}"
    return VersionConflictError(
        f"cookie of {bookie_id}: expected {wanted}, but {there}; nothing was written. Read it "
        "again, then decide",
        expected=expected,
        found=found,
    )


def register_conflict(
    name: str, expected: int | None, found: Versioned[bytes] | None
) -> VersionConflictError:
    """Return the error for a register that its writer does not know in its present version."""
    there = "there is none" if found is None else f"there is one of version {found.version}"
    wanted = "none" if expected is None else f"one of version {expected}"
    return VersionConflictError(
        f"{name}: expected {wanted}, but {there}, so somebody else changed it; nothing was "
        "written. Read it again, then decide",
        expected=expected,
        found=None if found is None else found.version,
    )
