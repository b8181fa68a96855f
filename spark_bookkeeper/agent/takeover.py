"""Takeover: begin to serve a storage partition after its identity is proved.

The proof is in ``identity.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from spark_bookkeeper.agent.cookies import check_whole, cookie_of
from spark_bookkeeper.agent.identity import Judgement, claims_of, judge, mismatch, moved
from spark_bookkeeper.agent.readonly import forget_order
from spark_bookkeeper.bookie.marker import Marker
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.errors import BookKeeperError, VersionConflictError
from spark_bookkeeper.metadata.store import Cookie, MetadataStore, Registration, Versioned
from spark_bookkeeper.protocol.ids import BookieId

OpenRoot = Callable[[str], Partition]
"""Opens the storage at a root, with a time-out for its answers."""


def claim_partition(
    store: MetadataStore,
    partition: Partition,
    bookie_id: BookieId,
    *,
    token: Callable[[], str],
    moved_from: OpenRoot | None = None,
) -> Marker:
    """Return the marker of a partition that may be served, formatting a new one first.

    Args:
        store: the cluster.
        partition: the partition.
        bookie_id: the id of the bookie.
        token: returns names that were never used before.
        moved_from: given when the partition may be known under another root, which this opens.
            A *copy* of a partition looks the same as a moved one, and may lack entries that were
            acknowledged since.

    Raises:
        CookieMismatchError: it may not be served, or is said to be moved while an agent serves it
            elsewhere; nothing was changed.
        UnsuitableStorageError: a new partition on a file system that cannot fence.
        BookieUnavailableError, MetadataUnavailableError: storage or store gave no answer; repeat.
    """
    while True:
        known = store.read_cookie(bookie_id)
        claims = claims_of(store, partition, bookie_id, known)
        verdict = judge(claims)
        if verdict is Judgement.ACCEPT:
            assert claims.marker is not None
            return claims.marker
        if verdict is Judgement.MOVE and moved_from is None:
            raise moved(claims)
        marker = claims.marker
        if verdict is Judgement.WRITE_COOKIE:
            check_whole(store, claims)
        if verdict is Judgement.FORMAT:
            forget_order(store, bookie_id)  # an interrupted removal of the bookie may have left one
            marker = partition.format(bookie_id, claims.instance_id, token=token)
        assert marker is not None
        try:
            if verdict is Judgement.MOVE:
                assert known is not None
                assert moved_from is not None
                _move(store, known, moved_from, partition, marker)
            else:
                store.write_cookie(cookie_of(marker, partition), known.version if known else None)
        except VersionConflictError:
            continue  # another client changed the cookie: read and judge again


def check_claim(
    store: MetadataStore, partition: Partition, bookie_id: BookieId, marker: Marker
) -> None:
    """Check that a partition still has this marker, and is this bookie's. Changes nothing.

    Raises:
        CookieMismatchError: the check failed, for example because the bookie was removed and its
            cookie deleted.
    """
    claims = claims_of(store, partition, bookie_id, store.read_cookie(bookie_id))
    if judge(claims) is not Judgement.ACCEPT or claims.marker != marker:
        raise mismatch(
            claims,
            "the bookie was given up, or formatted by somebody else, while its agent ran",
            "stop this agent; start it again to have the bookie checked from the beginning",
        )


def _move(
    store: MetadataStore,
    known: Versioned[Cookie],
    open_root: OpenRoot,
    partition: Partition,
    marker: Marker,
) -> None:
    """Make the cookie name the root that a bookie has moved to.

    While an agent serves the bookie from the old root, this partition can only be a copy, and lacks
    all later entries. So that is refused. The session of an agent that was killed must expire
    first.
    """
    with kept_from_agents(store, BookieId(marker.bookie_id), partition.uri, marker.incarnation):
        _retire_old_root(known.value.root_uri, open_root, partition, marker)
        store.write_cookie(cookie_of(marker, partition), known.version)


@contextmanager
def kept_from_agents(
    store: MetadataStore, bookie_id: BookieId, root_uri: str, incarnation: str
) -> Iterator[None]:
    """Hold the registration of a bookie, read-only, so that no agent serves it meanwhile.

    Raises:
        CookieMismatchError: an agent serves it.
    """
    try:
        store.register(Registration(bookie_id, root_uri, incarnation, is_readonly=True))
        yield
    finally:  # also when the answer of register was lost
        store.unregister(bookie_id)


def _retire_old_root(
    old_uri: str, open_root: OpenRoot, partition: Partition, marker: Marker
) -> None:
    """Remove the marker at the root that a bookie has moved from, if one is left.

    A client may still know the bookie at the old root and read from it, and a copy lacks all later
    entries. Without a marker its answers do not count (SLOT-LOG rules R5, R11). If the old root
    cannot be reached from here, the operator's word is trusted.
    """
    with suppress(BookKeeperError):
        old = open_root(old_uri)
        try:
            if old.marker() == marker:
                old.remove_marker()
        finally:
            old.close()
    # The old root may be another name for the new one: a link, or a second mount.
    if partition.marker() is None:
        partition.put_marker(marker)
