"""Whether a storage partition is the one that the cluster knows under a bookie id.

Three say who a partition is: the *cookie* in the metadata store, the ``BOOKIE`` *marker* on the
storage, and the cluster itself by its INSTANCEID. A bookie is served only when all three agree,
and a partition is formatted only when none of them knows anything. Everything else is refused:
a disk that is not mounted, a wiped one, an old copy, a partition of another cluster. Serving
one of those would answer "no such entry" for entries that were acknowledged (SLOT-LOG rule R5).

Source: BookKeeper ``bookie/LegacyCookieValidation`` (which combinations are served), with the
incarnation as one more thing that must agree (SLOT-LOG rule R11).
"""

from __future__ import annotations

import enum
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from spark_bookkeeper.bookie.marker import Marker, read_marker
from spark_bookkeeper.bookie.partition import (
    AGENT_PROBE_PREFIX,
    PROBE_DIRECTORY,
    OnCheck,
    format_partition,
    holds_anything,
    tell_nobody,
    wipe_partition,
)
from spark_bookkeeper.bookie.schema import MARKER_PATH
from spark_bookkeeper.bookie.storage.roots import open_storage
from spark_bookkeeper.bookie.storage.storage import Storage
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.cluster.readonly import forget_order
from spark_bookkeeper.errors import (
    BookKeeperError,
    CookieMismatchError,
    InvalidArgumentError,
    MetadataFormatError,
    VersionConflictError,
)
from spark_bookkeeper.metadata.store import Cookie, MetadataStore, Versioned
from spark_bookkeeper.protocol.ids import BookieId, LedgerId

_OWN_NAMES = frozenset({MARKER_PATH, PROBE_DIRECTORY, "ledgers", "retired", "lost+found"})
"""What may be in a partition, and goes when it is formatted again."""

_NAMED_IN_A_MESSAGE = 10
"""Ledgers that a refusal lists by id."""


class Verdict(enum.Enum):
    """What to do with a partition that may be served."""

    ACCEPT = "all agree"
    FORMAT = "nobody knows anything: a new bookie"
    WRITE_COOKIE = "a formatting was interrupted before its last step"
    MOVE = "the same incarnation under another root"


@dataclass(frozen=True, slots=True)
class Claims:
    """What is said about one partition, and by whom."""

    bookie_id: BookieId
    """Who it is expected to be."""
    root_uri: str
    """Where it is."""
    instance_id: str
    """The cluster that it is expected to belong to."""
    cookie: Cookie | None
    """What the metadata store knows."""
    marker: Marker | None
    """What the storage says of itself."""
    has_content: bool
    """Whether there is anything in the partition beside the marker."""


