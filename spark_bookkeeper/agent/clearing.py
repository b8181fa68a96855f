"""Ending a cluster: all of its metadata, and none of the bookies' data.

Source: BookKeeper ``client/BookKeeperAdmin.format`` and ``nukeExistingCluster`` (the shell's
``metaformat`` and ``nukeexistingcluster``). There the first asks nobody whether bookies are alive,
and the second refuses while they are, whatever it is told; here both refuse, unless forced.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_bookkeeper.errors import InvalidArgumentError, MetadataFormatError
from spark_bookkeeper.metadata.store import Cookie, MetadataStore, Versioned
from spark_bookkeeper.protocol.ids import BookieId


@dataclass(frozen=True, slots=True)
class ClusterContents:
    """What would go."""

    instance_id: str | None
    """``None``: what stands there is no name of a cluster."""
    ledgers: int
    length_bytes: int
    """Of the entries of those that are closed."""
    tasks: int
    """Ledgers that are published as under-replicated."""
    cookies: tuple[Cookie, ...]
    """Of bookies whose partitions stay as they are; each says where that is."""
    alive: tuple[BookieId, ...]
    writers: int
    """Ledgers that are being written."""


def contents_of(store: MetadataStore) -> ClusterContents:
    """Look, and change nothing. Raises ``NoClusterError``, ``MetadataUnavailableError``."""
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
    """Refuse to remove another cluster, or one at which somebody works; as ``clear_cluster``."""
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
        instance_id: of the cluster that is meant, as ``contents_of`` tells it.
        begins_again: a new, empty cluster takes its place; else nothing is left.
        is_forced: also while bookies are alive or ledgers are written; or where the cluster has
            lost its name.

    Returns:
        the INSTANCEID of the new cluster, if there is one.

    Raises:
        InvalidArgumentError: another cluster, or somebody is at work; nothing was changed.
    """
    check_clearable(contents_of(store), instance_id, is_forced=is_forced)
    if begins_again:
        return store.format_cluster()
    store.remove_cluster()
    return None
