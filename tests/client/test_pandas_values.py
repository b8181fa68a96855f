"""Values that are equal and not the same, and the other way round."""

from __future__ import annotations

import datetime
import decimal
import zoneinfo
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row

from spark_bookkeeper.client.write.pandas_values import first_changed

NOON = datetime.datetime(2026, 10, 25, 12)  # noqa: DTZ001  (a wall clock)
UTC = datetime.timezone.utc
TWICE = datetime.datetime(2026, 10, 25, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"), fold=1)


class Pair(NamedTuple):
    """Its order is not that of the struct."""

    b: int
    a: int


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (1.0, 1),
        (decimal.Decimal("0.5"), 0.5),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (bytearray(b"a"), b"a"),
        (TWICE, datetime.datetime(2026, 10, 25, 1, 30, tzinfo=UTC)),
        (np.datetime64("2026-10-25T12", "ns"), NOON),
        (pd.Timestamp(NOON), NOON),
        (pd.DateOffset(months=1, days=2), pa.MonthDayNano([1, 2, 0])),
        (float("nan"), None),
        (float("nan"), float("nan")),
        (pd.NA, None),
        ((1, pd.NaT), [1, None]),
        (np.array([1.0, 2.0]), [1, 2]),
        ({"b": 1}, {"a": None, "b": 1}),
        ({"a": {"b": 1}}, {"a": [("b", 1)]}),
        ((1, 2.0), {"a": 1, "b": 2}),
        (Pair(b=1, a=2), {"a": 2, "b": 1}),
        (Row(a=1, b=2), {"a": 1, "b": 2}),
        ([("a", 1)], {"a": 1, "b": None}),
        (np.array([1, "NaT"], "M8[ns]"), [pd.Timestamp(1), None]),
    ],
    ids=str,
)
def test_the_same_value_in_another_form_is_the_same(given: Any, read: Any) -> None:
    assert first_changed([0, given], [0, read]) is None


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (True, 1),
        (1, True),
        (0.1, decimal.Decimal("0.1")),
        ((1 << 53) + 1, float(1 << 53)),
        ("a", b"a"),
        (NOON, NOON.replace(tzinfo=UTC)),
        (NOON.replace(tzinfo=UTC), NOON),
        (NOON, NOON.date()),
        (NOON.date(), NOON.replace(hour=0)),
        (pd.Timestamp(NOON) + pd.Timedelta(1), NOON),
        (NOON.replace(tzinfo=UTC).timetz(), NOON.time()),
        (0, None),
        (None, 0),
        ([1], [1, None]),
        ({"a": 1, "z": None}, {"a": 1}),
        ((1,), {"a": 1, "b": None}),
        (Pair(2, 1), {"a": 2, "b": 1}),
        (Row(b=2, a=1), {"a": 2, "b": 1}),
        ([("a", 1), ("a", 1)], {"a": 1}),
        (np.array([1, 2], "M8[ns]"), [pd.Timestamp(1), pd.Timestamp(3)]),
        ({"a": 2.5}, [("a", 2)]),
    ],
    ids=str,
)
def test_another_value_or_one_of_another_kind_is_found(given: Any, read: Any) -> None:
    assert first_changed([0, given], [0, read]) == 1
