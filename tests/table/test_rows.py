"""The rows of many ledgers read together are those that each has when it is read alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from typing_extensions import override

from spark_bookkeeper.storage.local import LocalStorage
from spark_bookkeeper.table import rows as rows_module
from spark_bookkeeper.table.folder import MissingFileError
from spark_bookkeeper.table.rows import LedgerRows, TableRows
from spark_bookkeeper.table.snapshot import TableFiles

ONE = pa.schema([("id", pa.int64()), ("text", pa.string())])
OTHER = pa.schema([("text", pa.string()), ("id", pa.int64())])
WIDER = pa.schema([("id", pa.int64()), ("more", pa.float64())])


def rows_of(dice: random.Random, ledgers: dict[int, pa.Schema]) -> pa.Table:
    """A few entries of each, in no order."""
    pieces = []
    for ledger_id, schema in ledgers.items():
        places = [(entry, row) for entry in range(3) for row in range(dice.randrange(4))]
        dice.shuffle(places)
        columns = {
            "_ledger_id": pa.array([ledger_id] * len(places), pa.int64()),
            "_entry_id": pa.array([entry for entry, _ in places], pa.int64()),
            "_row": pa.array([row for _, row in places], pa.int64()),
        }
        for field in schema:
            values = [dice.choice([None, 100 * ledger_id + row]) for _, row in places]
            columns[field.name] = pa.array(values, pa.int64()).cast(field.type)
        pieces.append(pa.table(columns))
    dice.shuffle(pieces)
    return pa.concat_tables(pieces, promote_options="default")


def opened(path: Path) -> TableRows:
    return TableRows(LocalStorage(str(path)), "archive-0:1")


@pytest.mark.parametrize("seed", range(5))
def test_each_has_the_rows_that_it_has_alone(tmp_path: Path, seed: int) -> None:
    """Also where ledgers pin different versions, so that files of one have the other's rows."""
    dice = random.Random(seed)
    schemas = {ledger_id: dice.choice([ONE, OTHER, WIDER]) for ledger_id in range(12)}
    for ids in (range(6), range(6, 9), range(9, 12)):
        rows = rows_of(dice, {ledger_id: schemas[ledger_id] for ledger_id in ids})
        write_deltalake(str(tmp_path), rows, mode="append", schema_mode="merge")
    table = opened(tmp_path)
    pinned = dict(table.files_of_each(range(0, 12, 2)))
    DeltaTable(str(tmp_path)).optimize.compact()
    pinned |= table.files_of_each(range(1, 12, 2))
    wanted = [LedgerRows(i, schemas[i], pinned[i]) for i in dice.sample(range(12), 12)]

    found = opened(tmp_path).read_many(wanted)

    assert len({each.pinned.paths for each in wanted}) > 1
    for each, rows in zip(wanted, found, strict=True):
        alone = table.read(each.ledger_id, each.schema, each.pinned, 0, 2)
        assert (
            rows.sort_by("_row")
            .sort_by("_entry_id")
            .equals(alone.select(rows.column_names).sort_by("_row").sort_by("_entry_id"))
        ), each.ledger_id
        places = rows.select(["_entry_id", "_row"]).to_pylist()
        assert places == sorted(places, key=lambda place: (place["_entry_id"], place["_row"]))
        assert set(rows["_ledger_id"].to_pylist()) <= {each.ledger_id}


def test_a_file_that_is_gone_is_said_and_not_passed_over(tmp_path: Path) -> None:
    rows = rows_of(random.Random(1), {1: ONE, 2: ONE})
    write_deltalake(str(tmp_path), rows)
    table = opened(tmp_path)
    wanted = [LedgerRows(i, ONE, files) for i, files in table.files_of_each([1, 2]).items()]
    (tmp_path / wanted[0].pinned.paths[0]).unlink()

    with pytest.raises(MissingFileError):
        table.read_many(wanted)


def test_files_that_are_pinned_later_are_read_whatever_stood_for_earlier_ones(
    tmp_path: Path,
) -> None:
    """Else what is proven of the new files would be true of others only."""
    rows = rows_of(random.Random(4), {1: ONE})
    write_deltalake(str(tmp_path), rows)
    table = opened(tmp_path)
    first = table.files_of(1)
    write_deltalake(str(tmp_path), rows, mode="overwrite")
    DeltaTable(str(tmp_path)).vacuum(0, enforce_retention_duration=False, dry_run=False)
    assert len(table.read(1, ONE, first, 0, 2)) == len(rows)
    write_deltalake(str(tmp_path), rows.slice(0, 1), mode="overwrite")

    assert len(table.read(1, ONE, table.files_of(1), 0, 2)) == 1
    assert len(table.read(1, ONE, first, 0, 2)) == len(rows), "as long as those are there"


