"""``spark.read.format("bookkeeper")``: ledgers and logs read as Spark reads anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from spark_bookkeeper.session import BookKeeper

pytestmark = [pytest.mark.spark, pytest.mark.integration]

Read = Callable[..., DataFrame]


@pytest.fixture
def read(bk: BookKeeper) -> Read:
    """Read with options; the cluster is given with each read."""

    def load(**options: Any) -> DataFrame:
        reader = bk.spark.read.format("bookkeeper").option("metadataUri", bk.metadata_uri)
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader.load()

    return load


def rows(count: int, first: int = 0) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"row {n}" for n in ids]})


@pytest.fixture(scope="module")
def ledger(bk: BookKeeper) -> int:
    """100 rows in 10 entries of 10 rows, closed."""
    with bk.create_ledger(schema=rows(1).schema) as writer:
        for start in range(0, 100, 10):
            writer.append(rows(10, start))
    return writer.ledger_id


def test_a_ledger_is_read_with_its_own_columns(bk: BookKeeper, read: Read, ledger: int) -> None:
    frame = read(ledger=ledger)

    assert frame.schema == bk.open_ledger(ledger).read().schema
    assert [tuple(row) for row in frame.collect()] == [(n, f"row {n}") for n in range(100)]
