"""Read entries from one bookie's files by the records of another bookie."""

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
    """Yield every way to read the entries of one bookie's records from the files of another.

    This is the last resort, when each bookie has a damaged record of an entry or damaged bytes. It
    helps because parts are often on several bookies, and slots often hold the same on each. The
    digest of the good record verifies the bytes; without digests nothing is yielded.

    Yields:
        the bookie to read from, the records of another bookie, and the entries in these records.
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
