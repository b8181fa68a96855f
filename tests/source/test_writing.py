"""What is checked and made before Spark sends the rows of a write to its tasks, without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark_bookkeeper.errors import InvalidArgumentError, NoSuchLogError
from spark_bookkeeper.logs.logs import create_log, open_log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.source import stream_writing, writing
from spark_bookkeeper.source.options import SourceOptions
from spark_bookkeeper.source.stream_writing import stream_writer
from spark_bookkeeper.source.writing import batch_writer
from spark_bookkeeper.spark.schemas import arrow_schema
from spark_bookkeeper.testing.ground import Ground

ROWS = StructType([StructField("id", LongType()), StructField("name", StringType())])


@pytest.fixture(autouse=True)
def reached(inline_ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever cluster is named is the ground."""
    for module in (writing, stream_writing):
        monkeypatch.setattr(module, "task_context", lambda _: inline_ground.context)


def write(**options: str) -> None:
    batch_writer(SourceOptions.parse({"metadataUri": "zk1:2181", **options}), ROWS, False)


def stream(**options: str) -> None:
    """Until its first micro-batch is sent to tasks."""
    parsed = SourceOptions.parse({"metadataUri": "zk1:2181", **options})
    pickle.dumps(stream_writer(parsed, ROWS, False, "/checkpoint"))


@pytest.mark.parametrize("begin", [write, stream])
def test_a_log_that_is_not_there_is_made_of_the_columns_of_the_rows_where_that_was_asked(
    inline_ground: Ground, begin: Callable[..., None]
) -> None:
    context = inline_ground.context
    with pytest.raises(NoSuchLogError, match="with option createLog=true"):
        begin(log="orders")
    begin(log="orders", createLog="true")
    made = open_log(context, "orders")
    begin(log="orders", createLog="true")

    assert made.schema == arrow_schema(ROWS)
    assert open_log(context, "orders")._nonce == made._nonce, "it is made once"


@pytest.mark.parametrize("begin", [write, stream])
def test_a_log_that_is_there_keeps_its_columns(
    inline_ground: Ground, begin: Callable[..., None]
) -> None:
    create_log(inline_ground.context, "bytes", LogOptions(Quorum(3, 3, 2)))

    with pytest.raises(InvalidArgumentError, match="payload"):
        begin(log="bytes", createLog="true")


def test_a_ledger_of_its_own_needs_no_log() -> None:
    with pytest.raises(InvalidArgumentError, match="createLog makes the log that is written to"):
        write(ledgerId="7", createLog="true")
