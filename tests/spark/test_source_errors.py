"""What the data source cannot do, on Spark: one error each, which begins with its condition.

``tests/source/test_documents.py`` holds that every condition that there is is met here or in the
files beside this one, or says there why it cannot be.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlparse

import pyarrow as pa
import pytest
from kazoo.client import KazooClient
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

import spark_bookkeeper as sbk
from spark_bookkeeper.metadata.uri import parse_metadata_uri
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.session import BookKeeper
from tests.spark.variants import in_full
from tests.support.rows import wait_for_every_copy

pytestmark = [pytest.mark.spark, pytest.mark.integration]

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})


def read(bk: BookKeeper, **options: Any) -> DataFrame:
    reader = bk.spark.read.format("bookkeeper").option("metadataUri", bk.metadata_uri)
    return reader.options(**{name: str(value) for name, value in options.items()}).load()


@pytest.fixture(scope="module")
def known(bk: BookKeeper) -> dict[str, Any]:
    """A ledger with a password and two entries, a log with one ledger, and a ledger of nobody."""
    with bk.create_ledger(schema=ROWS.schema, password=b"secret") as writer:
        writer.append(ROWS)
        writer.append(ROWS)
    log = bk.create_log("for-errors", schema=ROWS.schema)
    with log.become_writer() as log_writer:
        log_writer.append(ROWS)
    with bk.create_ledger(schema=ROWS.schema) as later:
        later.append(ROWS)
        later.append(ROWS)
    with log.become_writer() as log_writer:
        log_writer.append(ROWS)
    return {"ledger": writer.ledger_id, "later": later.ledger_id, "newest": log.ledgers()[-1]}


OPENED = {"ledger": "{ledger}", "password": "secret"}


@pytest.mark.parametrize(
    ("options", "condition", "said"),
    in_full(
        ({"ledger": "{ledger}"}, "UNAUTHORIZED", "is not the one it was created with"),
        ({**OPENED, "password": "Secret"}, "UNAUTHORIZED", "is not the one it was created with"),
        (
            {**OPENED, "startingOffsets": "{ledger}:2", "endingOffsets": "{ledger}:1"},
            "INVALID_ARGUMENT",
            "begins behind its end",
        ),
        ({**OPENED, "startingOffsets": "{ledger}:3"}, "NO_SUCH_ENTRY", "is beyond the end"),
        ({**OPENED, "startingOffsets": "{later}:0"}, "INVALID_ARGUMENT", "names ledger"),
        ({**OPENED, "bookie": "nobody:1"}, "INVALID_ARGUMENT", "holds nothing of what is read"),
        ({"log": "for-errors", "endingOffsets": "99999999:0"}, "NO_SUCH_ENTRY", "beyond the end"),
        ({"log": "for-errors", "startingOffsets": "{later}:1"}, "NO_SUCH_ENTRY", "has no ledger"),
        ({"ledgers": "{later}-9999999999"}, "NO_SUCH_LEDGER", "there is no ledger"),
        ({"ledger": "{later}", "columns": "`id`"}, "INVALID_ARGUMENT", "the columns are id"),
        ({"ledger": "{later}", "columns": "ID"}, "INVALID_ARGUMENT", "the columns are id"),
        ({"log": "a/b"}, "INVALID_ARGUMENT", "log name 'a/b' is not one"),
        ({"ledger": "1", "metadataUri": "{uri}/else"}, "NO_CLUSTER", "cluster init"),
        ({"ledger": "1", "metadataUri": "http://zk1"}, "INVALID_ARGUMENT", "the scheme 'http'"),
        ({"ledger": "1", "zk.colour": "red"}, "INVALID_ARGUMENT", "known are acl"),
    ),
)
def test_a_read_of_what_is_not_there_is_one_error_with_its_condition(
    bk: BookKeeper, known: dict[str, Any], options: dict[str, str], condition: str, said: str
) -> None:
    given = {name: text.format(uri=bk.metadata_uri, **known) for name, text in options.items()}

    with pytest.raises(PySparkException, match=rf"\[BOOKKEEPER_{condition}\].*{said}") as told:
        read(bk, **given).count()
    assert str(told.value).count(f"[BOOKKEEPER_{condition}]") == 1


@pytest.mark.parametrize(
    ("options", "schema", "said"),
    in_full(
        ({"ledger": "{later}"}, "id long, id long", "names a column twice"),
        ({"ledger": "{later}"}, "id long not null", "'id' may be null"),
        ({"ledger": "{later}", "includeMetadata": "true"}, "id long", "no column _metadata"),
        ({"ledger": "{later}"}, "id string", "'id' is int64, and .* says string"),
        ({"ledger": "{later}"}, "id boolean", "'id' is int64, and .* says bool"),
        ({"view": "ledgers"}, "colour string", "column 'colour' cannot be read"),
        ({"view": "ledgers"}, "ctime long", "'ctime' is timestamp"),
    ),
)
def test_a_schema_that_does_not_fit_is_refused(
    bk: BookKeeper, known: dict[str, Any], options: dict[str, str], schema: str, said: str
) -> None:
    reader = bk.spark.read.format("bookkeeper").option("metadataUri", bk.metadata_uri)
    given = {name: text.format(**known) for name, text in options.items()}

    with pytest.raises(PySparkException, match=rf"\[BOOKKEEPER_INVALID_ARGUMENT\].*{said}"):
        reader.options(**given).schema(schema).load().count()


def test_metadata_that_nobody_can_decode_are_told_with_their_path(bk: BookKeeper) -> None:
    uri = parse_metadata_uri(bk.metadata_uri)
    path = paths.ledger(uri.root, LedgerId(4_000_000_777))
    client = KazooClient(uri.hosts)
    client.start()
    try:
        client.create(path, b"BookieMetadataFormatVersion\t77\njunk", makepath=True)
        with pytest.raises(PySparkException, match=r"\[BOOKKEEPER_METADATA_FORMAT\]"):
            read(bk, ledger=4_000_000_777)
    finally:
        client.delete(path)
        client.stop()
        client.close()


@pytest.mark.full
def test_a_ledger_that_somebody_recovers_while_it_is_written_is_fenced_and_gone(
    bk: BookKeeper,
) -> None:
    ledger_id, uri = 4_000_000_778, bk.metadata_uri

    def recover(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with sbk.connect(uri) as another:
            another.open_ledger(ledger_id)
        yield from batches

    frame = bk.spark.range(0, 10, 1, 1).mapInArrow(recover, "id long")
    write = frame.write.format("bookkeeper").mode("append").option("metadataUri", uri)
    with pytest.raises(PySparkException, match=r"\[BOOKKEEPER_LEDGER_FENCED\].*cannot be sealed"):
        write.option("ledgerId", ledger_id).save()


# These wait for an answer that cannot come, or have a cluster of their own.


@pytest.mark.full
def test_a_zookeeper_that_does_not_answer_is_told_with_what_to_check(bk: BookKeeper) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(PySparkException, match=r"\[BOOKKEEPER_METADATA_UNAVAILABLE\].*port"):
            read(bk, ledger=1, metadataUri=f"127.0.0.1:{port}")


@pytest.mark.full
def test_an_end_that_too_few_bookies_tell_of_is_not_guessed(own_bk: BookKeeper) -> None:
    writer = own_bk.create_ledger(schema=ROWS.schema)
    for _ in range(3):
        writer.append(ROWS)
    wait_for_every_copy(writer)
    writer.abandon()  # it would replace the bookies that stop
    assert own_bk.cluster is not None
    for bookie in writer.metadata.last_fragment.ensemble[:2]:
        own_bk.cluster.stop_bookie(bookie, destroy=True)

    with pytest.raises(PySparkException, match=r"\[BOOKKEEPER_RECOVERY_UNDECIDED\]"):
        read(own_bk, ledger=writer.ledger_id).count()


@pytest.mark.full
def test_rows_that_no_bookie_takes_fail_the_write_and_leave_nothing(own_bk: BookKeeper) -> None:
    log = own_bk.create_log("taken-by-nobody", schema=ROWS.schema)
    roots = [urlparse(root).path for root in own_bk.bookies_arrow().column("root_uri").to_pylist()]

    def destroy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for root in roots:
            shutil.rmtree(root, ignore_errors=True)
        yield from batches

    frame = own_bk.spark.range(0, 10, 1, 1).mapInArrow(destroy, "id long")
    write = frame.write.format("bookkeeper").mode("append").option("log", log.name)
    with pytest.raises(PySparkException, match=r"\[BOOKKEEPER_BOOKIE_UNAVAILABLE\]"):
        write.option("metadataUri", own_bk.metadata_uri).save()
    assert log.ledgers() == []