def judge(claims: Claims) -> Verdict:
    """Decide whether a partition may be served.

    Raises:
        CookieMismatchError: it may not; nothing was changed. The text shows what is stored,
            expected and found, what that means, and the safe next command.
    """
    cookie, marker, bookie_id = claims.cookie, claims.marker, claims.bookie_id
    root = shlex.quote(claims.root_uri)
    start = f"spark-bookkeeper bookie start --bookie-id {bookie_id} --root {root}"
    if marker is not None and marker.instance_id != claims.instance_id:
        raise _mismatch(
            claims,
            "the storage belongs to another cluster",
            "use an empty directory or prefix as the root, or connect to the cluster it belongs "
            "to. Do not remove BOOKIE by hand: that cluster may hold its last good copies here",
        )
    if marker is not None and marker.bookie_id != bookie_id:
        raise _mismatch(
            claims,
            f"the storage is that of bookie {marker.bookie_id}",
            f"start it under its own id: `spark-bookkeeper bookie start --bookie-id "
            f"{marker.bookie_id} --root {root}`",
        )
    new = f"spark-bookkeeper bookie format --bookie-id {bookie_id} --root {root}"
    if cookie is None:
        if marker is not None and not claims.has_content:
            return Verdict.WRITE_COOKIE
        if marker is None and not claims.has_content:
            return Verdict.FORMAT
        if marker is None:
            raise _mismatch(
                claims,
                "the cluster knows no such bookie (any more), and the storage holds data of which "
                "nothing says whose it is",
                "use an empty directory or prefix as the root. What is here stays as it is; if no "
                f"ledger needs it, `{new}` makes a new bookie of it",
            )
        raise _mismatch(
            claims,
            "the cluster has no cookie of this bookie (any more), but the storage holds its data",
            "if the cookie was lost, or the bookie is to come back: `spark-bookkeeper bookie "
            f"cookie create --bookie-id {bookie_id} --root {root}` writes it again, and `{start}` "
            "serves what is here. Never do so with an older copy of the storage. If no ledger "
            f"needs what is here: `{new}` makes a new, empty bookie of it",
        )
    if marker is None:
        raise _mismatch(
            claims,
            "the bookie is known, and its data is not here: the storage is not mounted, or it "
            "was wiped",
            f"bring back the storage and repeat `{start}`. If it is lost for good: "
            f"`spark-bookkeeper bookie recover {bookie_id}` first, which copies what it held, "
            f"then `{new}`",
        )
    if cookie.instance_id not in (None, claims.instance_id):
        raise _mismatch(
            claims,
            "the cookie is from before this cluster was formatted",
            f"format the bookie as well if nothing of the old cluster is needed: `{new}`",
        )
    if cookie.incarnation != marker.incarnation:
        raise _mismatch(
            claims,
            "the storage was formatted at another time than the one the cluster knows: an old "
            "copy, or a partition that was wiped and formatted by hand",
            f"bring back the right storage and repeat `{start}`. If it is lost for good: "
            f"`spark-bookkeeper bookie recover {bookie_id}` first, which copies what it held, "
            f"then `{new}`",
        )
    if cookie.root_uri.rstrip("/") != claims.root_uri.rstrip("/"):
        return Verdict.MOVE
    return Verdict.ACCEPT


def claim_partition(
    store: MetadataStore,
    storage: Storage,
    bookie_id: BookieId,
    *,
    token: Callable[[], str],
    is_move_accepted: bool = False,
) -> Marker:
    """Return the marker of a partition that may be served, formatting a new one first.

    Args:
        store: the cluster.
        storage: the partition.
        bookie_id: who it is.
        token: gives names that were never used before.
        is_move_accepted: the partition may be known under another root. A *copy* of a
            partition looks the same as a moved one, and may lack what was acknowledged since.

    Raises:
        CookieMismatchError: it may not be served; nothing was changed.
        UnsuitableStorageError: a new partition on a file system that cannot fence.
        BookieUnavailableError, MetadataUnavailableError: somebody gave no answer; repeat it.
    """
    while True:
        known = store.read_cookie(bookie_id)
        claims = _claims(store, storage, bookie_id, known)
        verdict = judge(claims)
        if verdict is Verdict.ACCEPT:
            assert claims.marker is not None
            return claims.marker
        if verdict is Verdict.MOVE and not is_move_accepted:
            raise _moved(claims)
        marker = claims.marker
        if verdict is Verdict.WRITE_COOKIE:
            _check_whole(store, claims)
        if verdict is Verdict.FORMAT:
            marker = format_partition(storage, bookie_id, claims.instance_id, token=token)
        assert marker is not None
        if verdict is Verdict.MOVE:
            assert known is not None
            _retire_old_root(known.value.root_uri, storage, marker)
        try:
            store.write_cookie(_cookie(marker, storage), known.version if known else None)
        except VersionConflictError:
            continue  # somebody else was here: look again, and judge what is there now


def _retire_old_root(old_uri: str, storage: Storage, marker: Marker) -> None:
    """Take the marker away from what may be left at the root that a bookie has moved from.

    A client that found the bookie there before would go on asking it, and a copy lacks what is
    acknowledged from now on: without a marker its answers say nothing (SLOT-LOG rules R5, R11).
    Where the old root cannot be reached from here, the operator's word stands.
    """
    with suppress(BookKeeperError):
        old = open_storage(old_uri)
        try:
            if read_marker(old) == marker:
                old.delete(MARKER_PATH)
        finally:
            old.close()
    # The old root may be another name for the new one: a link, or a second mount.
    if read_marker(storage) is None:
        storage.put_if_absent(MARKER_PATH, marker.encode())


