"""Rows at the door of a ledger, from whichever library: the same values, or a refusal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_bookkeeper.client.write.pandas_rows import is_pandas
from spark_bookkeeper.client.write.rows import to_table
from spark_bookkeeper.errors import InvalidArgumentError

LEDGER = pa.schema([("id", pa.int64()), ("text", pa.string())])
ROWS = pa.table({"id": [1, 2], "text": ["a", None]}, schema=LEDGER)


class Frame:
    """What has rows in Arrow's form, and is not of Arrow: a frame of Polars, for example."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


class Answers:
    """Has whatever it is asked for, as a Spark column does."""

    def __getattr__(self, name: str) -> Any:
        return self


VIEWS = pa.schema([("id", pa.int64()), ("text", pa.string_view())])


@pytest.mark.parametrize(
    "rows",
    [
        Frame(ROWS),
        Frame(ROWS.cast(VIEWS)),  # how Polars has texts
        Frame(pa.table({"id": ROWS["id"], "text": ROWS["text"].dictionary_encode()})),
        pa.RecordBatchReader.from_batches(LEDGER, ROWS.to_batches()),
    ],
    ids=["frame", "views", "dictionary", "reader"],
)
def test_rows_in_the_form_of_arrow_are_taken_from_any_library(rows: Any) -> None:
    table = to_table(rows, LEDGER)

    assert table.schema.equals(LEDGER)
    assert table.to_pylist() == ROWS.to_pylist()


@pytest.mark.parametrize("error", [ValueError, KeyError, OSError])
def test_rows_that_end_in_an_error_say_which_and_append_nothing(error: type[Exception]) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from ROWS.to_batches()
        raise error("the disk is gone")

    rows = pa.RecordBatchReader.from_batches(LEDGER, batches())

    with pytest.raises(InvalidArgumentError, match=r"could not be read.*the disk is gone"):
        to_table(rows, LEDGER)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (Frame(ROWS.select(["text", "id"])), r"data:\n  text: string\n  id: int64"),
        (Frame(ROWS.select(["id"])), "same names, order and types"),
        (Frame(pa.chunked_array([[1]])), "is no table"),
        (ROWS["id"], r"pa\.table\(\[array\]"),
        (pa.array([1]), r"pa\.table\(\[array\]"),
        (np.arange(3), r"pa\.table\(\[array\]"),
        ((n for n in range(3)), "append what it yields"),
        (Answers(), "Answers; nothing was appended"),
        (Frame, "not type; nothing was appended"),
    ],
)
def test_what_has_no_rows_of_the_ledger_is_refused(rows: Any, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        to_table(rows, LEDGER)


def test_a_frame_of_pandas_on_spark_is_none_of_pandas() -> None:
    named = dict.fromkeys(("iloc", "columns", "dtypes"))
    of_spark = type("DataFrame", (), {**named, "__module__": "pyspark.pandas.frame"})
    of_pandas = type("DataFrame", (), {**named, "__module__": "pandas.core.frame"})

    assert (is_pandas(of_spark()), is_pandas(of_pandas())) == (False, True)
    with pytest.raises(InvalidArgumentError, match=r"df\.to_spark\(\)"):
        to_table(of_spark(), LEDGER)
