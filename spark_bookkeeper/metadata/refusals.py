"""What callers are told when a metadata store refuses; the same words from every back end."""

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
    """The store answers, but nobody has made a cluster in it."""
    return NoClusterError(
        f"there is no BookKeeper cluster at {where}. `spark-bookkeeper cluster init` makes one; "
        "if there should be one, check the host and the root in the metadata URI"
    )


def cluster_exists(where: str) -> InvalidArgumentError:
    """A cluster cannot be made where there is something already."""
    return InvalidArgumentError(
        f"there is something at {where} already; nothing was changed. Choose another root, or "
        "look at it with `spark-bookkeeper cluster info`"
    )


def no_such_ledger(ledger_id: LedgerId) -> NoSuchLedgerError:
    """The ledger was deleted or never existed."""
    return NoSuchLedgerError(
        f"there is no ledger {ledger_id}: it was deleted or never existed. "
        "`spark-bookkeeper ledger list` shows those there are",
        ledger_id=ledger_id,
    )


def ledger_exists(ledger_id: LedgerId) -> LedgerExistsError:
    """The id is taken by somebody else."""
    return LedgerExistsError(
        f"ledger {ledger_id} exists already; nothing was written. Choose another id, or let one "
        "be generated",
        ledger_id=ledger_id,
    )


def id_used(ledger_id: LedgerId) -> LedgerExistsError:
    """There is no such ledger, but there was one or may have been."""
    return LedgerExistsError(
        f"ledger id {ledger_id} was used before, by a ledger that was deleted, or was given out by "
        "the cluster's counter; nothing was written. No id is used twice: whoever still has the "
        "former ledger open would write to the new one, or read it as the old one. Choose an id "
        "that was never used, or let one be generated",
        ledger_id=ledger_id,
        was_used=True,
    )


def other_life(ledger_id: LedgerId) -> NoSuchLedgerError:
    """The id is that of another ledger by now."""
    return NoSuchLedgerError(
        f"the ledger {ledger_id} that was opened is gone: it was deleted, and somebody else "
        "created another with the same id, by a tool that does not refuse that; nothing was "
        "changed. Open the ledger again to work with the one that is there now",
        ledger_id=ledger_id,
        is_another=True,
    )


def ledger_conflict(ledger_id: LedgerId, expected: int, found: int | None) -> VersionConflictError:
    """Somebody else changed the ledger first."""
    there = "another" if found is None else str(found)
    return VersionConflictError(
        f"ledger {ledger_id}: its metadata has version {there} and not {expected}, so somebody "
        "else changed it; nothing was written. Read it again, then decide",
        expected=expected,
        found=found,
    )


def ledger_occupied(ledger_id: LedgerId, path: str) -> MetadataError:
    """A ledger's node has something below it, which no client of BookKeeper makes."""
    return MetadataError(
        f"ledger {ledger_id} was not deleted: somebody made a node by hand below {path}, and "
        f"ZooKeeper deletes no node that has others below it. In ZooKeeper's own shell (zkCli.sh) "
        f"`ls {path}` shows it; remove it there (`delete {path}/...`), and repeat",
        ledger_id=ledger_id,
        path=path,
    )


def held_elsewhere(bookie_id: BookieId) -> CookieMismatchError:
    """Another session holds the bookie's registration."""
    return CookieMismatchError(
        f"bookie {bookie_id} is registered by another session, which is alive; nothing was "
        "changed. Stop the other agent of this bookie, or start this one under its own id",
        bookie_id=bookie_id,
        nothing_changed=True,
    )


def cookie_conflict(
    bookie_id: BookieId, expected: int | None, found: int | None
) -> VersionConflictError:
    """The cookie is another one than its writer believes."""
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
    """A register of ours is another one than its writer believes."""
    there = "there is none" if found is None else f"there is one of version {found.version}"
    wanted = "none" if expected is None else f"one of version {expected}"
    return VersionConflictError(
        f"{name}: expected {wanted}, but {there}, so somebody else changed it; nothing was "
        "written. Read it again, then decide",
        expected=expected,
        found=None if found is None else found.version,
    )
