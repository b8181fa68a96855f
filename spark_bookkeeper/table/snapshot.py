"""The current files and columns of a Delta table, read from its log without an engine.

The log consists of JSON commits on top of a checkpoint in Parquet. Only the parts that locate the
rows of a ledger are read. The tests compare the result with delta-rs.

Source: Delta transaction log protocol, "Delta Log Entries", "Checkpoints", "Column Mapping".
"""

from __future__ import annotations

import io
import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import pyarrow.parquet as pq

from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.table.folder import Folder

LOG: Final = "_delta_log"

LEDGER_COLUMN: Final = "_ledger_id"
ENTRY_COLUMN: Final = "_entry_id"
ROW_COLUMN: Final = "_row"

_COMMIT = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT = re.compile(
    r"([0-9]{20})\.checkpoint(?:\.([0-9]{10})\.([0-9]{10})|\.[0-9a-f-]{36})?\.(parquet|json)"
)


class NoTableError(BookieUnavailableError):
    """No Delta table exists at a location that can be read."""


@dataclass(frozen=True, slots=True)
class TableFiles:
    """Some files of a table at one version."""

    version: int
    paths: tuple[str, ...]
    """Paths of Parquet files, below the table."""
    columns: Mapping[str, str]
    """The names of columns in files, by lower-case name: Delta ignores the case of names."""
    partly_deleted: tuple[str, ...] = ()
    """Those of the paths from which a deletion vector removes rows. The vector is not read here, so
    these files must not be relied on."""

    @property
    def untouched(self) -> tuple[str, ...]:
        """Those of the paths of which the table has every row."""
        return tuple(path for path in self.paths if path not in self.partly_deleted)


def files_of(folder: Folder, ledger_ids: Sequence[int], bookie_id: str) -> Mapping[int, TableFiles]:
    """Return the files that may have rows of each ledger, in the newest version of a table.

    Raises:
        BookieUnavailableError: there is no table, or its log cannot be read.
    """
    with _as_unavailable(folder, bookie_id):
        return _files_of(folder, ledger_ids, bookie_id)


def schema_of(folder: Folder, bookie_id: str) -> Sequence[Mapping[str, Any]] | None:
    """Return the columns in a table's newest version, as in its log; ``None``: no table exists.

    Raises:
        BookieUnavailableError: its log cannot be read.
    """
    if not any(_COMMIT.fullmatch(name) or _CHECKPOINT.fullmatch(name) for name in folder.list(LOG)):
        return None
    fields: Sequence[Mapping[str, Any]] = []
    with _as_unavailable(folder, bookie_id):
        _, actions = _actions(folder, bookie_id)
        for action in actions:
            if (metadata := action.get("metaData")) is not None:
                fields = json.loads(metadata["schemaString"])["fields"]
    return fields


@contextmanager
def _as_unavailable(folder: Folder, bookie_id: str) -> Iterator[None]:
    """Turn errors from a damaged log into ``BookieUnavailableError`` about the table."""
    try:
        yield
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise BookieUnavailableError(
            f"the log of the table at {folder.uri} cannot be read ({type(error).__name__}: "
            f"{error})",
            bookie_id=bookie_id,
        ) from error


def _files_of(
    folder: Folder, ledger_ids: Sequence[int], bookie_id: str
) -> Mapping[int, TableFiles]:
    version, actions = _actions(folder, bookie_id)
    files: dict[str, Mapping[str, Any]] = {}
    columns: dict[str, str] = {}
    for action in actions:
        if (add := action.get("add")) is not None:
            files[add["path"]] = add
        elif (remove := action.get("remove")) is not None:
            files.pop(remove["path"], None)
        elif (metadata := action.get("metaData")) is not None:
            columns = dict(_columns(json.loads(metadata["schemaString"])))
    ledger_column = columns.get(LEDGER_COLUMN, LEDGER_COLUMN)
    wanted = sorted(ledger_ids)
    paths: dict[int, list[str]] = {ledger_id: [] for ledger_id in wanted}
    deleted = {unquote(path) for path, add in files.items() if add.get("deletionVector")}
    for path, add in files.items():
        held = _may_be_in(add, ledger_column, wanted)
        if held and (":" in path or path.startswith("/")):
            raise BookieUnavailableError(
                f"the table at {folder.uri} has files elsewhere ({path}), as a shallow clone does; "
                "copy it, or archive to another table",
                bookie_id=bookie_id,
            )
        for ledger_id in held:
            paths[ledger_id].append(unquote(path))
    return {
        ledger_id: TableFiles(
            version, tuple(sorted(found)), columns, tuple(sorted(deleted.intersection(found)))
        )
        for ledger_id, found in paths.items()
    }


