"""Cookies: the cluster's records of bookies, which exist also while a bookie is down.

A cookie names a bookie's partition, its URI and its incarnation. This module makes a lost cookie
again, and deletes the cookie of a bookie that leaves the cluster.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from spark_bookkeeper.agent.dependents import dependents_of
from spark_bookkeeper.agent.identity import (
    Claims,
    Judgement,
    claims_of,
    judge,
    mismatch,
    moved,
)
from spark_bookkeeper.agent.readonly import forget_order
from spark_bookkeeper.bookie.marker import Marker
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.errors import (
    CookieMismatchError,
    InvalidArgumentError,
    MetadataFormatError,
    VersionConflictError,
)
from spark_bookkeeper.metadata.store import Cookie, MetadataStore, Versioned
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.underreplication import RECOVER
from spark_bookkeeper.replication.report import some_of


def restore_cookie(store: MetadataStore, partition: Partition, bookie_id: BookieId) -> Cookie:
    """Write the missing cookie of a partition that is whole.

    Returns:
        the cookie, which may have existed already.

    Raises:
        CookieMismatchError: see ``generate_cookie``.
        VersionConflictError: another client wrote the cookie meanwhile.
    """
    cookie, is_there = generate_cookie(store, partition, bookie_id)
    if not is_there:
        store.write_cookie(cookie, None)
    return cookie


def generate_cookie(
    store: MetadataStore, partition: Partition, bookie_id: BookieId
) -> tuple[Cookie, bool]:
    """Return the cookie of a partition that is whole, made from its marker. Changes nothing.

    Writing it is safe if the ledgers mean exactly this partition, or if no ledger names the bookie:

    * Metadata name the incarnation of every bookie in their ensembles, so no client would read
      their entries from a partition of another incarnation (SLOT-LOG rule R11). It is refused here
      all the same: the right partition may be found later.
    * A bookie that was removed (``bookie recover --delete-cookie``) is in no ensemble any more, so
      no client reads its old entries. They are still true, for a ledger's entries never change. The
      bookie may be chosen for new data and copies like any other.
    * The marker does not reveal an older copy of the partition. The caller asks the operator.

    Returns:
        the cookie, and whether the cluster has it: then it is returned as stored there.

    Raises:
        CookieMismatchError: it is another partition, or is empty while ledgers count on
            it; the text names the remedy.
    """
    known = store.read_cookie(bookie_id)
    claims = claims_of(store, partition, bookie_id, known)
    if claims.marker is None and known is None:
        start = f"--bookie-id {bookie_id} --root {shlex.quote(claims.root_uri)}"
        raise mismatch(
            claims,
            "the storage holds no BOOKIE marker, so nothing says that it is this bookie's",
            "bring back the right storage, and repeat. If it is lost for good: "
            f"`{RECOVER.format(bookie_id)}` where ledgers count on it, then `spark-bookkeeper "
            f"bookie format {start}` makes a new bookie here",
        )
    is_there = known is not None
    verdict = judge(claims if is_there else replace(claims, has_content=False))
    if verdict is Judgement.MOVE:
        raise moved(claims)
    if known is not None:
        return known.value, True
    assert claims.marker is not None
    for registration in store.registrations():
        if registration.bookie_id == bookie_id and (
            registration.incarnation != claims.marker.incarnation
            or registration.root_uri.rstrip("/") != claims.root_uri.rstrip("/")
        ):
            raise mismatch(
                claims,
                f"an agent serves the bookie from {registration.root_uri}, incarnation "
                f"{registration.incarnation or '?'}",
                "if that is the right storage, name it as the root; if this is, stop that agent, "
                "and repeat",
            )
    check_whole(store, claims)
    return cookie_of(claims.marker, partition), False


def forget_bookie(
    store: MetadataStore, bookie_id: BookieId, *, even_if_unreadable: bool = False
) -> None:
    """Delete the cookie of a bookie that is down and that no ledger counts on. The cookie's content
    is not checked.

    Args:
        even_if_unreadable: see ``check_forgotten_by_all``.

    Raises:
        InvalidArgumentError: see ``check_forgotten_by_all``.
        VersionConflictError: another client wrote the cookie meanwhile, for example an agent that
            started (``touch_cookie``); the cookie stays.
    """
    version = check_forgotten_by_all(store, bookie_id, even_if_unreadable=even_if_unreadable)
    check_forgettable(store, [bookie_id])  # reading all ledgers may have taken minutes
    store.delete_cookie(bookie_id, version)
    forget_order(store, bookie_id)


def check_forgotten_by_all(
    store: MetadataStore, bookie_id: BookieId, *, even_if_unreadable: bool = False
) -> int:
    """Check that a bookie's cookie may be deleted, and return the cookie's version. Reads the
    metadata of all ledgers.

    Args:
        even_if_unreadable: also while there are ledgers whose metadata cannot be decoded, any of
            which may count on it.

    Raises:
        InvalidArgumentError: it is alive, has no cookie, or a ledger counts on it or may; nothing
            was changed, and the text names the remedy.
    """
    version = store.cookie_version(bookie_id)
    if version is None:
        raise InvalidArgumentError(
            f"bookie {bookie_id} has no cookie; nothing was changed. `spark-bookkeeper bookie "
            "list` shows the bookies"
        )
    check_forgettable(store, [bookie_id])
    found = dependents_of(store, bookie_id)
    if needed := found.ledger_ids:
        raise InvalidArgumentError(
            f"{'ledger' if len(needed) == 1 else 'ledgers'} {some_of(needed)} still "
            f"{'counts' if len(needed) == 1 else 'count'} on bookie {bookie_id}; its cookie stays. "
            f"Run `{RECOVER.format(bookie_id)}` first, which copies what it held",
            ledger_ids=tuple(needed),
        )
    if found.doubt is not None and not even_if_unreadable:
        raise InvalidArgumentError(
            f"the cookie of bookie {bookie_id} stays: {found.doubt}. Repeat when nothing is in "
            f"doubt. If the bookie is gone for good, `spark-bookkeeper bookie cookie delete "
            f"{bookie_id} --even-if-unreadable` forgets it all the same",
            ledger_ids=tuple(found.undecodable),
        )
    return version


def check_forgettable(store: MetadataStore, bookie_ids: Sequence[BookieId]) -> None:
    """Refuse to delete the cookie of a bookie that is alive.

    The bookie would go on, and once stopped it could not start again. (An agent that starts at this
    very moment finds its cookie gone, and takes no new data: ``has_cookie``.)

    Raises:
        InvalidArgumentError: one is registered; nothing was changed.
    """
    alive = {registration.bookie_id for registration in store.registrations()}
    for bookie_id in bookie_ids:
        if bookie_id in alive:
            raise InvalidArgumentError(
                f"bookie {bookie_id} is alive (registered), and its cookie is deleted only when it "
                "is down; nothing was changed. Stop its agent, and repeat. To copy its data "
                f"elsewhere before: `{RECOVER.format(bookie_id)} --even-if-alive`"
            )


def touch_cookie(store: MetadataStore, bookie_id: BookieId) -> bool:
    """Write a bookie's cookie again, unchanged, after the bookie has registered.

    Another client may have found the bookie down and without ledgers before the registration. New
    ledgers may count on the bookie by now. The new version makes that client's deletion fail.

    Returns:
        False: the cookie is gone, or another client wrote it; ``has_cookie`` shows which.

    Raises:
        MetadataUnavailableError: no answer.
    """
    known = store.read_cookie(bookie_id)
    if known is None:
        return False
    try:
        store.write_cookie(known.value, known.version)
    except VersionConflictError:
        return False
    return True


def has_cookie(store: MetadataStore, marker: Marker) -> bool:
    """Whether the cookie of a served partition still exists. One read.

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


