"""Entries that one bookie's records tell of, from the files of another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from spark_bookkeeper.bookie.holdings import Holdings
from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.protocol.metadata import DigestType


def salvage(
    replicas: Sequence[Replica], entries: Sequence[EntryId]
) -> Iterator[tuple[Replica, Holdings, list[EntryId]]]:
    """Every way to read what one bookie's records tell of from the files of another.

    The last resort, when on each bookie either the record of an entry is damaged or its bytes
    are: parts are often on several, and slots often hold the same on every bookie. Whatever
    is read is verified with the digest of the good record; without digests there is no way.

    Yields:
        the bookie to read from, what another one told, and the entries that this one knows.
    """
    told: list[tuple[Replica, Holdings]] = []
    for replica in replicas:
        with suppress(BookKeeperError):
            told.append((replica, replica.holdings(entries[0], entries[-1])))
    for teller, holdings in told:
        known = [entry_id for entry_id in entries if entry_id in holdings]
        for replica in replicas:
            has_digests = replica.ledger.encoding.digest_type is not DigestType.DUMMY
            if known and replica is not teller and has_digests:
                yield replica, holdings, known
