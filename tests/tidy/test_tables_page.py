"""The page on tables has every column of every table, in its order and with its type."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_bookkeeper import pictures
from spark_bookkeeper.agent import orphans, space
from spark_bookkeeper.autorecovery import losses
from spark_bookkeeper.autorecovery.table import UNDERREPLICATED
from spark_bookkeeper.client import history, ledger_info, views
from spark_bookkeeper.client.read.unreadable import LOST
from spark_bookkeeper.client.write.acks import ACKS_SCHEMA
from spark_bookkeeper.doctor import diagnosis
from spark_bookkeeper.logs.consumers import CONSUMERS
from spark_bookkeeper.logs.logs import LOGS
from spark_bookkeeper.replication import recent_jobs, report, track
from spark_bookkeeper.replication.recovery_plan import PLAN_SCHEMA
from spark_bookkeeper.source.metadata_tables import ENTRIES, VIEW_SCHEMAS

PAGE = Path(__file__).resolve().parents[2] / "spark_bookkeeper" / "docs" / "tables.md"

OF_PLANS = pa.schema([f for f in PLAN_SCHEMA if f.name not in report.ROW_SCHEMA.names])

TABLES = {
    "bk.ledgers()": views.LEDGERS,
    "bk.ledger(7).fragments_df()": views.FRAGMENTS,
    "bk.ledger(7).placement_df()": ledger_info.PLACEMENT,
    "bk.ledger(7).stripes_df()": ledger_info.STRIPES,
    "bk.ledger(7).slots_df()": views.SLOTS,
    "bk.diff_replicas(7)": views.REPLICAS,
    "bk_entries(ledger => 7)": ENTRIES,
    "writer.acks()": ACKS_SCHEMA,
    "bk.history(7)": history.HISTORY,
    "bk.lost_entries()": LOST,
    "bk.bookies()": views.BOOKIES,
    "bk.space()": space.SPACE,
    "bk.orphans()": orphans.ORPHANS,
    'bk.safe_to_lose("10.0.0.3:3181").to_arrow()': losses.AT_RISK,
    "bk.doctor().to_df()": diagnosis.FINDINGS,
    "bk.logs()": LOGS,
    'bk.consumers("orders")': CONSUMERS,
    "report.to_df()": report.ROW_SCHEMA,
    "plan.to_df()": OF_PLANS,
    "bk.jobs()": recent_jobs.JOBS,
    "bk.underreplicated()": UNDERREPLICATED,
    "track.to_df()": track.TRACK,
    "sbk.pictures.health_table(reports)": pictures.HEALTH,
}

OF_SPARK = {
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.timestamp("us", tz="UTC"): "timestamp",
}


def type_name(of: pa.DataType) -> str:
    if pa.types.is_list(of):
        return f"array<{type_name(of.value_type)}>"
    if pa.types.is_map(of):
        return f"map<{type_name(of.key_type)},{type_name(of.item_type)}>"
    return OF_SPARK[of]


def chapters() -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    text = PAGE.read_text(encoding="utf-8")
    for chapter in re.split(r"^### ", text, flags=re.M)[1:]:
        title = re.match(r"`([^`]+)`", chapter)
        assert title is not None, chapter[:60]
        yield title[1], re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]*?) ?\|$", chapter, re.M)


SHOWN = dict(chapters())


def test_every_table_is_on_the_page_once() -> None:
    assert [title for title, _ in chapters()] == list(TABLES)


@pytest.mark.parametrize("title", TABLES)
def test_the_columns_of_a_table_are_those_that_it_has(title: str) -> None:
    columns = [(name, shown) for name, shown, _ in SHOWN[title]]

    assert columns == [(field.name, type_name(field.type)) for field in TABLES[title]]


@pytest.mark.parametrize("title", TABLES)
def test_a_column_that_may_be_null_says_what_that_means(title: str) -> None:
    told = {name: text for name, _, text in SHOWN[title]}
    says = ("null", "the same", "as of", "or why")

    silent = [
        f.name for f in TABLES[title] if f.nullable and not any(w in told[f.name] for w in says)
    ]

    assert silent == []


def test_a_table_that_spark_reads_as_a_view_says_so() -> None:
    text = PAGE.read_text(encoding="utf-8")
    named = set(re.findall(r"bk_(\w+)\(", text))

    assert named == {*VIEW_SCHEMAS, "consumers"}
