"""The files of a Delta table as its log tells them; delta-rs is the judge."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.storage.local import LocalStorage
from spark_bookkeeper.table.snapshot import TableFiles, files_of


def rows(ledger_id: int, entries: range) -> pa.Table:
    return pa.table(
        {
            "_ledger_id": pa.array([ledger_id] * len(entries), pa.int64()),
            "_entry_id": pa.array(entries, pa.int64()),
            "_row": pa.array([0] * len(entries), pa.int64()),
            "Value": [f"row {n}" for n in entries],
        }
    )


def ours(path: Path, ledger_id: int) -> TableFiles:
    return files_of(LocalStorage(str(path)), [ledger_id], "archive-0:1")[ledger_id]


def theirs(path: Path) -> set[str]:
    uris = DeltaTable(str(path)).file_uris()
    return {unquote(uri.removeprefix("file://")).removeprefix(f"{path}/") for uri in uris}


def test_after_every_kind_of_commit_the_same_files_are_there(tmp_path: Path) -> None:
    path = tmp_path / "lake"
    for number in range(4):
        write_deltalake(str(path), rows(7, range(number * 5, number * 5 + 5)), mode="append")
    steps: list[Callable[[DeltaTable], Any]] = [
        lambda table: table.create_checkpoint(),
        lambda table: table.delete("_entry_id = 3"),
        lambda table: table.optimize.compact(),
        lambda table: table.create_checkpoint(),
        lambda table: write_deltalake(table, rows(7, range(50, 60)), mode="append"),
        lambda table: table.vacuum(0, enforce_retention_duration=False, dry_run=False),
    ]
    for step in steps:
        step(DeltaTable(str(path)))
        found = ours(path, 7)
        assert set(found.paths) == theirs(path)
        assert found.version == DeltaTable(str(path)).version()
        assert found.columns["value"] == "Value"


VECTOR = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}


@pytest.mark.parametrize("is_removed_first", [True, False])
def test_a_file_with_a_vector_of_deletions_is_there_and_not_untouched(
    tmp_path: Path, is_removed_first: bool
) -> None:
    """The lines of a commit have no order."""
    path = tmp_path / "lake"
    write_deltalake(str(path), rows(7, range(5)))
    write_deltalake(str(path), rows(7, range(5, 9)), mode="append")
    before = ours(path, 7).paths
    commits = path / "_delta_log"
    told = [json.loads(line) for line in (commits / f"{1:020d}.json").read_text().splitlines()]
    (add,) = (line["add"] for line in told if "add" in line)
    lines = [{"remove": {"path": add["path"]}}, {"add": {**add, "deletionVector": VECTOR}}]
    lines = lines if is_removed_first else lines[::-1]
    (commits / f"{2:020d}.json").write_text("\n".join(map(json.dumps, lines)))

    found = ours(path, 7)

    assert found.paths == before
    assert found.partly_deleted == (unquote(add["path"]),)
    assert set(found.untouched) == set(before) - {unquote(add["path"])}


@pytest.mark.parametrize("vector", [VECTOR, None])
def test_a_checkpoint_tells_of_vectors_of_deletions(
    tmp_path: Path, vector: dict[str, Any] | None
) -> None:
    schema = {"fields": [{"name": "_ledger_id", "metadata": {}}]}
    actions = [
        {"metaData": {"schemaString": json.dumps(schema)}, "add": None},
        {"metaData": None, "add": {"path": "a.parquet", "stats": None, "deletionVector": vector}},
    ]
    (tmp_path / "_delta_log").mkdir()
    pq.write_table(
        pa.Table.from_pylist(actions), tmp_path / "_delta_log" / f"{3:020d}.checkpoint.parquet"
    )

    found = ours(tmp_path, 7)

    assert found.paths == ("a.parquet",)
    assert found.partly_deleted == (("a.parquet",) if vector else ())


def test_files_without_rows_of_a_ledger_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "lake"
    for ledger_id in (1, 2, 3):
        write_deltalake(str(path), rows(ledger_id, range(5)), mode="append")

    assert len(ours(path, 2).paths) == 1
    assert ours(path, 9).paths == ()
    assert set().union(*(ours(path, i).paths for i in (1, 2, 3))) == theirs(path)


def test_where_no_table_is_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(BookieUnavailableError, match="there is no table at"):
        ours(tmp_path, 1)


def test_a_log_with_a_hole_or_junk_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "lake"
    for number in range(3):
        write_deltalake(str(path), rows(number, range(5)), mode="append")
    commit = path / "_delta_log" / f"{1:020d}.json"
    content = commit.read_bytes()
    commit.write_bytes(b"{junk\n")
    with pytest.raises(BookieUnavailableError, match="cannot be read"):
        ours(path, 1)
    commit.unlink()
    with pytest.raises(BookieUnavailableError, match="commit 1 is missing"):
        ours(path, 1)
    commit.write_bytes(content)
    assert len(ours(path, 1).paths) == 1
