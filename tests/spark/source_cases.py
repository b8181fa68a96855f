"""Every option of the data source, in every place where it can be used, with what comes of it.

``test_source_options.py`` runs them on Spark, and ``source_driver.py`` where the
processes of Spark are others; ``tests/source/test_documents.py`` sees to it that none is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.functions import spark_partition_id
from pyspark.sql.utils import is_remote

from spark_bookkeeper.session import BookKeeper
from spark_bookkeeper.source.older_spark import HAS_LIMITS
from spark_bookkeeper.source.options import Use
from tests.spark.starting import started


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
        Use.WRITE,
        {"log": "{sink}", "txnAppId": "cases", "txnVersion": "7", "createLog": "true"},
        10,
    ),
    "a stream to a log": Case(
        Use.STREAM_WRITE, {"log": "{sink}", "txnAppId": "stream", "createLog": "true"}, 10
    ),
}

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def rows(first: int) -> pa.Table:
    ids = range(first, first + 10)
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"row {n}" for n in ids]})


def make(bk: BookKeeper) -> dict[str, Any]:
    """What the cases name."""
    ids = []
    for entries, password in ((10, b"secret"), (1, b""), (1, b"")):
        with bk.create_ledger(schema=SCHEMA, password=password) as writer:
            for number in range(entries):
                writer.append(rows(number * 10))
        ids.append(writer.ledger_id)
    log = bk.create_log("of-cases", schema=SCHEMA)
    with log.become_writer() as log_writer:
        for number in range(5):
            log_writer.append(rows(number * 10))
    bookie = bk.open_ledger(ids[0], b"secret").metadata.last_fragment.ensemble[1]
    names = dict(zip(("ledger", "other", "another"), ids, strict=True))
    other = {"log": "of-cases", "sink": "sink-of-cases", "new": 4_000_000_555, "bookie": bookie}
    return {"uri": bk.metadata_uri, **names, **other}


def run(bk: BookKeeper, made: dict[str, Any], name: str, directory: Path) -> None:
    """See whether a case does what it says."""
    case = CASES[name]
    options = {k: v.format(**made) for k, v in {**EVERYWHERE, **case.options}.items()}
    if not HAS_LIMITS:
        options = {k: v for k, v in options.items() if not k.endswith("PerTrigger")}
    spark = bk.spark

    if case.use is Use.READ:
        frame = spark.read.format("bookkeeper").options(**options).load()
        assert frame.count() == case.rows
        if "bookie" in options:
            assert frame.select(spark_partition_id()).distinct().count() == 3
            places = frame.select("name", "_metadata.*").collect()
            assert {row.bookie for row in places} == {made["bookie"]}
            assert {row.entry_id for row in places} == set(range(2, 8))
    elif case.use is Use.STREAM:
        stream = spark.readStream.format("bookkeeper").options(**options).load()
        table = f"cases_{case.rows}"
        write = stream.writeStream.format("memory").queryName(table).trigger(availableNow=True)
        query = started(write)
        assert query.awaitTermination() is None, query.exception()
        assert spark.table(table).count() == case.rows
        if "maxEntriesPerTrigger" in options and not is_remote():  # there it is told of in part
            assert len([p for p in query.recentProgress if p["numInputRows"]]) == 2
        if "consumer" in options:
            told = bk.consumers(made["log"]).collect()
            assert [row.consumer for row in told] == ["cases"]
    else:
        frame = spark.createDataFrame(rows(0).to_pandas(), "id long, name string").coalesce(1)
        _written(bk, frame, made, case.use, options, directory)


def _written(
    bk: BookKeeper,
    frame: Any,
    made: dict[str, Any],
    use: Use,
    options: dict[str, str],
    directory: Path,
) -> None:
    """Write twice: what has a number is there once, and an id is not taken twice."""
    if use is Use.STREAM_WRITE:
        source = {"metadataUri": made["uri"], "ledger": str(made["other"])}
        reader = bk.spark.readStream.format("bookkeeper").options(**source)
        stream = reader.option("startingOffsets", "earliest").load()
        write = stream.writeStream.format("bookkeeper").options(**options)
        write = write.option("checkpointLocation", str(directory / "checkpoint"))
        query = started(write.trigger(once=True))
        assert query.awaitTermination() is None, query.exception()
        log = bk.open_log(made["sink"])
        assert log.last_transaction("stream") == 0
        return
    for _ in range(2 if "txnVersion" in options else 1):
        frame.write.format("bookkeeper").mode("append").options(**options).save()
    if "ledgerId" in options:
        info = bk.ledger(made["new"])
        assert (info.ensemble_size, info.write_quorum_size, info.ack_quorum_size) == (4, 2, 1)
        assert info.digest_type == "MAC"
        back = bk.open_ledger(made["new"], b"secret")
        assert back.read().count() == 10
        assert back.metadata.custom_metadata["name"] == b"of-cases"
        return
    log = bk.open_log(made["sink"])
    assert (log.last_transaction("cases"), log.read_arrow().num_rows) == (7, 10)
