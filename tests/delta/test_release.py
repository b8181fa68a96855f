"""Copies that are released to a table: what is read stays the same, whatever happens on the way."""

from __future__ import annotations

import json
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_bookkeeper.agent.decommission import decommission_bookie
from spark_bookkeeper.agent.space import space_table
from spark_bookkeeper.autorecovery.checks import check_placement
from spark_bookkeeper.autorecovery.losses import losses
from spark_bookkeeper.autorecovery.publishing import publish_lost_bookies
from spark_bookkeeper.autorecovery.replica_count import check_replicas
from spark_bookkeeper.bookie.messages import encode_batches
from spark_bookkeeper.client import lifecycle, views
from spark_bookkeeper.client.deletion import delete_ledger
from spark_bookkeeper.client.ledger_info import LedgerInfo
from spark_bookkeeper.delta import release as release_module
from spark_bookkeeper.doctor.tables import table_diagnoses
from spark_bookkeeper.errors import BookieUnavailableError, EntryUnreadableError
from spark_bookkeeper.protocol.archive import archived_of
from spark_bookkeeper.protocol.collection import COLLECTED, TOKENS_MOST, collections_of
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import DigestType, is_table
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.check_ledgers import check_ledgers
from spark_bookkeeper.replication.recover_bookie import BookieRecovery, recover_bookie
from spark_bookkeeper.replication.repair_ledgers import repair_ledgers
from spark_bookkeeper.replication.report import Outcome
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.table.listing import DIRECTORY
from spark_bookkeeper.testing.ground import Ground, InlineRuntime, Killed
from tests.support.lake import (
    USUAL,
    archive,
    bytes_ledger,
    entries_of,
    holders,
    metadata_of,
    release,
    rows_ledger,
)


def archived(ground: Ground, lake: Path) -> LedgerId:
    """A closed ledger of 20 entries, and its rows in the table."""
    ledger_id = bytes_ledger(ground)
    archive(ground.context, lake, [ledger_id])
    return ledger_id


# Reading


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_a_released_ledger_reads_back_byte_for_byte(ground: Ground, lake: Path, keep: int) -> None:
    ledger_id = archived(ground, lake)
    before = entries_of(ground.context, ledger_id)

    (row,) = release(ground.context, lake, [ledger_id], keep=keep)

    assert (row.status, row.entries) == (Outcome.RELEASED, 20)
    assert len(holders(ground, ledger_id)) == keep
    assert entries_of(ground.client(), ledger_id) == before


FORMS = list(product(DigestType, [None, "lz4", "zstd"]))
EACH = [FORMS[0], FORMS[4], FORMS[8], FORMS[9]]
"""Each type and each compression once."""


@pytest.mark.parametrize(
    ("digest_type", "compression"),
    [*EACH, *(pytest.param(*form, marks=pytest.mark.full) for form in FORMS if form not in EACH)],
)
def test_every_digest_type_and_compression_reads_back(
    ground: Ground, lake: Path, digest_type: DigestType, compression: str | None
) -> None:
    form: dict[str, Any] = {
        "digest_type": digest_type,
        "password": b"secret",
        "compression": compression,
    }
    rows = pa.table({"id": pa.array(range(50)), "text": [f"row {n}" for n in range(50)]})
    ledgers = [bytes_ledger(ground, **form), rows_ledger(ground, rows, **form)]
    before = [entries_of(ground.context, ledger_id) for ledger_id in ledgers]
    for path, ledger_id in zip((lake / "bytes", lake / "rows"), ledgers, strict=True):
        archive(ground.context, path, [ledger_id])
        (row,) = release(ground.context, path, [ledger_id], keep=0)
        assert row.status is Outcome.RELEASED, row.reason

    assert [entries_of(ground.client(), ledger_id) for ledger_id in ledgers] == before


NULLS = [None, 1, None]