def test_a_proof_reads_what_is_pinned_or_nothing(tmp_path: Path) -> None:
    """Rows of other files prove nothing of those that a list names."""
    rows = rows_of(random.Random(4), {1: ONE})
    write_deltalake(str(tmp_path), rows)
    table = opened(tmp_path)
    pinned = table.files_of(1)
    write_deltalake(str(tmp_path), rows, mode="overwrite")
    DeltaTable(str(tmp_path)).vacuum(0, enforce_retention_duration=False, dry_run=False)

    assert len(table.read(1, ONE, pinned, 0, 2)) == len(rows)
    with pytest.raises(MissingFileError):
        table.read(1, ONE, pinned, 0, 2, is_exact=True)
    assert len(table.read_many([LedgerRows(1, ONE, pinned)])[0]) == len(rows)
    with pytest.raises(MissingFileError):
        table.read_many([LedgerRows(1, ONE, pinned)], is_exact=True)


def test_files_of_many_are_those_of_each(tmp_path: Path) -> None:
    dice = random.Random(2)
    for ids in ((1, 5), (2, 3), (8,), (4, 6)):
        rows = rows_of(dice, dict.fromkeys(ids, ONE))
        write_deltalake(str(tmp_path), rows, mode="append")
    table = opened(tmp_path)

    found = table.files_of_each([9, 8, 3, 1])

    assert found == {ledger_id: table.files_of(ledger_id) for ledger_id in (1, 3, 8, 9)}
    assert not found[9].paths
    assert len(found[8].paths) == 1


# What is read of a large file

GROUPS = 40
IN_A_GROUP = 5_000


class Measured(LocalStorage):
    """Counts the bytes that are asked for."""

    read_bytes = 0

    @override
    def read_range(self, path: str, offset: int, length: int) -> bytes | pa.Buffer | None:
        self.read_bytes += length
        return super().read_range(path, offset, length)


def large_file(directory: Path, ledger_of: Callable[[int], int]) -> TableFiles:
    """A file of many row groups.

    Args:
        ledger_of: whose a row is, by its number.
    """
    numbers = range(GROUPS * IN_A_GROUP)
    columns = {
        "_ledger_id": pa.array([ledger_of(number) for number in numbers], pa.int64()),
        "_entry_id": pa.array([0] * len(numbers), pa.int64()),
        "_row": pa.array(numbers, pa.int64()),
        "id": pa.array(numbers, pa.int64()),
    }
    table = pa.table(columns)
    pq.write_table(table, directory / "large.parquet", row_group_size=IN_A_GROUP)
    names = {name.lower(): name for name in columns}
    return TableFiles(0, ("large.parquet",), names)


def test_ledgers_at_both_ends_of_a_file_are_read_without_what_lies_between(tmp_path: Path) -> None:
    files = large_file(tmp_path, lambda number: number // IN_A_GROUP)
    storage = Measured(str(tmp_path))
    ends = [LedgerRows(ledger_id, ONE, files) for ledger_id in (0, GROUPS - 1)]

    first, last = TableRows(storage, "archive-0:1").read_many(ends)

    assert first["id"].to_pylist() == [*range(IN_A_GROUP)]
    assert last["id"].to_pylist() == [*range((GROUPS - 1) * IN_A_GROUP, GROUPS * IN_A_GROUP)]
    assert storage.read_bytes < (tmp_path / "large.parquet").stat().st_size / 4


@pytest.mark.parametrize("how", ["alone", "together"])
def test_rows_that_are_scattered_over_a_file_take_no_more_memory_than_a_row_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    files = large_file(tmp_path, lambda number: number % 1000)
    table = opened(tmp_path)
    whole = pq.read_table(tmp_path / "large.parquet").nbytes
    at_once: list[int] = []
    held: list[int] = []
    plain = rows_module._without_views

    def measured(decoded: pa.Table) -> pa.Table:
        at_once.append(decoded.nbytes)
        held.append(pa.total_allocated_bytes())
        return plain(decoded)

    monkeypatch.setattr(rows_module, "_without_views", measured)
    if how == "alone":
        rows = table.read(7, ONE, files, 0, 0)
    else:
        (rows, _) = table.read_many([LedgerRows(i, ONE, files) for i in (7, 993)])

    assert rows["id"].to_pylist() == [*range(7, GROUPS * IN_A_GROUP, 1000)]
    assert max(at_once) < whole / 4
    assert held[-1] - held[0] < whole / 4, "what was read before is not kept"
