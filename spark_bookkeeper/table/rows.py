"""Reads the rows of one ledger from a Delta table's files, as batches under the ledger's schema,
and checks whether the files still exist.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_bookkeeper.bookie.messages import Int64Array
from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.table.folder import Folder, MissingFileError, OpenFile
from spark_bookkeeper.table.snapshot import (
    ENTRY_COLUMN,
    LEDGER_COLUMN,
    ROW_COLUMN,
    TableFiles,
    files_of,
)

PLACE: Final = (LEDGER_COLUMN, ENTRY_COLUMN, ROW_COLUMN)


class CannotRebuildError(ValueError):
    """The table's rows do not fit the ledger's schema; the message says which column."""


@dataclass(frozen=True, slots=True)
class LedgerRows:
    """Selects all rows of a ledger, to be read in a batch with other ledgers."""

    ledger_id: int
    schema: pa.Schema
    pinned: TableFiles


@dataclass(frozen=True, slots=True)
class _Meant:
    """Selects rows of a file."""

    ledger_ids: Sequence[int]
    """The ids of the selected ledgers, ascending."""
    entries: tuple[int, int] | None = None
    """The first and the last selected entry; ``None``: all entries."""

    def may_be_in(self, ledgers: tuple[int, int] | None, entries: tuple[int, int] | None) -> bool:
        """Whether rows within inclusive bounds may be selected; ``None``: unknown bounds."""
        if ledgers is not None:
            next_one = bisect_left(self.ledger_ids, ledgers[0])
            if next_one == len(self.ledger_ids) or self.ledger_ids[next_one] > ledgers[1]:
                return False
        if entries is None or self.entries is None:
            return True
        return entries[0] <= self.entries[1] and entries[1] >= self.entries[0]

    def of(self, rows: pa.Table) -> pa.Table:
        """Return the selected rows as a copy, which does not keep the others in memory."""
        found = pc.is_in(rows[LEDGER_COLUMN], pa.array(self.ledger_ids, pa.int64()))
        if self.entries is not None:
            first, last = self.entries
            ids = rows[ENTRY_COLUMN]
            inside = pc.and_(pc.greater_equal(ids, first), pc.less_equal(ids, last))
            found = pc.and_(found, inside)
        return rows.filter(found)


class TableRows:
    """Reads rows of ledgers; remembers replaced files. Any thread may call.

    Args:
        folder: the table.
        bookie_id: its name in ledgers' metadata, for errors.
    """

    def __init__(self, folder: Folder, bookie_id: str) -> None:
        self.folder = folder
        self.bookie_id = bookie_id
        self._newest: dict[tuple[int, tuple[str, ...]], TableFiles] = {}
        """Files that are read instead of a ledger's pinned files, one of which is missing. The key
        has the pinned paths: files that are pinned later may lack rows that these have."""

    def files_of(self, ledger_id: int) -> TableFiles:
        """Return the files with rows of a ledger, in the table's newest version."""
        return self.files_of_each([ledger_id])[ledger_id]

    def files_of_each(self, ledger_ids: Sequence[int]) -> Mapping[int, TableFiles]:
        """Return the files of many ledgers in one version; the table's log is read once."""
        return files_of(self.folder, ledger_ids, self.bookie_id)

    def read(
        self,
        ledger_id: int,
        schema: pa.Schema,
        pinned: TableFiles,
        first: int,
        last: int,
        *,
        is_exact: bool = False,
    ) -> pa.Table:
        """Return the rows of the entries ``first .. last``, with their places, by entry and row.

        They come from the pinned files. If one of these is missing, as after OPTIMIZE and VACUUM,
        they come from the files of the newest version: places identify the rows in any file.

        Args:
            is_exact: read the pinned files only, as a proof of these files requires.

        Raises:
            MissingFileError: ``is_exact``, and a pinned file is missing.
            BookieUnavailableError: the table cannot be read.
        """
        if is_exact:
            return self._read(ledger_id, schema, pinned, first, last)
        key = ledger_id, pinned.paths
        files = self._newest.get(key, pinned)
        for again in (True, True, False):
            try:
                return self._read(ledger_id, schema, files, first, last)
            except MissingFileError:
                if not again:
                    raise
                files = self._newest[key] = self.files_of(ledger_id)
        raise AssertionError("the last turn returns or raises")

    def read_many(self, wanted: Sequence[LedgerRows], *, is_exact: bool = False) -> list[pa.Table]:
        """Return the rows of each small ledger, as ``read`` does; no file is read twice.

        Raises:
            BookieUnavailableError: the table cannot be read.
        """
        try:
            return self._read_many(wanted)
        except MissingFileError:
            if is_exact:
                raise
            newest = self.files_of_each([each.ledger_id for each in wanted])
            return self._read_many([replace(x, pinned=newest[x.ledger_id]) for x in wanted])

    def _read_many(self, wanted: Sequence[LedgerRows]) -> list[pa.Table]:
        alike: dict[tuple[object, ...], list[int]] = {}
        for number, each in enumerate(wanted):
            # Ledgers are read in one batch only if they have the same columns under the same names.
            columns = tuple(sorted(each.pinned.columns.items()))
            alike.setdefault((columns, *each.schema.names), []).append(number)
        found: dict[int, pa.Table] = {}
        for numbers in alike.values():
            found |= zip(numbers, self._read_alike([wanted[n] for n in numbers]), strict=True)
        return [found[number] for number in range(len(wanted))]

    def _read_alike(self, wanted: Sequence[LedgerRows]) -> list[pa.Table]:
        held = self._held(wanted[0].schema, wanted[0].pinned)
        by_path: dict[str, list[int]] = {}
        for each in wanted:
            for path in each.pinned.paths:
                by_path.setdefault(path, []).append(each.ledger_id)
        pieces: list[pa.Table] = []
        for path, ledger_ids in by_path.items():
            # A file that one ledger pins may have rows that another ledger has in another file.
            pieces += self._pieces(path, held, _Meant(sorted(ledger_ids)))
        rows = _in_order(pieces, PLACE)
        ids = rows[LEDGER_COLUMN].to_numpy()
        wanted_ids = np.asarray([each.ledger_id for each in wanted], dtype=np.int64)
        starts: Int64Array = np.searchsorted(ids, wanted_ids, side="left")
        ends: Int64Array = np.searchsorted(ids, wanted_ids, side="right")
        places = zip(starts.tolist(), ends.tolist(), strict=True)
        return [rows.slice(start, end - start) for start, end in places]

    def _read(
        self, ledger_id: int, schema: pa.Schema, files: TableFiles, first: int, last: int
    ) -> pa.Table:
        held = self._held(schema, files)
        meant = _Meant([ledger_id], (first, last))
        pieces = [piece for path in files.paths for piece in self._pieces(path, held, meant)]
        return _in_order(pieces, (ENTRY_COLUMN, ROW_COLUMN))

    def _held(self, schema: pa.Schema, files: TableFiles) -> dict[str, str]:
        """Return the table's columns of a ledger: the names in files by the ledger's names."""
        names = {name: files.columns.get(name.lower()) for name in (*PLACE, *schema.names)}
        if not all(names[name] for name in PLACE):
            raise BookieUnavailableError(
                f"the table at {self.folder.uri} has no columns {', '.join(PLACE)} any more: "
                "nothing tells which rows are this ledger's",
                bookie_id=self.bookie_id,
            )
        return {name: stored for name, stored in names.items() if stored is not None}

    def _pieces(self, path: str, names: Mapping[str, str], meant: _Meant) -> list[pa.Table]:
        """Return the selected rows of a file; reads one row group at a time to save memory."""
        try:
            return list(self._rows_of(path, names, meant))
        except pa.ArrowInvalid as error:
            raise BookieUnavailableError(
                f"{self.folder.uri}/{path} cannot be read: {error}", bookie_id=self.bookie_id
            ) from error

    def _rows_of(self, path: str, names: Mapping[str, str], meant: _Meant) -> Iterator[pa.Table]:
        source = pa.PythonFile(OpenFile(self.folder, path, self.bookie_id), mode="r")
        file = pq.ParquetFile(source, coerce_int96_timestamp_unit="us", pre_buffer=True)
        there = [stored for stored in names.values() if stored in file.schema_arrow.names]
        back = {stored: name for name, stored in names.items()}

        def meant_of(number: int) -> pa.Table:
            rows = _without_views(file.read_row_group(number, columns=there))
            return meant.of(rows.rename_columns([back[stored] for stored in rows.column_names]))

        for number in range(file.metadata.num_row_groups):
            if _may_have(file.metadata.row_group(number), names, meant):
                yield meant_of(number)