KINDS: dict[str, pa.Array] = {
    "bool": pa.array([True, None, False]),
    "int8": pa.array(NULLS, pa.int8()),
    "int64": pa.array(NULLS, pa.int64()),
    "float": pa.array([1.5, None, float("nan")], pa.float32()),
    "double": pa.array([-0.0, None, float("inf")]),
    "text": pa.array(["", None, "ö"]),
    "binary": pa.array([b"", None, b"\0"]),
    "date": pa.array(NULLS, pa.date32()),
    "timestamp": pa.array(NULLS, pa.timestamp("us", "UTC")),
    "local time": pa.array(NULLS, pa.timestamp("us")),
    "decimal": pa.array(NULLS, pa.decimal128(20, 3)),
    "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
    "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": None}]),
    "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    "nested": pa.array([[{"a": [1, 2]}], None, [None]]),
    # What a table has another type for is cast back.
    "uint8": pa.array([255, None, 0], pa.uint8()),
    "uint16": pa.array([65535, None, 0], pa.uint16()),
    "large text": pa.array(["a", None, "b"], pa.large_string()),
    "seconds": pa.array(NULLS, pa.timestamp("s", "UTC")),
    # Bytes that are no value: under a null, and beside a slice.
    "garbage": pa.Array.from_buffers(
        pa.int32(), 3, [pa.py_buffer(b"\x02"), pa.py_buffer(b"\x07\x00\x00\x00" * 3)], 2
    ),
    "sliced": pa.array([True] * 9 + [None, True, False])[9:],
}


def test_entries_of_every_kind_of_column_are_made_again_byte_for_byte(
    ground: Ground, lake: Path
) -> None:
    rows = pa.table({"first": [1, 2, 3], **KINDS})
    ledger_id = rows_ledger(ground, rows)
    before = entries_of(ground.context, ledger_id)
    archive(ground.context, lake, [ledger_id])

    (row,) = release(ground.context, lake, [ledger_id], keep=0)

    assert row.status is Outcome.RELEASED, row.reason
    assert entries_of(ground.client(), ledger_id) == before
    found = lifecycle.open_ledger(ground.client(), ledger_id).read_arrow()
    for kind, values in KINDS.items():  # as texts, since no number equals itself
        assert repr(found.column(kind).to_pylist()) == repr(values.to_pylist() * 3), kind


def test_what_a_table_cannot_hold_is_not_released(ground: Ground, lake: Path) -> None:
    finest = pa.table({"at": pa.array([1_001], pa.timestamp("ns", "UTC"))})
    ledger_id = rows_ledger(ground, finest)
    archive(ground.context, lake, [ledger_id])  # Delta has microseconds

    (row,) = release(ground.context, lake, [ledger_id], keep=0)

    assert row.status is Outcome.LEFT
    assert "'at'" in str(row.reason)
    assert len(holders(ground, ledger_id)) == 3
    assert archived_of(metadata_of(ground, ledger_id)) is None


# What holds it up


@pytest.mark.parametrize(
    ("lacking", "said"), [(None, "has no rows of it"), ("_entry_id = 7", "entry 7")]
)
def test_a_ledger_of_which_the_table_lacks_a_row_is_not_released(
    ground: Ground, lake: Path, lacking: str | None, said: str
) -> None:
    other, ledger_id = bytes_ledger(ground), bytes_ledger(ground)
    table = archive(ground.context, lake, [other, ledger_id] if lacking else [other])
    if lacking:
        table.delete(f"_ledger_id = {ledger_id} AND {lacking}")

    (row,) = release(ground.context, lake, [ledger_id], keep=0)

    assert row.status is Outcome.LEFT
    assert said in str(row.reason)
    assert len(holders(ground, ledger_id)) == 3


def test_copies_that_are_to_stay_are_verified_first(ground: Ground, lake: Path) -> None:
    ledger_id = archived(ground, lake)
    first = metadata_of(ground, ledger_id).fragments[0].ensemble[0]
    shutil.rmtree(ground.root(first) / "ledgers" / ground.files(first)[0].parts[-3])

    (row,) = release(ground.context, lake, [ledger_id], keep=1)

    assert row.status is Outcome.LEFT
    assert str(first) in str(row.reason)
    assert len(holders(ground, ledger_id)) == 2


def test_an_open_ledger_an_empty_one_and_one_that_is_gone(ground: Ground, lake: Path) -> None:
    opened = lifecycle.create_ledger(ground.context, USUAL)
    opened.append(b"x")
    empty = bytes_ledger(ground, entries=0)
    archive(ground.context, lake, [bytes_ledger(ground)])

    rows = release(ground.context, lake, [opened.ledger_id, empty, LedgerId(99)], keep=0)

    assert [row.status for row in rows] == [Outcome.PENDING, Outcome.RELEASED, Outcome.GONE]
    opened.close()


