"""Every option of the data source, in every place where it can be used, with what comes of it.

``test_source_options.py`` runs them on Spark; ``tests/source/test_documents.py`` sees to it that
none is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from spark_bookkeeper.source.options import Use


class Case(NamedTuple):
    """One read or write."""

    use: Use
    options: Mapping[str, str]
    """Where ``{ledger}`` and the like stand, a test puts what it has made."""
    rows: int
    """How many come, or are there afterwards."""


EVERYWHERE: Final = {
    "metadataUri": "{uri}",
    "zk.randomize_hosts": "false",
    "storage.endpoint_url": "http://no.bucket.here",
}

CASES: Final = {
    "a ledger": Case(
        Use.READ,
        {
            "ledger": "{ledger}",
            "password": "secret",
            "startingOffsets": "{ledger}:2",
            "endingOffsets": '{{"ledger": {ledger}, "entry": 8}}',
            "openMode": "noRecovery",
            "includeMetadata": "true",
            "columns": "name",
            "bookie": "{bookie}",
            "minPartitions": "2",
            "maxEntriesPerPartition": "2",
            "failOnDataLoss": "false",
        },
        60,
    ),
    "ledgers": Case(Use.READ, {"ledgers": "{other},{another}"}, 20),
    "a log": Case(Use.READ, {"log": "{log}"}, 50),
    "a view": Case(Use.READ, {"view": "entries", "ledger": "{ledger}"}, 10),
    "a stream of a log": Case(
        Use.STREAM,
        {
            "log": "{log}",
            "startingOffsets": "earliest",
            "includeMetadata": "true",
            "columns": "name",
            "maxEntriesPerPartition": "1",
            "failOnDataLoss": "false",
            "consumer": "cases",
        },
        50,
    ),
    "a stream of a ledger": Case(
        Use.STREAM,
        {
            "ledger": "{ledger}",
            "password": "secret",
            "startingOffsets": "{ledger}:3",
            "maxEntriesPerTrigger": "4",
            "maxBytesPerTrigger": "1m",
        },
        70,
    ),
    "a new ledger": Case(
        Use.WRITE,
        {
            "ledgerId": "{new}",
            "name": "of-cases",
            "ensembleSize": "4",
            "writeQuorumSize": "2",
            "ackQuorumSize": "1",
            "digestType": "MAC",
            "password": "secret",
            "compression": "zstd",
            "entryTargetBytes": "1k",
        },
        10,
    ),
    "a write to a log": Case(
        Use.WRITE, {"log": "{sink}", "txnAppId": "cases", "txnVersion": "7"}, 10
    ),
    "a stream to a log": Case(Use.STREAM_WRITE, {"log": "{sink}", "txnAppId": "stream"}, 10),
}
