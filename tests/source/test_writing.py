"""What is checked and made before Spark sends the rows of a write to its tasks, without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark_bookkeeper.errors import InvalidArgumentError, NoSuchLogError, NotEnoughBookiesError
from spark_bookkeeper.logs.logs import create_log, open_log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.logs.truncation import delete
from spark_bookkeeper.metadata.logs import find_log, log_names
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.source import stream_writing, writing
from spark_bookkeeper.source.options import SourceOptions
from spark_bookkeeper.source.stream_writing import LogStreamWriter, stream_writer
from spark_bookkeeper.source.writing import batch_writer
from spark_bookkeeper.spark.schemas import arrow_schema
from spark_bookkeeper.testing.ground import Ground

ROWS = StructType([StructField("id", LongType()), StructField("name", StringType())])


@pytest.fixture(autouse=True)
def reached(inline_ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever cluster is named is the ground."""
    for module in (writing, stream_writing):
        monkeypatch.setattr(module, "task_context", lambda _: inline_ground.context)


def write(schema: StructType = ROWS, overwrite: bool = False, **options: str) -> None:
    parsed = SourceOptions.parse({"metadataUri": "zk1:2181", **options})
    batch_writer(parsed, schema, overwrite)


def commit(schema: StructType = ROWS, overwrite: bool = False, **options: str) -> LogStreamWriter:
    """The writer that Spark makes for the commit of a micro-batch."""
    parsed = SourceOptions.parse({"metadataUri": "zk1:2181", **options})
    made = stream_writer(parsed, schema, overwrite, "/checkpoint")
    assert isinstance(made, LogStreamWriter)
    return made


def stream(schema: StructType = ROWS, overwrite: bool = False, **options: str) -> None:
    """Until its first micro-batch is sent to tasks."""
    pickle.dumps(commit(schema, overwrite, **options))


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


@pytest.mark.parametrize("begin", [write, stream])
def test_who_makes_a_log_later_than_another_writer_adds_to_it(
    inline_ground: Ground, monkeypatch: pytest.MonkeyPatch, begin: Callable[..., None]
) -> None:
    context = inline_ground.context
    create_log(context, "orders", LogOptions(Quorum(3, 3, 2), arrow_schema(ROWS)))
    monkeypatch.setattr(writing, "find_log", lambda *_: None)  # as it was a moment ago

    begin(log="orders", createLog="true")

    assert log_names(context.store.registers) == ["orders"]


@pytest.mark.parametrize("begin", [write, stream])
@pytest.mark.parametrize(
    ("options", "schema", "overwrite", "word"),
    [
        ({}, ROWS, True, "never overwritten"),
        ({"password": "x"}, ROWS, False, "means nothing beside log"),
        ({}, StructType([*ROWS, *ROWS]), False, "column"),
        ({"log": "a/b"}, ROWS, False, "a/b"),
    ],
)
def test_a_write_that_is_refused_makes_no_log(
    inline_ground: Ground,
    begin: Callable[..., None],
    options: dict[str, str],
    schema: StructType,
    overwrite: bool,
    word: str,
) -> None:
    with pytest.raises(InvalidArgumentError, match=word):
        begin(schema, overwrite, **{"log": "orders", "createLog": "true", **options})

    assert log_names(inline_ground.context.store.registers) == []


@pytest.mark.parametrize("begin", [write, stream])
def test_without_bookies_for_its_ledgers_no_log_is_made(
    inline_ground: Ground, begin: Callable[..., None]
) -> None:
    for bookie in list(inline_ground.context.bookies.registrations())[2:]:
        inline_ground.stop(bookie)

    with pytest.raises(NotEnoughBookiesError, match="3 bookies are needed"):
        begin(log="orders", createLog="true")

    assert log_names(inline_ground.context.store.registers) == []


def test_a_log_that_is_deleted_during_a_batch_is_made_by_none_but_the_next_one(
    inline_ground: Ground,
) -> None:
    context = inline_ground.context
    stream(log="orders", createLog="true")
    delete(context, "orders")

    commit(log="orders", createLog="true")
    assert find_log(context.store.registers, "orders") is None
    stream(log="orders", createLog="true")
    assert find_log(context.store.registers, "orders") is not None


@pytest.mark.parametrize("to", [{"log": "orders", "createLog": "true"}, {"ledgerId": "7"}])
def test_of_a_write_that_spark_gives_up_it_is_said_that_nothing_was_written(
    to: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    sink = batch_writer(SourceOptions.parse({"metadataUri": "zk1:2181", **to}), ROWS, False)
    sink.abort([])
    assert f"nothing was written to {'log orders' if 'log' in to else 'ledger 7'}" in caplog.text


def test_of_a_write_that_is_given_up_after_it_was_committed_nothing_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = SourceOptions.parse({"metadataUri": "zk1:2181", "ledgerId": "7"})
    sink = batch_writer(options, ROWS, False)
    sink.commit([])
    sink.abort([])
    assert "nothing was written" not in caplog.text


def test_a_ledger_of_its_own_needs_no_log() -> None:
    with pytest.raises(InvalidArgumentError, match="createLog makes the log that is written to"):
        write(ledgerId="7", createLog="true")