def check_whole(store: MetadataStore, claims: Claims) -> None:
    """Raise if a ledger names another incarnation, or names this one and the partition is empty.

    It reads the metadata of every ledger, which is slow, so it runs only when a cookie is missing.
    It skips a ledger that cannot be decoded: a read of that ledger's data checks the incarnation
    again (R11).
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
            continue  # another client's ledger, with no data on partitions like this one
        meant = ledger.incarnations.get(claims.bookie_id)
        (needed if meant == claims.marker.incarnation else wrong).append(ledger_id)
    root = shlex.quote(claims.root_uri)
    anew = (
        f"If it is lost for good: `{RECOVER.format(claims.bookie_id)}` first, which "
        "makes its copies again from others, then `spark-bookkeeper bookie format "
        f"--bookie-id {claims.bookie_id} --root {root}`"
    )
    if wrong:
        raise mismatch(
            claims,
            f"ledger {some_of(wrong)} counts on another formatting of this bookie's storage",
            f"bring back the storage that it means. {anew}",
        )
    if needed and not claims.has_content:
        raise mismatch(
            claims,
            f"ledger {some_of(needed)} counts on what this very storage held, and it is empty",
            f"bring back what it held. {anew}",
        )


def cookie_of(marker: Marker, partition: Partition) -> Cookie:
    """Return the cookie that belongs to a partition with this marker."""
    return Cookie(
        bookie_id=BookieId(marker.bookie_id),
        root_uri=partition.uri,
        incarnation=marker.incarnation,
        instance_id=marker.instance_id,
    )
