"""Identity: whether a storage partition may be served.

Three sources say which bookie a partition is: the *cookie* in the metadata store, the ``BOOKIE``
*marker* on the storage, and the cluster itself by its INSTANCEID. A bookie is served only when all
three agree, and a partition is formatted only when none of them names a bookie. All else is
refused: a disk that is not mounted, a wiped one, an old copy, a partition of another cluster. Such
a partition would answer "no such entry" for acknowledged entries (SLOT-LOG rule R5).

The reactions of BookKeeper and of this library, before anything is registered
(``tests/agent/test_cookie_situations.py`` is this table):

=====================================  =============================  ============================
situation                              BookKeeper                     here
=====================================  =============================  ============================
no cookie, empty storage               a new bookie                   the same
no cookie, a marker or data            refused                        refused; ``cookie create``
cookie, no marker                      refused                        refused
cookie and another marker              refused                        refused
another cluster's cookie or marker     refused                        refused
BookKeeper's own cookie                (its own)                      refused
another root, the same incarnation     refused                        refused unless ``--moved``
a further, empty directory             allowStorageExpansion          refused: a further bookie
an empty disk in place of a lost one   dataIntegrityStampMissing...   ``format --replaced``, refill
=====================================  =============================  ============================

A bookie has one root. To add disk space, enlarge the file system under it, which no cookie
mentions, or add a further partition, which is a bookie of its own.

Source: BookKeeper ``bookie/LegacyCookieValidation`` and ``bookie/datainteg`` (which combinations
are served), with the incarnation as one more thing that must agree (SLOT-LOG rule R11).
"""

from __future__ import annotations

import enum
import shlex
from dataclasses import dataclass

from spark_bookkeeper.bookie.marker import Marker
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.errors import CookieMismatchError
from spark_bookkeeper.metadata.store import Cookie, MetadataStore, Versioned
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.underreplication import RECOVER, REFILL


class Judgement(enum.Enum):
    """The decision about a partition that may be served."""

    ACCEPT = "all agree"
    FORMAT = "nobody knows anything: a new bookie"
    WRITE_COOKIE = "a formatting was interrupted before its last step"
    MOVE = "the same incarnation under another root"


@dataclass(frozen=True, slots=True)
class Claims:
    """The identity of one partition, according to each source."""

    bookie_id: BookieId
    """The id that the partition is expected to have."""
    root_uri: str
    """The URI of the partition."""
    instance_id: str
    """The cluster that it is expected to belong to."""
    cookie: Cookie | None
    """The cookie in the metadata store."""
    marker: Marker | None
    """The marker on the storage."""
    has_content: bool
    """Whether the partition holds anything besides the marker."""


def judge(claims: Claims) -> Judgement:
    """Decide whether a partition may be served.

    Raises:
        CookieMismatchError: it may not; nothing was changed. The text shows what is stored,
            expected and found, what that means, and the safe next command.
    """
    cookie, marker, bookie_id = claims.cookie, claims.marker, claims.bookie_id
    root = shlex.quote(claims.root_uri)
    start = f"spark-bookkeeper bookie start --bookie-id {bookie_id} --root {root}"
    if marker is not None and marker.instance_id != claims.instance_id:
        raise mismatch(
            claims,
            "the storage belongs to another cluster",
            "use an empty directory or prefix as the root, or connect to the cluster it belongs "
            "to. Do not remove BOOKIE by hand: that cluster may hold its last good copies here",
        )
    if marker is not None and marker.bookie_id != bookie_id:
        raise mismatch(
            claims,
            f"the storage is that of bookie {marker.bookie_id}",
            f"start it under its own id: `spark-bookkeeper bookie start --bookie-id "
            f"{marker.bookie_id} --root {root}`",
        )
    new = f"spark-bookkeeper bookie format --bookie-id {bookie_id} --root {root}"
    recover, refill = RECOVER.format(bookie_id), REFILL.format(bookie_id)
    if cookie is None:
        return _judge_without_cookie(claims, start, new)
    if not cookie.incarnation:
        raise mismatch(
            claims,
            "the cluster knows this id as a bookie of Apache BookKeeper's own, or of a tool that "
            "wrote its cookie by hand",
            "choose another id, HOST:PORT, for a bookie of this library",
        )
    if marker is None and not claims.has_content and _is_elsewhere(cookie, claims):
        raise mismatch(
            claims,
            f"the bookie is known at {cookie.root_uri}, and this is another, empty directory: a "
            "bookie has one root",
            "to add a disk, make a bookie of its own there: `spark-bookkeeper bookie start` with "
            "another id. If the disk of this bookie was replaced and is mounted here now: "
            f"`{new} --replaced`, `{start}` and `{refill}`. If "
            f"it is given up: `{recover}` first",
        )
    if marker is None:
        raise mismatch(
            claims,
            "the bookie is known, and its data is not here: the storage is not mounted, or it "
            "was wiped",
            f"bring back the storage and repeat `{start}`. If it is lost for good: `{new} "
            f"--replaced`, `{start}` and `{refill}` copy back here what it held; or `{recover}` "
            f"copies it to other bookies, then `{new}`",
        )
    if cookie.instance_id not in (None, claims.instance_id):
        raise mismatch(
            claims,
            "the cookie is from before this cluster was formatted",
            f"format the bookie as well if nothing of the old cluster is needed: `{new}`",
        )
    if cookie.incarnation != marker.incarnation:
        raise mismatch(
            claims,
            "the storage was formatted at another time than the one the cluster knows: an old "
            "copy, or a partition that was wiped and formatted by hand",
            f"bring back the right storage and repeat `{start}`. If it is lost for good: "
            f"`{recover}` first, which copies what it held, then `{new}`",
        )
    if _is_elsewhere(cookie, claims):
        return Judgement.MOVE
    return Judgement.ACCEPT