def restore_cookie(store: MetadataStore, storage: Storage, bookie_id: BookieId) -> Cookie:
    """Write the cookie of a partition that is whole, and whose cookie is gone.

    It is safe for the very partition that the ledgers mean, or when none means any of that id:

    * Metadata name the incarnation of every bookie in their ensembles, so a partition of another
      incarnation would never be asked for their entries (SLOT-LOG rule R11). It is refused here
      all the same: the right one may turn up.
    * Whoever was given up (``bookie recover --delete-cookie``) is in no ensemble any more, and
      what it holds is asked for by nobody. It comes back as one does that was down while its
      shares were made again elsewhere: what it stored of a ledger is what that ledger's writer
      sent it, still true, and it may be chosen for copies like any other.
    * What cannot be told from the marker is an older copy of the partition. The caller asks.

    Returns:
        the cookie, which may have been there already.

    Raises:
        CookieMismatchError: it is not that partition, or holds nothing while ledgers count on
            it; the text names the way out. Nothing was changed.
        VersionConflictError: somebody else wrote the cookie meanwhile.
    """
    known = store.read_cookie(bookie_id)
    claims = _claims(store, storage, bookie_id, known)
    if claims.marker is None and known is None:
        start = f"--bookie-id {bookie_id} --root {shlex.quote(claims.root_uri)}"
        raise _mismatch(
            claims,
            "the storage holds no BOOKIE marker, so nothing says that it is this bookie's",
            "bring back the right storage, and repeat. If it is lost for good: `spark-bookkeeper "
            f"bookie recover {bookie_id}` where ledgers count on it, then `spark-bookkeeper bookie "
            f"format {start}` makes a new bookie here",
        )
    is_there = known is not None
    verdict = judge(claims if is_there else replace(claims, has_content=False))
    if verdict is Verdict.MOVE:
        raise _moved(claims)
    if known is not None:
        return known.value
    assert claims.marker is not None
    for registration in store.registrations():
        if registration.bookie_id == bookie_id and (
            registration.incarnation != claims.marker.incarnation
            or registration.root_uri.rstrip("/") != claims.root_uri.rstrip("/")
        ):
            raise _mismatch(
                claims,
                f"an agent serves the bookie from {registration.root_uri}, incarnation "
                f"{registration.incarnation or '?'}",
                "if that is the right storage, name it as the root; if this is, stop that agent, "
                "and repeat",
            )
    _check_whole(store, claims)
    cookie = _cookie(claims.marker, storage)
    store.write_cookie(cookie, None)
    return cookie


def forget_bookie(store: MetadataStore, bookie_id: BookieId) -> None:
    """Delete the cookie of a bookie that is down and that no ledger counts on, whatever it says.

    Raises:
        InvalidArgumentError: it is alive, has no cookie, or a ledger counts on it; nothing was
            changed, and the text names the way.
        VersionConflictError: its cookie was written again meanwhile, and stays.
    """
    version = store.cookie_version(bookie_id)
    if version is None:
        raise InvalidArgumentError(
            f"bookie {bookie_id} has no cookie; nothing was changed. `spark-bookkeeper bookie "
            "list` shows the bookies"
        )
    check_forgettable(store, [bookie_id])
    needed = ledgers_that_name(store, bookie_id)
    if needed:
        raise InvalidArgumentError(
            f"{'ledger' if len(needed) == 1 else 'ledgers'} {_shown(needed)} still "
            f"{'counts' if len(needed) == 1 else 'count'} on bookie {bookie_id}; its cookie stays. "
            f"Run `spark-bookkeeper bookie recover {bookie_id}` first, which copies what it held",
            ledger_ids=tuple(needed),
        )
    store.delete_cookie(bookie_id, version)
    forget_order(store, bookie_id)


def check_forgettable(store: MetadataStore, bookie_ids: Sequence[BookieId]) -> None:
    """Refuse to delete the cookie of a bookie that is alive.

    It would go on, and once stopped it could not be started. (An agent that starts at this very
    moment finds its cookie gone, and takes no new data: ``has_cookie``.)

    Raises:
        InvalidArgumentError: one is registered; nothing was changed.
    """
    alive = {registration.bookie_id for registration in store.registrations()}
    for bookie_id in bookie_ids:
        if bookie_id in alive:
            raise InvalidArgumentError(
                f"bookie {bookie_id} is alive (registered), and its cookie is deleted only when it "
                "is down; nothing was changed. Stop its agent, and repeat. To copy its data "
                f"elsewhere before: `spark-bookkeeper bookie recover {bookie_id} --even-if-alive`"
            )