def _in_order(pieces: Sequence[pa.Table], by: Sequence[str]) -> pa.Table:
    """Return the rows of all pieces, sorted by some columns of their place."""
    if not pieces:
        return pa.table({name: pa.array([], pa.int64()) for name in PLACE})
    rows = pa.concat_tables(pieces, promote_options="permissive")
    return rows.sort_by([(name, "ascending") for name in by])


def _may_have(group: pq.RowGroupMetaData, names: Mapping[str, str], meant: _Meant) -> bool:
    """Whether a row group may have selected rows, by its bounds."""
    bounds: dict[str, tuple[int, int]] = {}
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema in (names[LEDGER_COLUMN], names[ENTRY_COLUMN]):
            stats = column.statistics
            if stats is not None and stats.has_min_max:
                bounds[column.path_in_schema] = stats.min, stats.max
    return meant.may_be_in(bounds.get(names[LEDGER_COLUMN]), bounds.get(names[ENTRY_COLUMN]))


def batches_of(
    rows: pa.Table, schema: pa.Schema, entry_ids: Sequence[int]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each entry under the ledger's schema, in the order of ``entry_ids``.

    An entry without rows in the table is a batch without rows.

    Args:
        rows: sorted by place, as ``TableRows.read`` returns them.

    Raises:
        CannotRebuildError: a column does not fit.
    """
    whole = _under(rows, schema)
    ids = rows[ENTRY_COLUMN].to_numpy() if len(rows) else np.array([], dtype=np.int64)
    wanted = np.asarray(entry_ids, dtype=np.int64)
    starts: Int64Array = np.searchsorted(ids, wanted, side="left")
    ends: Int64Array = np.searchsorted(ids, wanted, side="right")
    for entry_id, start, end in zip(entry_ids, starts.tolist(), ends.tolist(), strict=True):
        # A slice would keep the bytes next to it, so the rows are taken instead.
        yield entry_id, whole.take(pa.array(np.arange(start, end)))


def _under(rows: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for field in schema:
        if field.name not in rows.column_names:  # never written, since all its values are null
            columns.append(pa.nulls(len(rows), field.type))
            continue
        column = rows[field.name].combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = (
                pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
            )
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise CannotRebuildError(
                f"column {field.name!r} is {field.type} in the ledger, and {column.type} in the "
                f"table, which cannot be turned into that ({error})"
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _without_views(rows: pa.Table) -> pa.Table:
    """Convert types that other engines note in files, and that few functions of Arrow accept."""
    fields = [field.with_type(_plain(field.type)) for field in rows.schema]
    return rows.cast(pa.schema(fields))


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(_plain(f.type)) for f in map(kind.field, range(len(kind)))])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_plain(kind.value_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    return kind


class Presence:
    """The files of a table; the existence of each is checked once, for any number of ledgers.

    Args:
        ledger_ids: all ledgers that will be checked.
    """

    def __init__(self, rows: TableRows, ledger_ids: Sequence[int]) -> None:
        self._rows = rows
        self._ledger_ids = ledger_ids
        self._there: dict[str, bool] = {}
        self._newest: Mapping[int, TableFiles] | None = None

    def what_is_gone(self, ledger_id: int, pinned: TableFiles) -> str | None:
        """Return what a reader of a ledger would miss, by file names; ``None``: nothing.

        Args:
            pinned: the files in the ledger's list. If one is missing, the newest version counts.

        Raises:
            BookieUnavailableError: a file is missing, and the table's log cannot be read.
        """
        if all(map(self._is_there, pinned.paths)):
            return None
        if self._newest is None:
            self._newest = self._rows.files_of_each(self._ledger_ids)
        paths = self._newest[ledger_id].paths
        if not paths:
            return "the table has no rows of it any more"
        gone = [path for path in paths if not self._is_there(path)]
        return f"the table's file {gone[0]} is not there" if gone else None

    def _is_there(self, path: str) -> bool:
        if path not in self._there:
            self._there[path] = self._rows.folder.size(path) is not None
        return self._there[path]
