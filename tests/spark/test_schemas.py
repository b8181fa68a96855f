"""Rows under another label: nothing converted, nothing lost."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_bookkeeper.client.read.projection import projected
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.source.selection import united
from spark_bookkeeper.spark.schemas import (
    arrow_schema,
    delivered,
    delivered_schema,
    relabelled,
    spark_schema,
)


def test_a_null_where_none_may_be_is_refused() -> None:
    batch = pa.record_batch({"id": pa.array([1, None], pa.int64())})

    with pytest.raises(InvalidArgumentError, match="'id' of the ledger takes no nulls"):
        relabelled(batch, pa.schema([pa.field("id", pa.int64(), nullable=False)]))


@pytest.mark.parametrize("is_nullable", [True, False])
def test_a_null_within_a_column_is_refused_whatever_spark_says_of_it(is_nullable: bool) -> None:
    strict = pa.list_(pa.field("element", pa.int64(), nullable=False))
    schema = pa.schema([("x", strict)])
    told = pa.list_(pa.int64()) if is_nullable else strict
    batch = pa.record_batch({"x": pa.array([[1, None]], told)})

    with pytest.raises(InvalidArgumentError, match=r"'x\.element' of the ledger takes no nulls"):
        relabelled(batch, schema)


def test_a_value_that_does_not_fit_is_refused() -> None:
    batch = pa.record_batch({"id": pa.array([1 << 40], pa.int64())})

    with pytest.raises(InvalidArgumentError, match="do not fit"):
        relabelled(batch, pa.schema([("id", pa.int32())]))


def test_a_spark_schema_survives_the_way_there_and_back() -> None:
    from pyspark.sql import types

    schema = types.StructType(
        [
            types.StructField("span", types.DayTimeIntervalType(0, 1), False),
            types.StructField("at", types.TimestampType(), True, {"comment": "an instant"}),
            types.StructField("pairs", types.MapType(types.StringType(), types.DateType(), False)),
        ]
    )

    assert spark_schema(arrow_schema(schema)) == schema
    assert arrow_schema(schema).field("at").type == pa.timestamp("us", "UTC")


def test_some_of_the_columns_or_more_keep_what_arrow_alone_does_not_tell() -> None:
    from pyspark.sql import types

    span = types.StructField("span", types.DayTimeIntervalType(0, 1))
    told = types.StructField("at", types.DateType(), False, {"comment": "a day"})
    number = types.StructField("n", types.IntegerType())
    made = arrow_schema(types.StructType([span, told, number]))

    for names in (["span"], ["n", "at"], ["at", "n", "span"]):
        fields = [{"span": span, "at": told, "n": number}[name] for name in names]
        assert spark_schema(projected(made, names)) == types.StructType(fields)
    wider = pa.schema([made.field("span"), ("more", pa.string()), ("n", pa.int64())])
    assert spark_schema(wider.with_metadata(made.metadata)) == types.StructType(
        [
            span,
            types.StructField("more", types.StringType()),
            types.StructField("n", types.LongType()),
        ]
    )
    other = pa.schema([pa.field("x", pa.int8())])
    assert spark_schema(united([made, other]))["span"] == span


def test_layouts_of_arrow_that_spark_lacks_are_delivered_in_its_own() -> None:
    schema = pa.schema(
        [
            ("s", pa.large_string()),
            ("t", pa.timestamp("ns", "Asia/Tokyo")),
            ("n", pa.timestamp("s")),
        ]
    )

    delivered = delivered_schema(schema)

    assert delivered.types == [pa.string(), pa.timestamp("us", "UTC"), pa.timestamp("us")]


@pytest.mark.parametrize(
    "kind",
    [
        pa.uint64(),
        pa.month_day_nano_interval(),
        pa.decimal256(60, 2),
        pa.decimal128(5, -2),
        pa.decimal128(5, 7),
        pa.list_(pa.decimal256(60, 2)),
        pa.map_(pa.string(), pa.struct([("d", pa.decimal128(5, -2))])),
        pa.dictionary(pa.int8(), pa.decimal128(5, -2)),
    ],
    ids=str,
)
def test_a_type_that_spark_does_not_know_is_named_with_what_reads_it(kind: pa.DataType) -> None:
    with pytest.raises(InvalidArgumentError, match="read_arrow") as refused:
        spark_schema(pa.schema([("fine", pa.int64()), ("strange", kind)]))

    assert "'strange'" in str(refused.value)
    assert ".." not in str(refused.value)
    assert str(kind) in str(refused.value)


NS = pa.timestamp("ns")
FINER_THAN_SPARK = [
    (NS, 1),
    (pa.timestamp("ns", "Asia/Tokyo"), 1),
    (pa.timestamp("s"), 1 << 60),
    (pa.duration("ns"), 1),
    (pa.list_(NS), [1]),
    (pa.large_list(NS), [1]),
    (pa.list_(NS, 1), [1]),
    (pa.struct([("x", NS)]), {"x": 1}),
    (pa.map_(pa.string(), NS), [("k", 1)]),
]


@pytest.mark.parametrize(("kind", "value"), FINER_THAN_SPARK, ids=str)
def test_a_value_that_spark_cannot_hold_is_named_with_what_reads_it(
    kind: pa.DataType, value: Any
) -> None:
    batch = pa.record_batch({"fine": pa.array([0]), "at": pa.array([value], kind)})

    with pytest.raises(InvalidArgumentError, match=r"'at'.*microsecond.*read_arrow") as refused:
        delivered(batch, delivered_schema(batch.schema))

    assert str(kind) in str(refused.value)
    assert "append" not in str(refused.value)


def test_nanoseconds_that_are_whole_microseconds_are_delivered() -> None:
    batch = pa.record_batch({"at": pa.array([5_000, None], NS)})

    made = delivered(batch, delivered_schema(batch.schema))

    assert made.column("at").cast(pa.int64()).to_pylist() == [5, None]


def test_void_values_are_nullable_in_a_ledger_and_no_key_is_void() -> None:
    from pyspark.sql import types

    void = types.NullType()
    fields = [
        types.StructField("a", types.ArrayType(void, False), False, {"comment": "array()"}),
        types.StructField("m", types.MapType(void, void, False), False),
        types.StructField("v", void, False),
    ]
    inner = types.StructType(fields)
    schema = types.StructType([*fields, types.StructField("s", types.ArrayType(inner, False))])

    made = arrow_schema(schema)

    assert made.field("a").type.value_field.nullable
    assert made.field("m").type.key_type == pa.string()
    assert made.field("m").type.item_field.nullable
    assert made.field("v").nullable
    assert made.field("s").type.value_type == pa.struct([made.field(n) for n in ("a", "m", "v")])
    assert not made.field("a").nullable
    assert arrow_schema(spark_schema(made)) == made
    assert spark_schema(made)["a"].metadata == {"comment": "array()"}


def test_what_is_no_schema_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="StructType"):
        arrow_schema("id long")
