"""Open ledgers of very many small files: compaction takes closed ones only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.doctor.diagnosis import Diagnosis
from spark_bookkeeper.doctor.ledgers import MOST_NAMED, LedgersSeen
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.protocol.ids import LedgerId

MANY_FILES: Final = 10_000
"""Files of one ledger on one bookie. Each takes about 4 KiB and an inode."""

LOOKED_AT: Final = 100
"""The most open ledgers, newest first, whose files are listed on one bookie."""


def crowded_ledgers(context: ClientContext, ledgers: LedgersSeen) -> Iterator[Diagnosis]:
    """Find open ledgers with many small files, probably from appends that wait for each entry."""

    def files(ledger_id: LedgerId) -> int:
        try:
            ledger = Ledger.of(ledger_id, ledgers.readable[ledger_id])
            bookie = ledger.metadata.last_fragment.ensemble[0]
            return context.bookies.bookie(bookie).files_of(ledger.key)
        except BookKeeperError:  # another finding names the bookie
            return 0

    ids = sorted(ledgers.open, reverse=True)[:LOOKED_AT]
    newest = "" if len(ids) == len(ledgers.open) else f"the newest {len(ids):,} of "
    counts = dict(zip(ids, context.runtime.map(files, ids), strict=True))
    crowded = sorted((i for i in ids if counts[i] >= MANY_FILES), key=lambda i: -counts[i])
    if crowded:
        named = ", ".join(f"{i} ({counts[i]:,} files)" for i in crowded[:MOST_NAMED])
        yield Diagnosis(
            "small appends",
            "warning",
            f"of {newest}{len(ledgers.open):,} open ledgers, {len(crowded):,} have {MANY_FILES:,} "
            f"files or more on a bookie: {named}. Each append that is waited for is a file on each "
            "bookie",
            "use append_async or larger batches, which share files. Closed ledgers are compacted: "
            "close these at times; a log does so by roll(), or by itself if made with roll_entries",
        )
