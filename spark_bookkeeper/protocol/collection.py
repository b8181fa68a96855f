"""Copies that no fragment names, and the register's permission to remove them (rule R19).

Rereplication first copies to a bookie; then the register, which is the ledger's metadata, names the
bookie. In between these copies look like leftovers, which a collector removes. Neither process
knows of the other, and either may pause at any moment. So the collector writes into the register
before it begins to remove copies, and again after it ended. A process that publishes a bookie
checks in the same compare-and-swap that no collector is removing copies from it, and that none has
done so since the process read the register, before it copied. Each collector has its own token and
withdraws no other. A killed collector never counts as ended, so its bookie takes no more copies of
that ledger.

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
"""The key of custom metadata with, for each bookie and incarnation, the tokens of collectors that
remove copies, and the number of collectors that ended."""

TOKENS_MOST: Final = 8
"""The most collectors that began and have not ended; one more is refused."""


@dataclass(frozen=True, slots=True)
class Collections:
    """The past and present removals from one bookie in one incarnation."""

    tokens: tuple[str, ...] = ()
    ended: int = 0


def collections_of(metadata: LedgerMetadata, bookie: BookieId, incarnation: str) -> Collections:
    """Return the collections in the register. Raises ``ValueError`` if they cannot be decoded."""
    found = _decoded(metadata).get(f"{bookie}/{incarnation}")
    if found is None:
        return Collections()
    tokens, ended = found
    return Collections(tuple(str(token) for token in tokens), int(ended))


def may_be_named(now: LedgerMetadata, before: LedgerMetadata, bookie: BookieId) -> bool:
    """Return whether copies made or found on a bookie after ``before`` was read certainly still
    exist.

    Every incarnation is checked: a collector of an earlier one may have read the marker before the
    partition was formatted, and go on in the new one.

    Args:
        now: the metadata that the compare-and-swap replaces.
        before: the metadata as read before any copy was made, or looked for.
    """
    try:
        found = _of_bookie(now, bookie)
        return found == _of_bookie(before, bookie) and not any(
            each.tokens for each in found.values()
        )
    except ValueError:
        return False


def being_removed(metadata: LedgerMetadata, bookies: Iterable[BookieId]) -> dict[BookieId, str]:
    """Return the bookies that cannot be named now, and why: neither copy nor plan to copy there."""
    if COLLECTED not in metadata.custom_metadata:
        return {}
    reason = "copies of this ledger are being removed from it"
    return {b: reason for b in bookies if not may_be_named(metadata, metadata, b)}


def with_collection(
    metadata: LedgerMetadata, bookie: BookieId, incarnation: str, token: str
) -> LedgerMetadata | None:
    """Return the metadata in which a collector removes copies; ``None`` if it may not.

    It may if the ledger is closed, so that only rereplication changes it, if no fragment names the
    bookie, and if the register has room.
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
    """Return the metadata in which this collector has ended, and removes nothing more."""
    found = collections_of(metadata, bookie, incarnation)
    if token not in found.tokens:
        return metadata
    left = tuple(other for other in found.tokens if other != token)
    return _with(metadata, bookie, incarnation, Collections(left, found.ended + 1))


def _of_bookie(metadata: LedgerMetadata, bookie: BookieId) -> dict[str, Collections]:
    """Return the collections of a bookie by incarnation."""
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