def has_cookie(store: MetadataStore, marker: Marker) -> bool:
    """Whether the cookie of a partition that is being served is still there. One read.

    Raises:
        CookieMismatchError: it is that of another partition; nothing was changed.
        MetadataUnavailableError: no answer.
    """
    bookie_id = BookieId(marker.bookie_id)
    known = store.read_cookie(bookie_id)
    if known is None:
        return False
    if known.value.incarnation != marker.incarnation:
        raise CookieMismatchError(
            f"bookie {bookie_id} was formatted by somebody else while its agent ran: its cookie "
            f"says incarnation {known.value.incarnation or '?'}, and the storage here is "
            f"{marker.incarnation}. Stop this agent; start it again to have the bookie checked "
            "from the beginning",
            bookie_id=bookie_id,
        )
    return True


def check_claim(store: MetadataStore, storage: Storage, marker: Marker) -> None:
    """Check that a partition that was claimed before still is what it was. Changes nothing.

    Raises:
        CookieMismatchError: it is not; for one, its cookie was deleted because the bookie was
            given up.
    """
    bookie_id = BookieId(marker.bookie_id)
    claims = _claims(store, storage, bookie_id, store.read_cookie(bookie_id))
    if judge(claims) is not Verdict.ACCEPT or claims.marker != marker:
        raise _mismatch(
            claims,
            "the bookie was given up, or formatted by somebody else, while its agent ran",
            "stop this agent; start it again to have the bookie checked from the beginning",
        )


def format_bookie(
    store: MetadataStore,
    storage: Storage,
    bookie_id: BookieId,
    *,
    token: Callable[[], str],
    on_check: OnCheck = tell_nobody,
) -> Marker:
    """Make a partition that may have been a bookie before into a new, empty one.

    Everything in it is removed. It is refused while that could remove the last good copy of
    anything. ``on_check`` is told what the probe of the file system finds to hold.

    Raises:
        InvalidArgumentError: the bookie is alive, a ledger still names it, or the storage
            belongs to somebody else; nothing was changed.
        UnsuitableStorageError: the file system cannot fence.
    """
    known = store.read_cookie(bookie_id)
    claims = _claims(store, storage, bookie_id, known)
    found = claims.marker
    if found is not None and (found.instance_id, found.bookie_id) != (
        claims.instance_id,
        bookie_id,
    ):
        raise InvalidArgumentError(
            f"the storage at {storage.uri} belongs to bookie {found.bookie_id} of cluster "
            f"{found.instance_id}, not to {bookie_id} of {claims.instance_id}; it may hold the "
            "last good copy of something. Nothing was changed; use an empty root"
        )
    if any(r.bookie_id == bookie_id for r in store.registrations()):
        raise InvalidArgumentError(
            f"bookie {bookie_id} is alive; stop its agent first. Nothing was changed"
        )
    needed = ledgers_that_name(store, bookie_id, for_certain=True)
    if needed:
        way = ""
        if known is None and found is not None:  # its own copies can be reached only with a cookie
            way = (
                f"`spark-bookkeeper bookie cookie create --bookie-id {bookie_id} --root "
                f"{shlex.quote(storage.uri)}`, then "
            )
        raise InvalidArgumentError(
            f"bookie {bookie_id} may hold the last good copy of entries of ledger "
            f"{_shown(needed)}. Run {way}`spark-bookkeeper bookie recover {bookie_id}` first; it "
            "copies what the bookie held to others. Nothing was changed",
            ledger_ids=tuple(needed),
        )
    foreign = [
        name
        for name in storage.list("")
        if name not in _OWN_NAMES and not name.startswith(AGENT_PROBE_PREFIX)
    ]
    if foreign:
        raise InvalidArgumentError(
            f"{storage.uri} holds what is not a bookie's ({', '.join(foreign[:3])}); move it "
            "elsewhere, or use an empty root. Nothing was changed"
        )
    wipe_partition(storage)
    marker = format_partition(
        storage, bookie_id, claims.instance_id, token=token, on_check=on_check
    )
    store.write_cookie(_cookie(marker, storage), known.version if known else None)
    forget_order(store, bookie_id)
    return marker