def _columns(schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for field in schema["fields"]:
        physical = (field.get("metadata") or {}).get("delta.columnMapping.physicalName")
        yield field["name"].lower(), physical or field["name"]


def _may_be_in(add: Mapping[str, Any], column: str, ledger_ids: Sequence[int]) -> Sequence[int]:
    """Return the ledgers, in order, of which a file may have rows, by its bounds; without bounds it
    may have rows of all.
    """
    stats = json.loads(add.get("stats") or "{}")
    low, high = (stats.get(bound, {}).get(column) for bound in ("minValues", "maxValues"))
    if low is None or high is None:
        return ledger_ids
    return ledger_ids[bisect_left(ledger_ids, low) : bisect_right(ledger_ids, high)]


def _actions(folder: Folder, bookie_id: str) -> tuple[int, Iterable[Mapping[str, Any]]]:
    """Return the newest version, and all actions that make it up, in order."""
    names = folder.list(LOG)
    commits = {int(m[1]): name for name in names if (m := _COMMIT.fullmatch(name))}
    checkpoints = _checkpoints(names)
    if not commits and not checkpoints:
        raise NoTableError(
            f"there is no table at {folder.uri} any more (no {LOG}). What it stands for is nowhere "
            "else: put the table back, from a copy of it or from where it was moved to",
            bookie_id=bookie_id,
        )
    base = max(checkpoints, default=-1)
    newest = max(max(commits, default=-1), base)
    if missing := [v for v in range(base + 1, newest + 1) if v not in commits]:
        raise ValueError(f"commit {missing[0]} is missing")

    def actions() -> Iterator[Mapping[str, Any]]:
        for name in checkpoints.get(base, ()):
            yield from _of_checkpoint(folder, f"{LOG}/{name}")
        for version in range(base + 1, newest + 1):
            lines = _lines(_content(folder, f"{LOG}/{commits[version]}"))
            # The lines of a commit have no order. A path that is removed and added again, as with a
            # deletion vector, is added.
            yield from sorted(lines, key=lambda action: "remove" not in action)

    return newest, actions()


def _checkpoints(names: Sequence[str]) -> dict[int, list[str]]:
    """Return the files of each complete checkpoint, by version."""
    found: dict[int, list[str]] = {}
    parts: dict[tuple[int, int], list[str]] = {}
    for name in names:
        match = _CHECKPOINT.fullmatch(name)
        if match is None:
            continue
        if match[3] is None:
            found[int(match[1])] = [name]
        else:
            parts.setdefault((int(match[1]), int(match[3])), []).append(name)
    for (version, count), several in parts.items():
        if len(several) == count:
            found.setdefault(version, several)
    return found


def _of_checkpoint(folder: Folder, path: str) -> Iterator[Mapping[str, Any]]:
    data = _content(folder, path)
    actions = _lines(data) if path.endswith(".json") else _of_parquet(data)
    for action in actions:
        if (sidecar := action.get("sidecar")) is not None:
            yield from _of_parquet(_content(folder, f"{LOG}/_sidecars/{sidecar['path']}"))
        else:
            yield action


def _of_parquet(data: bytes) -> Iterator[Mapping[str, Any]]:
    file = pq.ParquetFile(io.BytesIO(data))
    wanted = [
        "add.path",
        "add.stats",
        "add.deletionVector",
        "metaData.schemaString",
        "sidecar.path",
    ]
    held = {name for name in wanted if name.split(".")[0] in file.schema_arrow.names}
    yield from file.read(columns=sorted(held)).to_pylist()


def _lines(data: bytes) -> Iterator[Mapping[str, Any]]:
    yield from (json.loads(line) for line in data.splitlines() if line.strip())


def _content(folder: Folder, path: str) -> bytes:
    data = folder.read(path)
    if data is None:
        raise ValueError(f"{path} is not there")
    return data
