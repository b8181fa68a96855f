"""Removal of a cluster: all of its metadata, and none of the bookies' data.

Source: BookKeeper ``client/BookKeeperAdmin.format`` and ``nukeExistingCluster`` (the shell's
``metaformat`` and ``nukeexistingcluster``). There the first does not check whether bookies are
alive, and the second always refuses while they are; here both refuse, unless forced.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_bookkeeper.errors import InvalidArgumentError, MetadataFormatError
from spark_bookkeeper.metadata.store import Cookie, MetadataStore, Versioned
from spark_bookkeeper.protocol.ids import BookieId


@dataclass(frozen=True, slots=True)
class ClusterContents:
    """The metadata that a removal would delete."""

    instance_id: str | None
    """``None``: the INSTANCEID cannot be read."""
    ledgers: int
    length_bytes: int
    """The length of all entries of the closed ledgers."""
    tasks: int
    """The number of ledgers that are published as under-replicated."""
    cookies: tuple[Cookie, ...]
    """The cookies of the bookies; each names its partition, which is not changed."""
    alive: tuple[BookieId, ...]
    writers: int
    """The number of ledgers that are being written."""


def contents_of(store: MetadataStore) -> ClusterContents:
    """Count the contents; read only. Raises ``NoClusterError``, ``MetadataUnavailableError``."""
    try:
        instance_id: str | None = store.instance_id()
    except MetadataFormatError:
        instance_id = None
    sizes = [
        found.value.length_bytes or 0 if isinstance(found, Versioned) else 0
        for _, found in store.read_ledgers(store.ledger_ids())
    ]
    return ClusterContents(
        instance_id,
        len(sizes),
        sum(sizes),
        sum(1 for _ in store.underreplication.ledger_ids()),
        tuple(cookie.value for cookie in store.cookies()),
        tuple(live.bookie_id for live in store.registrations()),
        len(store.writers()),
    )


def check_clearable(found: ClusterContents, instance_id: str, *, is_forced: bool = False) -> None:
    """Raise as ``clear_cluster`` does for another cluster, or for one that is in use."""
    if found.instance_id is None and not is_forced:
        raise InvalidArgumentError(
            "the cluster has no name any more (INSTANCEID), so nothing says that it is the one "
            "that is meant; nothing was changed. --force goes on all the same"
        )
    if found.instance_id not in (None, instance_id):
        raise InvalidArgumentError(
            f"this is cluster {found.instance_id}, and not {instance_id!r}; nothing was changed. "
            "`spark-bookkeeper cluster info` shows the id, which is typed so that no other cluster "
            "is removed by mistake"
        )
    if found.alive and not is_forced:
        raise InvalidArgumentError(
            f"bookies are alive: {', '.join(found.alive[:5])}"
            f"{' and more' if len(found.alive) > 5 else ''}; nothing was changed. Stop their "
            "agents first; --force goes on all the same, and leaves them without a cookie"
        )
    if found.writers and not is_forced:
        raise InvalidArgumentError(
            f"{found.writers} ledgers are being written; nothing was changed. End every client of "
            "the cluster first, or one that lives on could take a ledger of the new cluster for "
            "its own; --force goes on all the same"
        )


def clear_cluster(
    store: MetadataStore, instance_id: str, *, begins_again: bool, is_forced: bool = False
) -> str | None:
    """Remove the metadata of every ledger, bookie and task, for ever.

    Args:
        instance_id: the id of the intended cluster, as ``contents_of`` returns it.
        begins_again: whether to make a new, empty cluster in its place; else nothing is left.
        is_forced: also while bookies are alive or ledgers are written, or where the cluster has
            no readable INSTANCEID.

    Returns:
        the INSTANCEID of the new cluster, or ``None`` if none was made.

    Raises:
        InvalidArgumentError: it is another cluster, or in use; nothing was changed.
    """
    check_clearable(contents_of(store), instance_id, is_forced=is_forced)
    if begins_again:
        return store.format_cluster()
    store.remove_cluster()
    return None