def ledgers_that_name(
    store: MetadataStore, bookie_id: BookieId, *, for_certain: bool = False
) -> Sequence[LedgerId]:
    """Every ledger with a fragment on the bookie, ascending; reads all ledgers' metadata.

    Args:
        for_certain: one that cannot be decoded is an error, and not left out.

    Raises:
        MetadataFormatError: of a ledger it cannot be told.
    """
    naming: list[LedgerId] = []
    for ledger_id, found in store.read_ledgers(store.ledger_ids()):
        if isinstance(found, Versioned):
            if bookie_id in found.value.bookies():
                naming.append(ledger_id)
        elif found is not None and for_certain:
            raise found
    return naming


def _shown(ledger_ids: Sequence[LedgerId]) -> str:
    shown = ", ".join(map(str, ledger_ids[:_NAMED_IN_A_MESSAGE]))
    more = len(ledger_ids) - _NAMED_IN_A_MESSAGE
    return f"{shown} and {more} more" if more > 0 else shown


def _check_whole(store: MetadataStore, claims: Claims) -> None:
    """Refuse a partition without a cookie that is not the one the ledgers mean, or is empty.

    Reads all ledgers' metadata, which is for a day on which a cookie was lost. One that cannot be
    decoded is passed over: what it means is checked again by whoever reads it (R11).
    """
    assert claims.marker is not None
    wrong: list[LedgerId] = []
    needed: list[LedgerId] = []
    for ledger_id, found in store.read_ledgers(store.ledger_ids()):
        if not isinstance(found, Versioned) or claims.bookie_id not in found.value.bookies():
            continue
        try:
            ledger = Ledger.of(ledger_id, found.value)
        except MetadataFormatError:
            continue  # another client's, which has no data on partitions like this one
        meant = ledger.incarnations.get(claims.bookie_id)
        (needed if meant == claims.marker.incarnation else wrong).append(ledger_id)
    root = shlex.quote(claims.root_uri)
    anew = (
        f"If it is lost for good: `spark-bookkeeper bookie recover {claims.bookie_id}` first, "
        "which makes its copies again from others, then `spark-bookkeeper bookie format "
        f"--bookie-id {claims.bookie_id} --root {root}`"
    )
    if wrong:
        raise _mismatch(
            claims,
            f"ledger {_shown(wrong)} counts on another formatting of this bookie's storage",
            f"bring back the storage that it means. {anew}",
        )
    if needed and not claims.has_content:
        raise _mismatch(
            claims,
            f"ledger {_shown(needed)} counts on what this very storage held, and it is empty",
            f"bring back what it held. {anew}",
        )


def _moved(claims: Claims) -> CookieMismatchError:
    return _mismatch(
        claims,
        "the bookie is known under another root: it was moved, or this is a copy",
        "if it was moved and nothing is left at the old root: `spark-bookkeeper bookie start "
        f"--bookie-id {claims.bookie_id} --root {shlex.quote(claims.root_uri)} --moved`. Never do "
        "so for a copy: it lacks what was acknowledged since",
    )


def _claims(
    store: MetadataStore,
    storage: Storage,
    bookie_id: BookieId,
    known: Versioned[Cookie] | None,
) -> Claims:
    return Claims(
        bookie_id=bookie_id,
        root_uri=storage.uri,
        instance_id=store.instance_id(),
        cookie=known.value if known else None,
        marker=read_marker(storage),
        has_content=holds_anything(storage),
    )


def _cookie(marker: Marker, storage: Storage) -> Cookie:
    return Cookie(
        bookie_id=BookieId(marker.bookie_id),
        root_uri=storage.uri,
        incarnation=marker.incarnation,
        instance_id=marker.instance_id,
    )


def _mismatch(claims: Claims, meaning: str, remedy: str) -> CookieMismatchError:
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
        nothing_changed=True,
    )