def test_a_plan_changes_nothing(ground: Ground, lake: Path) -> None:
    ledger_id = archived(ground, lake)
    before = metadata_of(ground, ledger_id)

    (row,) = release(ground.context, lake, [ledger_id], keep=1, dry_run=True)

    assert row.status is Outcome.PLANNED
    assert metadata_of(ground, ledger_id) == before
    assert len(holders(ground, ledger_id)) == 3


def test_a_striped_ledger_keeps_a_copy_of_every_entry(tmp_path: Path, lake: Path) -> None:
    ground = Ground(tmp_path / "cluster", bookies=6, runtime=InlineRuntime())
    ledger_id = bytes_ledger(ground, quorum=Quorum(5, 3, 2))
    before = entries_of(ground.context, ledger_id)
    archive(ground.context, lake, [ledger_id])

    (row,) = release(ground.context, lake, [ledger_id], keep=1)

    assert row.status is Outcome.RELEASED, row.reason
    kept = holders(ground, ledger_id)
    assert len(kept) == 2  # of five: no three neighbours are without one
    shutil.rmtree(lake)
    assert entries_of(ground.client(), ledger_id) == before


def test_less_is_kept_later_and_nothing_is_made_again(ground: Ground, lake: Path) -> None:
    ledger_id = archived(ground, lake)
    before = entries_of(ground.context, ledger_id)
    kept = []
    for keep in (2, 1, 1, 0, 2):
        (row,) = release(ground.client(), lake, [ledger_id], keep=keep)
        assert row.status is Outcome.RELEASED, row.reason
        kept.append(len(holders(ground, ledger_id)))
        assert entries_of(ground.client(), ledger_id) == before

    assert kept == [2, 1, 1, 0, 0]


def test_a_reader_that_was_opened_before_reads_on(ground: Ground, lake: Path) -> None:
    ledger_id = bytes_ledger(ground)
    reader = lifecycle.open_ledger(ground.client(), ledger_id)
    expected = [entry.payload for entry in reader.entries()]
    following = reader.entries()
    begun = [next(following).payload]
    archive(ground.context, lake, [ledger_id])

    release(ground.context, lake, [ledger_id], keep=0)

    assert begun + [entry.payload for entry in following] == expected


# Bookies that are away


def test_a_bookie_that_is_away_drops_its_copy_when_it_is_back(ground: Ground, lake: Path) -> None:
    ledger_id = archived(ground, lake)
    last = metadata_of(ground, ledger_id).fragments[0].ensemble[-1]
    ground.stop(last)

    (first,) = release(ground.client(), lake, [ledger_id], keep=1)
    ground.start(last)
    (second,) = release(ground.client(), lake, [ledger_id], keep=1)

    assert (first.status, second.status) == (Outcome.PENDING, Outcome.RELEASED)
    assert len(holders(ground, ledger_id)) == 1


@pytest.mark.parametrize("how", ["stopped", "unreachable", "formatted"])
def test_a_bookie_that_gives_no_sign_of_life_is_not_said_to_be_removed_from(
    ground: Ground, lake: Path, how: str
) -> None:
    """Nobody would ever take that word back (rule R19): it takes no more copies of the ledger."""
    ledger_id = archived(ground, lake)
    last = metadata_of(ground, ledger_id).fragments[0].ensemble[-1]

    def away(place: str, operation: str, path: str) -> None:
        if how == "unreachable" and place == last:
            raise BookieUnavailableError("no route", bookie_id=last)

    if how != "unreachable":
        ground.stop(last, destroy=how == "formatted")
    if how == "formatted":
        ground.start(last)
    for _ in range(TOKENS_MOST + 1):
        release(ground.client(None, away), lake, [ledger_id], keep=1)

    assert tokens_of(ground, ledger_id, last) == ()
    if how != "formatted":
        if how == "stopped":
            ground.start(last)
        (row,) = release(ground.client(), lake, [ledger_id], keep=1)
        assert row.status is Outcome.RELEASED, row.reason
    assert len(holders(ground, ledger_id)) == 1


