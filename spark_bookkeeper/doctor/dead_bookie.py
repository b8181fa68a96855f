"""The diagnosis of a bookie that is not registered; its storage often shows the reason."""

from __future__ import annotations

import shlex
import socket
from dataclasses import dataclass

from spark_bookkeeper.agent.identity import claims_of, judge
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.connection import partition_of
from spark_bookkeeper.doctor.diagnosis import Diagnosis
from spark_bookkeeper.errors import (
    BookKeeperError,
    CookieMismatchError,
    MetadataUnavailableError,
)
from spark_bookkeeper.metadata.store import Cookie
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.underreplication import RECOVER


def absent_bookie(
    context: ClientContext,
    bookie: BookieId,
    cookie: Cookie | None,
    *,
    is_named: bool,
    is_certain: bool,
    metadata_only: bool,
    attended: str | None = None,
) -> Diagnosis:
    """Diagnose a bookie as lost or only away. Its storage is read if possible, and not changed.

    Args:
        cookie: the bookie's cookie, if any.
        is_named: whether some ledger counts on it.
        is_certain: whether the metadata of all ledgers could be read for that.
        metadata_only: do not look at its storage.
        attended: what already makes its copies again; ``None``: nothing does.
    """
    check = f"bookie {bookie}"
    where = f"; its storage was {cookie.root_uri}" if cookie else "; it has no cookie"
    if not is_named and not is_certain:
        return Diagnosis(
            check,
            "warning",
            f"not registered{where}; no ledger that can be read counts on it",
            "start its agent again. If it is gone for good: spark-bookkeeper bookie cookie delete "
            f"{bookie} --even-if-unreadable, which insists, as there are ledgers whose metadata "
            "cannot be decoded, and one of them may count on it",
        )
    seen = None
    if cookie is not None and cookie.incarnation and not metadata_only:
        seen = _seen_at(context, bookie, cookie, attended)
    if not is_named:
        found, start = "", "start its agent again"
        if seen is not None and not seen.can_start:
            found = f". Seen from {socket.gethostname()}: {seen.found}"
            start = "bring back its storage, and start its agent again"
        return Diagnosis(
            check,
            "warning",
            f"not registered{where}, and no ledger counts on it{found}",
            f"{start}, or have it forgotten, after which an empty directory can be a new bookie: "
            f"spark-bookkeeper bookie cookie delete {bookie}",
        )
    if seen is None:
        return Diagnosis(
            check,
            "problem",
            f"lost: not registered{where}",
            f"start its agent again if its storage is there; else {_copies(bookie, attended)}",
        )
    return Diagnosis(
        check,
        "problem",
        f"lost: not registered{where}. Seen from {socket.gethostname()}: {seen.found}",
        seen.remedy,
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """The findings at the root of a bookie."""

    found: str
    remedy: str
    """The remedy if ledgers count on the bookie."""
    can_start: bool = False
    """Whether its agent would serve it."""


def _copies(bookie: BookieId, attended: str | None) -> str:
    """Return how its copies are made again."""
    return attended or f"make its copies again: {RECOVER.format(bookie)} --delete-cookie"


def _seen_at(
    context: ClientContext, bookie: BookieId, cookie: Cookie, attended: str | None
) -> _Seen | None:
    """Read its root, and return what to do; ``None`` if that shows nothing.

    The agent judges by the same rules before it serves the partition.
    """
    copies = _copies(bookie, attended)
    try:
        partition = partition_of(context, bookie)
        claims = claims_of(context.store, partition, bookie, context.store.read_cookie(bookie))
        judge(claims)
        gone = None if claims.marker is None else partition.lost_directory(claims.marker)
    except CookieMismatchError as error:
        meaning, remedy = error.facts.get("meaning"), error.facts.get("remedy")
        if not meaning or not remedy:
            return _Seen(error.message, copies)
        if attended is not None:
            remedy = f"what it held: {attended}. The bookie itself: {remedy}"
        return _Seen(str(meaning), str(remedy))
    except MetadataUnavailableError:
        raise
    except BookKeeperError as error:
        return _Seen(f"no answer: {error.message}", f"make its storage answer again; else {copies}")
    if claims.marker is None:
        return None
    if gone is not None:
        return _Seen(gone, f"if what it held cannot be put back, {copies}")
    return _Seen(
        "its storage is there and is its own: its agent does not run, or does not reach ZooKeeper",
        f"spark-bookkeeper bookie start --bookie-id {bookie} --root {shlex.quote(cookie.root_uri)} "
        "(and what else it was started with, as --rack)",
        can_start=True,
    )
