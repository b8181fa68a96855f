"""Copies that no fragment names, and when they may go: the word of the register (rule R19).

Re-replication copies to a bookie first; the register, which is the ledger's metadata, names the
bookie afterwards. In between these copies look like leftovers, which a collector removes. Neither
knows of the other, and either may sleep at any moment. So the collector writes into the register
that it removes copies before it begins, and that it has ended when it has. Whoever has a bookie
named checks in the same compare-and-swap that nobody is removing copies from it, and that nobody
has done so since he read the register, which he did before he copied. Each collector has a token of
its own and takes back no other's: one that was killed is never known to have ended, and its bookie
takes no more copies of that ledger.

Source: SLOT-LOG rule R19.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.metadata import LedgerMetadata
from spark_bookkeeper.protocol.stored_json import decoded

COLLECTED: Final = "spark-bookkeeper.collected"
"""The key of custom metadata: for each bookie and incarnation the tokens of those who remove copies
from it, and how many have ended."""

TOKENS_MOST: Final = 8
"""Of collectors that began and did not say that they ended; one more is refused."""


@dataclass(frozen=True, slots=True)
class Collections:
    """What was removed, and is being removed, from one bookie in one incarnation."""

    tokens: tuple[str, ...] = ()
    ended: int = 0


def collections_of(metadata: LedgerMetadata, bookie: BookieId, incarnation: str) -> Collections:
    """What the register says. Raises ``ValueError`` where that cannot be told."""
    found = _decoded(metadata).get(f"{bookie}/{incarnation}")
    if found is None:
        return Collections()
    tokens, ended = found
    return Collections(tuple(str(token) for token in tokens), int(ended))


def may_be_named(now: LedgerMetadata, before: LedgerMetadata, bookie: BookieId) -> bool:
    """Whether copies that were made on a bookie, or found there, after ``before`` was read are
    certainly still there.

    Every incarnation of it is looked at: who removes from a former one may have looked at the
    marker before the partition was formatted, and go on in the new one.

    Args:
        now: the metadata that the compare-and-swap replaces.
        before: read before anything was copied, or looked for.
    """
    try:
        found = _of_bookie(now, bookie)
        return found == _of_bookie(before, bookie) and not any(
            each.tokens for each in found.values()
        )
    except ValueError:
        return False


def being_removed(metadata: LedgerMetadata, bookies: Iterable[BookieId]) -> dict[BookieId, str]:
    """Those that cannot be named now, and why: nobody is to copy there, nor to plan it."""
    if COLLECTED not in metadata.custom_metadata:
        return {}
    reason = "copies of this ledger are being removed from it"
    return {b: reason for b in bookies if not may_be_named(metadata, metadata, b)}


def with_collection(
    metadata: LedgerMetadata, bookie: BookieId, incarnation: str, token: str
) -> LedgerMetadata | None:
    """The register's next value: somebody removes from now on. ``None``: he may not.

    He may where the ledger is closed, so that only re-replication changes it, no fragment names the
    bookie, and it can be written down.
    """
    if not metadata.is_closed or bookie in metadata.bookies():
        return None
    try:
        found = collections_of(metadata, bookie, incarnation)
    except ValueError:
        return None
    if token in found.tokens:
        return metadata
    if len(found.tokens) >= TOKENS_MOST:
        return None
    return _with(metadata, bookie, incarnation, Collections((*found.tokens, token), found.ended))


def without_collection(
    metadata: LedgerMetadata, bookie: BookieId, incarnation: str, token: str
) -> LedgerMetadata:
    """The register's next value: he has removed what he meant to, and will remove no more."""
    found = collections_of(metadata, bookie, incarnation)
    if token not in found.tokens:
        return metadata
    left = tuple(other for other in found.tokens if other != token)
    return _with(metadata, bookie, incarnation, Collections(left, found.ended + 1))


def _of_bookie(metadata: LedgerMetadata, bookie: BookieId) -> dict[str, Collections]:
    """By incarnation."""
    found = {}
    for key, (tokens, ended) in _decoded(metadata).items():
        name, _, incarnation = key.rpartition("/")
        if name == bookie:
            found[incarnation] = Collections(tuple(map(str, tokens)), int(ended))
    return found


def _with(
    metadata: LedgerMetadata, bookie: BookieId, incarnation: str, new: Collections
) -> LedgerMetadata:
    values = _decoded(metadata) | {f"{bookie}/{incarnation}": [list(new.tokens), new.ended]}
    data = json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
    return metadata.with_custom(**{COLLECTED: data})


def _decoded(metadata: LedgerMetadata) -> dict[str, tuple[list[str], int]]:
    if COLLECTED not in metadata.custom_metadata:
        return {}
    return decoded(metadata.custom_metadata[COLLECTED], _by_bookie)


def _by_bookie(found: Any) -> dict[str, tuple[list[str], int]]:
    is_right = isinstance(found, dict) and all(
        isinstance(each, list)
        and len(each) == 2
        and isinstance(each[0], list)
        and isinstance(each[1], int)
        for each in found.values()
    )
    if not is_right:
        raise ValueError(f"{COLLECTED} is {str(found)[:80]}")
    return dict(found)