def test_a_bookie_that_goes_away_while_it_drops_takes_no_more_copies_of_the_ledger(
    ground: Ground, lake: Path
) -> None:
    """What remains: what it was asked for may be done at any time."""
    ledger_id = archived(ground, lake)
    last = metadata_of(ground, ledger_id).fragments[0].ensemble[-1]

    def lost(place: str, operation: str, path: str) -> None:
        if place == last and operation.startswith("delete"):
            raise BookieUnavailableError("no route", bookie_id=last)

    (first,) = release(ground.client(None, lost), lake, [ledger_id], keep=1)
    (second,) = release(ground.client(), lake, [ledger_id], keep=1)

    assert (first.status, second.status) == (Outcome.PENDING, Outcome.RELEASED)
    assert len(tokens_of(ground, ledger_id, last)) == 1
    assert len(holders(ground, ledger_id)) == 1


def tokens_of(ground: Ground, ledger_id: LedgerId, bookie: BookieId) -> tuple[str, ...]:
    """Of those who have said that they remove from a bookie, and not that they have ended."""
    metadata = metadata_of(ground, ledger_id)
    said = json.loads(metadata.custom_metadata.get(COLLECTED, b"{}"))
    keys = [key for key in said if key.startswith(f"{bookie}/")]
    return tuple(
        token
        for key in keys
        for token in collections_of(metadata, bookie, key.rpartition("/")[2]).tokens
    )


def released(ground: Ground, lake: Path, keep: int = 1, ledgers: int = 1) -> list[LedgerId]:
    ids = [bytes_ledger(ground) for _ in range(ledgers)]
    archive(ground.context, lake, ids)
    rows = release(ground.context, lake, ids, keep=keep)
    assert [row.status for row in rows] == [Outcome.RELEASED] * ledgers
    return ids


def runner(ground: Ground) -> LocalRunner:
    return LocalRunner(ground.context)


def table_of_cluster(ground: Ground) -> dict[str, str]:
    return {
        d.check: d.verdict
        for d in table_diagnoses(
            ground.context, {i: metadata_of(ground, i) for i in ground.context.store.ledger_ids()}
        )
    }


