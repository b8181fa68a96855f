"""Formatting: make a partition, even one that was a bookie before, into a new, empty one."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from spark_bookkeeper.agent.cookies import cookie_of
from spark_bookkeeper.agent.dependents import dependents_of
from spark_bookkeeper.agent.identity import Claims, claims_of
from spark_bookkeeper.agent.readonly import forget_order
from spark_bookkeeper.agent.takeover import kept_from_agents
from spark_bookkeeper.bookie.marker import Marker
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.bookie.probe import OnCheck, ignore_progress
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.metadata import refusals
from spark_bookkeeper.metadata.store import Cookie, MetadataStore, Versioned
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.underreplication import RECOVER
from spark_bookkeeper.replication.report import some_of


def format_bookie(
    store: MetadataStore,
    partition: Partition,
    bookie_id: BookieId,
    *,
    token: Callable[[], str],
    is_replaced: bool = False,
    on_check: OnCheck = ignore_progress,
) -> Marker:
    """Make a partition, even one that was a bookie before, into a new, empty one.

    Everything in it is removed. It is refused while that could remove the last good copy of
    anything. ``on_check`` is called with each guarantee that the probe of the file system confirms.

    Args:
        is_replaced: the bookie's disk is lost for good, and an empty one is in its place. Then
            ledgers may count on the bookie: for each of them it needs refill
            (``replication/refill_bookie.py``). It is refused for a partition that holds
            anything [replaced_empty_only].

    Raises:
        InvalidArgumentError: see ``check_formattable``; nothing was changed.
        CookieMismatchError, VersionConflictError: an agent serves it, or has served it since
            that check; nothing was changed.
        UnsuitableStorageError: the file system cannot fence.
    """
    known, instance_id = check_formattable(store, partition, bookie_id, is_replaced=is_replaced)
    version, incarnation = (known.version, known.value.incarnation) if known else (None, "")
    with kept_from_agents(store, bookie_id, partition.uri, incarnation):
        # Reading all ledgers may have taken minutes: an agent may have served it, and ended.
        version_now = store.cookie_version(bookie_id)
        if version_now != version:
            raise refusals.cookie_conflict(bookie_id, version, version_now)
        partition.wipe()
        marker = partition.format(bookie_id, instance_id, token=token, on_check=on_check)
        store.write_cookie(cookie_of(marker, partition), version)
        forget_order(store, bookie_id)
    return marker


def check_formattable(
    store: MetadataStore, partition: Partition, bookie_id: BookieId, *, is_replaced: bool = False
) -> tuple[Versioned[Cookie] | None, str]:
    """Refuse to format what may hold the last good copy of anything. Changes nothing.

    Args:
        is_replaced: see ``format_bookie``.

    Returns:
        the bookie's cookie, if it has one, and the INSTANCEID of the cluster.

    Raises:
        InvalidArgumentError: the bookie is alive, a ledger still names it, or the storage
            belongs to another bookie or cluster, or holds other files.
    """
    known = store.read_cookie(bookie_id)
    claims = claims_of(store, partition, bookie_id, known)
    found = claims.marker
    if found is not None and (found.instance_id, found.bookie_id) != (
        claims.instance_id,
        bookie_id,
    ):
        raise InvalidArgumentError(
            f"the storage at {partition.uri} belongs to bookie {found.bookie_id} of cluster "
            f"{found.instance_id}, not to {bookie_id} of {claims.instance_id}; it may hold the "
            "last good copy of something. Nothing was changed; use an empty root"
        )
    if any(r.bookie_id == bookie_id for r in store.registrations()):
        raise InvalidArgumentError(
            f"bookie {bookie_id} is alive; stop its agent first. Nothing was changed"
        )
    if is_replaced:
        _check_replaced(claims)
    else:
        # Recovery can read its copies only with a cookie: the error then first writes one.
        is_cut_off = known is None and found is not None
        _check_nobody_counts_on(store, bookie_id, partition.uri if is_cut_off else None)
    foreign = partition.foreign_names()
    if foreign:
        raise InvalidArgumentError(
            f"{partition.uri} holds what is not a bookie's ({', '.join(foreign[:3])}); move it "
            "elsewhere, or use an empty root. Nothing was changed"
        )
    return known, claims.instance_id


def _check_nobody_counts_on(store: MetadataStore, bookie_id: BookieId, lacking: str | None) -> None:
    """Raise ``InvalidArgumentError`` if a ledger names the bookie, or may.

    Args:
        lacking: the root of a partition that lacks only its cookie.
    """
    found = dependents_of(store, bookie_id)
    if needed := found.ledger_ids:
        way = ""
        if lacking is not None:
            way = (
                f"`spark-bookkeeper bookie cookie create --bookie-id {bookie_id} --root "
                f"{shlex.quote(lacking)}`, then "
            )
        raise InvalidArgumentError(
            f"bookie {bookie_id} may hold the last good copy of entries of ledger "
            f"{some_of(needed)}. Run {way}`{RECOVER.format(bookie_id)}` first; it "
            "copies what the bookie held to others. Nothing was changed",
            ledger_ids=tuple(needed),
        )
    if found.doubt is not None:
        raise InvalidArgumentError(
            f"bookie {bookie_id} may hold the last good copy of something: {found.doubt}. Repeat "
            "when nothing is in doubt. A bookie of an id that was never used needs no format: "
            "`spark-bookkeeper bookie start` makes one of an empty root. Nothing was changed",
            ledger_ids=tuple(found.undecodable),
        )


def _check_replaced(claims: Claims) -> None:
    """Raise ``InvalidArgumentError`` unless the bookie is known and its partition is empty."""
    bookie_id = claims.bookie_id
    if claims.cookie is None:
        raise InvalidArgumentError(
            f"the cluster knows no bookie {bookie_id}, so no disk of it was replaced; nothing was "
            "changed. Format a new bookie without --replaced"
        )
    if claims.has_content:
        raise InvalidArgumentError(
            f"{claims.root_uri} holds data of ledgers, so it is no new, empty disk; nothing was "
            f"changed. If it is bookie {bookie_id}'s, it can be started as it is, or its cookie "
            "made again; otherwise use an empty root"
        )