def _judge_without_cookie(claims: Claims, start: str, new: str) -> Judgement:
    """Judge a bookie that has no cookie.

    Args:
        start: the command that serves the partition.
        new: the command that makes a new bookie of it.
    """
    marker, bookie_id, root = claims.marker, claims.bookie_id, shlex.quote(claims.root_uri)
    if marker is not None and not claims.has_content:
        return Judgement.WRITE_COOKIE
    if marker is None and not claims.has_content:
        return Judgement.FORMAT
    if marker is None:
        raise mismatch(
            claims,
            "the cluster knows no such bookie (any more), and the storage holds data of which "
            "nothing says whose it is",
            "use an empty directory or prefix as the root. What is here stays as it is; if no "
            f"ledger needs it, `{new}` makes a new bookie of it",
        )
    raise mismatch(
        claims,
        "the cluster has no cookie of this bookie (any more), but the storage holds its data",
        "if the cookie was lost, or the bookie is to come back: `spark-bookkeeper bookie "
        f"cookie create --bookie-id {bookie_id} --root {root}` writes it again, and `{start}` "
        "serves what is here. Never do so with an older copy of the storage. If no ledger "
        f"needs what is here: `{new}` makes a new, empty bookie of it",
    )


def _is_elsewhere(cookie: Cookie, claims: Claims) -> bool:
    return cookie.root_uri.rstrip("/") != claims.root_uri.rstrip("/")


def claims_of(
    store: MetadataStore,
    partition: Partition,
    bookie_id: BookieId,
    known: Versioned[Cookie] | None,
) -> Claims:
    """Read all sources. Raises ``BookieUnavailableError``, ``MetadataUnavailableError``."""
    return Claims(
        bookie_id=bookie_id,
        root_uri=partition.uri,
        instance_id=store.instance_id(),
        cookie=known.value if known else None,
        marker=partition.marker(),
        has_content=partition.holds_anything(),
    )


def moved(claims: Claims) -> CookieMismatchError:
    """Return the error for a partition whose cookie names another root."""
    return mismatch(
        claims,
        "the bookie is known under another root: it was moved, or this is a copy",
        "if it was moved and nothing is left at the old root: `spark-bookkeeper bookie start "
        f"--bookie-id {claims.bookie_id} --root {shlex.quote(claims.root_uri)} --moved`. Never do "
        "so for a copy: it lacks what was acknowledged since",
    )


def mismatch(claims: Claims, meaning: str, remedy: str) -> CookieMismatchError:
    """Return an error that shows what is stored, expected and found, its meaning and a remedy."""

    def said(by: Cookie | Marker | None) -> str:
        if by is None:
            return "nothing"
        root = f" at {by.root_uri}" if isinstance(by, Cookie) else ""
        return (
            f"{by.bookie_id}{root}, incarnation {by.incarnation or '?'}, "
            f"cluster {by.instance_id or '?'}"
        )

    return CookieMismatchError(
        f"bookie {claims.bookie_id} is not served from {claims.root_uri}: {meaning}. "
        "Nothing was changed.\n"
        f"  stored in the metadata: {said(claims.cookie)}\n"
        f"  expected:               {claims.bookie_id} at {claims.root_uri}, "
        f"cluster {claims.instance_id}\n"
        f"  found on the storage:   {said(claims.marker)}"
        f"{' (and data)' if claims.has_content else ''}\n"
        f"What to do: {remedy}.",
        bookie_id=claims.bookie_id,
        stored=claims.cookie,
        found=claims.marker,
        meaning=meaning,
        remedy=remedy,
        nothing_changed=True,
    )