def without_lac(entries: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Every copy that is made says what was confirmed when it was made."""
    return [(*entry[:2], *entry[3:]) for entry in entries]


@pytest.mark.parametrize("keep", [0, 1])
def test_nobody_takes_released_copies_for_lost(ground: Ground, lake: Path, keep: int) -> None:
    (ledger_id,) = released(ground, lake, keep)
    context = ground.context

    assert publish_lost_bookies(context).rows == ()
    assert check_ledgers(context, runner(ground), None, percentage=100).is_complete
    assert check_placement(context).rows == ()
    assert check_replicas(context, runner(ground)).rows == ()
    assert repair_ledgers(context, runner(ground), None).rows == ()
    assert table_of_cluster(ground) == {f"table {lake}": "ok"}
    assert {row["bookie_id"] for row in views.bookies_table(context).to_pylist()} == set(
        ground.bookie_ids
    )
    garbage = [row["garbage_bytes"] for row in space_table(context).to_pylist()]
    assert max(garbage) < 2_000, "no more than the fences that stay"
    others = [b for b in ground.bookie_ids if b not in holders(ground, ledger_id)]
    assert losses(context, others)


@pytest.mark.parametrize("keep", [0, 1])
def test_a_table_is_shown_as_a_holder_and_never_as_missing(
    ground: Ground, lake: Path, keep: int
) -> None:
    (ledger_id,) = released(ground, lake, keep)
    context, metadata = ground.context, metadata_of(ground, ledger_id)
    (tables,) = [set(filter(is_table, f.ensemble)) for f in metadata.fragments]
    assert len(tables) == 3 - keep
    info = LedgerInfo.of(ledger_id, metadata, context, lambda table: table)

    placement = info.placement_arrow().to_pylist()
    stripes = info.stripes_arrow(0, 4).to_pylist()
    (fragment,) = info.fragments_arrow().to_pylist()

    assert {row["bookie_id"] for row in placement} == metadata.members()
    assert tables < metadata.members() or keep == 0
    for row in [*placement, *stripes]:
        assert row["is_missing"] is False, row
    assert {row["entries"] for row in placement} == {20}
    assert {row["bookie_id"] for row in stripes if row["entry_id"] == 4} == metadata.members()
    assert fragment["missing_bookies"] == []


def test_what_the_loss_of_a_table_would_mean_is_told(ground: Ground, lake: Path) -> None:
    (ledger_id,) = released(ground, lake)
    metadata = metadata_of(ground, ledger_id)
    tables = sorted(filter(is_table, metadata.members()))
    (kept,) = metadata.bookies()

    without_bookie, without_tables = losses(ground.context, [kept]), losses(ground.context, tables)

    assert without_bookie.is_safe, "the table stands for two copies, and Qa is 2"
    (at_risk,) = without_tables.at_risk
    assert (at_risk.ledger_id, at_risk.live_copies, at_risk.copies_without) == (ledger_id, 3, 1)


@pytest.mark.parametrize("what", ["copy", "table"])
def test_a_release_that_goes_on_looks_first_whether_what_stays_is_whole(
    ground: Ground, lake: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Whoever was killed behind the change of the register may have left the last good copies."""
    ledger_id = bytes_ledger(ground)
    archive(ground.context, lake, [ledger_id])
    before = holders(ground, ledger_id)

    def killed(self: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(release_module._Batch, "_drop", killed)
        with pytest.raises(Killed):
            release(ground.context, lake, [ledger_id], keep=1)
    (kept,) = metadata_of(ground, ledger_id).bookies()
    assert holders(ground, ledger_id) == before
    if what == "table":
        shutil.rmtree(lake)
    else:
        for path in ground.files(kept, "slots"):
            path.write_bytes(path.read_bytes()[:100])

    (row,) = release(ground.client(), lake, [ledger_id], keep=1)

    assert row.status is Outcome.LEFT, row
    assert set(holders(ground, ledger_id)) >= set(before) - {kept}
    if what == "copy":
        assert "what stays is not whole" in str(row.reason)
        repair_ledgers(ground.client(), runner(ground), [ledger_id])
        (row,) = release(ground.client(), lake, [ledger_id], keep=1)
        assert row.status is Outcome.RELEASED
        assert holders(ground, ledger_id) == [kept]


def test_a_kept_copy_that_is_lost_is_made_again_from_the_table(ground: Ground, lake: Path) -> None:
    (ledger_id,) = released(ground, lake)
    before = entries_of(ground.context, ledger_id)
    (kept,) = holders(ground, ledger_id)
    ground.stop(kept, destroy=True)

    assert [row.ledger_id for row in publish_lost_bookies(ground.context).rows] == [ledger_id]
    report = recover_bookie(ground.context, runner(ground), BookieRecovery((BookieId(kept),)))

    assert report.is_complete, report.unfinished
    assert len(holders(ground, ledger_id)) == 1
    shutil.rmtree(lake)
    assert without_lac(entries_of(ground.client(), ledger_id)) == without_lac(before)


def test_a_bookie_is_decommissioned_with_what_it_kept(ground: Ground, lake: Path) -> None:
    (ledger_id,) = released(ground, lake)
    (kept,) = holders(ground, ledger_id)
    ground.stop(kept)

    report = decommission_bookie(ground.context, runner(ground), BookieId(kept))

    assert report.is_complete, (report.unfinished, report.blocked_by)
    named = metadata_of(ground, ledger_id).bookies()
    assert kept not in named
    assert len(named) == 1


def test_copies_come_back_where_the_table_is_to_go(ground: Ground, lake: Path) -> None:
    (ledger_id,) = released(ground, lake, keep=0)
    before = entries_of(ground.context, ledger_id)
    tables = tuple(sorted(metadata_of(ground, ledger_id).members()))
    assert all(map(is_table, tables))

    report = recover_bookie(ground.context, runner(ground), BookieRecovery(tables))

    assert report.is_complete, report.unfinished
    assert len(holders(ground, ledger_id)) == 3
    shutil.rmtree(lake)
    assert without_lac(entries_of(ground.client(), ledger_id)) == without_lac(before)
    assert check_ledgers(ground.context, runner(ground), None, percentage=100).is_complete


@pytest.mark.parametrize("table", ["same", "other"])
def test_a_ledger_whose_copies_all_came_back_is_not_said_to_be_read_from_the_table(
    ground: Ground, lake: Path, table: str
) -> None:
    (ledger_id,) = released(ground, lake)
    tables = tuple(sorted(filter(is_table, metadata_of(ground, ledger_id).members())))
    assert recover_bookie(ground.context, runner(ground), BookieRecovery(tables)).is_complete
    shutil.rmtree(lake)
    other = lake if table == "same" else lake.with_name("other")

    (row,) = release(ground.client(), other, [ledger_id], keep=3)

    assert row.status is Outcome.NO_LONGER_NEEDED, row
    assert row.reason == "3 copies are to be kept, and it has no more"


def test_a_copy_that_is_dropped_late_says_where_the_others_are(ground: Ground, lake: Path) -> None:
    """The table stood for it once; bookies have its place by now."""
    ledger_id = bytes_ledger(ground)
    archive(ground.context, lake, [ledger_id])
    last = metadata_of(ground, ledger_id).fragments[0].ensemble[-1]
    ground.stop(last)
    (row,) = release(ground.client(), lake, [ledger_id], keep=1)
    assert row.status is Outcome.PENDING
    tables = tuple(sorted(filter(is_table, metadata_of(ground, ledger_id).members())))
    assert recover_bookie(ground.context, runner(ground), BookieRecovery(tables)).is_complete
    ground.start(last)

    (row,) = release(ground.client(), lake, [ledger_id], keep=3)

    assert (row.status, row.reason) == (Outcome.NO_LONGER_NEEDED, "3 copies are on bookies")
    assert sorted(holders(ground, ledger_id)) == sorted(metadata_of(ground, ledger_id).members())


def test_a_bookie_that_is_to_drop_a_copy_takes_no_new_one(tmp_path: Path, lake: Path) -> None:
    """Else what was copied there, just before it drops what it held, is dropped with the rest."""
    ground = Ground(tmp_path / "three", bookies=3, runtime=InlineRuntime())
    ledger_id = bytes_ledger(ground)
    before = entries_of(ground.context, ledger_id)
    archive(ground.context, lake, [ledger_id])
    first = metadata_of(ground, ledger_id).fragments[0].ensemble[0]
    complete: list[bool] = []

    def lose_the_kept_copy(place: str, operation: str, path: str) -> None:
        if operation == "delete" and not complete:
            complete.append(False)
            ground.stop(first, destroy=True)
            client = ground.client()
            wish = BookieRecovery((first,))
            complete[0] = recover_bookie(client, LocalRunner(client), wish).is_complete

    release(ground.client(None, lose_the_kept_copy), lake, [ledger_id], keep=1)

    assert complete == [False]  # no other bookie is there that may take it
    assert entries_of(ground.client(), ledger_id) == before
    again = recover_bookie(ground.context, runner(ground), BookieRecovery((first,)))
    assert again.is_complete, again.unfinished
    assert len(holders(ground, ledger_id)) == 1
    checked = check_ledgers(ground.context, runner(ground), None, percentage=100)
    assert checked.is_complete, checked.unfinished


def test_a_deleted_ledger_leaves_the_table_alone(ground: Ground, lake: Path) -> None:
    (ledger_id,) = released(ground, lake, keep=0)

    delete_ledger(ground.context, ledger_id)

    assert DeltaTable(str(lake)).to_pyarrow_table().num_rows == 20


# What becomes of the table


def test_a_table_that_was_compacted_and_vacuumed_is_read_by_places(
    ground: Ground, lake: Path
) -> None:
    ledgers = released(ground, lake, keep=0, ledgers=3)
    before = [entries_of(ground.context, ledger_id) for ledger_id in ledgers]
    table = DeltaTable(str(lake))
    pinned = set(table.file_uris())

    table.optimize.compact()
    table.vacuum(0, enforce_retention_duration=False, dry_run=False)

    assert not any(Path(uri.removeprefix("file://")).exists() for uri in pinned)
    assert [entries_of(ground.client(), ledger_id) for ledger_id in ledgers] == before
    assert [entries_of(ground.context, ledger_id) for ledger_id in ledgers] == before
    assert check_ledgers(ground.client(), runner(ground), None, percentage=100).is_complete


def test_a_table_with_checkpoints_and_a_cleaned_log_is_read(ground: Ground, lake: Path) -> None:
    (ledger_id,) = released(ground, lake, keep=0)
    before = entries_of(ground.context, ledger_id)
    table = DeltaTable(str(lake))
    table.optimize.z_order(["_entry_id"])
    table.vacuum(0, enforce_retention_duration=False, dry_run=False)
    table.create_checkpoint()
    for commit in sorted((lake / "_delta_log").glob("*.json")):
        commit.unlink()

    assert entries_of(ground.client(), ledger_id) == before


def test_rows_that_are_changed_in_the_table_do_not_matter_until_it_is_vacuumed(
    ground: Ground, lake: Path
) -> None:
    (ledger_id,) = released(ground, lake, keep=0)
    before = entries_of(ground.context, ledger_id)
    table = DeltaTable(str(lake))
    table.update(predicate="_entry_id = 3", updates={"payload": "X'666f72676564'"})
    table.delete("_entry_id = 5")
    assert entries_of(ground.client(), ledger_id) == before

    table.vacuum(0, enforce_retention_duration=False, dry_run=False)

    with pytest.raises(EntryUnreadableError, match="was changed since") as caught:
        entries_of(ground.client(), ledger_id)
    assert caught.value.facts["entry_id"] == 3
    report = check_ledgers(ground.client(), runner(ground), None, percentage=100)
    assert {row.status for row in report.rows} == {Outcome.DAMAGED}
    assert "restore the table" in str(report.rows[0].reason)
    reader = lifecycle.open_ledger(ground.client(), ledger_id)
    assert reader.read_arrow(skip_lost=True).num_rows == 18


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ("table", "there is no table at"),
        ("list", "proves which of its rows"),
        ("damage", "is damaged"),
    ],
)
def test_a_table_that_is_gone_is_said_clearly(
    ground: Ground, lake: Path, loss: str, said: str
) -> None:
    (ledger_id,) = released(ground, lake, keep=0)
    (listing,) = (lake / DIRECTORY).glob("*/*.arrow")
    if loss == "table":
        shutil.rmtree(lake)
    elif loss == "list":
        listing.unlink()
    else:
        data = bytearray(listing.read_bytes())
        data[len(data) // 2] ^= 1
        listing.write_bytes(data)

    with pytest.raises(EntryUnreadableError, match=said):
        entries_of(ground.client(), ledger_id)
    found = check_ledgers(ground.client(), runner(ground), None, percentage=100).rows
    assert {row.status for row in found} == {Outcome.UNAVAILABLE}
    assert all(said in str(row.reason) for row in found)
    assert table_of_cluster(ground) == {f"table {lake}": "problem"}


def test_a_kept_copy_is_read_while_the_table_is_away(ground: Ground, lake: Path) -> None:
    (ledger_id,) = released(ground, lake)
    before = entries_of(ground.context, ledger_id)
    lake.rename(lake.with_name("away"))

    assert entries_of(ground.client(), ledger_id) == before


def test_a_table_that_moved_takes_the_place_of_the_old_one(ground: Ground, lake: Path) -> None:
    (ledger_id,) = released(ground, lake, keep=0)
    before = entries_of(ground.context, ledger_id)
    other = lake.with_name("other")
    shutil.copytree(lake, other)

    (row,) = release(ground.client(), other, [ledger_id], keep=0)
    shutil.rmtree(lake)

    assert row.status is Outcome.RELEASED, row.reason
    assert entries_of(ground.client(), ledger_id) == before


def test_another_version_of_arrow_may_write_other_bytes(
    ground: Ground, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.table({"id": [1, 2, 3]})
    writer = lifecycle.create_ledger(
        ground.context, metadata_of(ground, bytes_ledger(ground)).quorum, schema=rows.schema
    )
    writer.append(rows)
    writer.close()
    archive(ground.context, lake, [writer.ledger_id])
    release(ground.context, lake, [writer.ledger_id], keep=0)

    def padded(*args: Any) -> list[pa.Buffer]:
        return [pa.py_buffer(bytes(memoryview(m)) + b"\0" * 8) for m in encode_batches(*args)]

    monkeypatch.setattr("spark_bookkeeper.table.table_bookie.encode_batches", padded)

    reader = lifecycle.open_ledger(ground.client(), writer.ledger_id)

    assert reader.read_arrow() == rows
    assert [entry.batch.to_pylist() for entry in reader.entries()] == [rows.to_pylist()]
