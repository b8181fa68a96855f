"""A report as a file: Parquet or JSON lines, written piece by piece."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.replication.report import Report


def check_report_file(path: str) -> None:
    """Refuse a file that could not be written, before there is a report.

    Raises:
        InvalidArgumentError: another ending than those that are known, or no such directory.
    """
    file = Path(path)
    if file.suffix not in _WRITERS:
        raise InvalidArgumentError(
            f"{path} has none of the endings {', '.join(_WRITERS)}, which say in which form a "
            "report is written"
        )
    if not file.parent.is_dir():
        raise InvalidArgumentError(f"{file.parent} is not a directory; make it first")


def write_report(report: Report, path: str) -> None:
    """Write the rows of a report, also of one that does not fit in memory; all of them or none.

    Args:
        path: a new file, or one to be replaced; ``.parquet`` or ``.jsonl``, an object for each row.

    Raises:
        InvalidArgumentError: see ``check_report_file``; or it cannot be written.
    """
    check_report_file(path)
    file = Path(path)
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        _WRITERS[file.suffix](report, unfinished)
        os.replace(unfinished, file)
    except OSError as error:
        raise InvalidArgumentError(
            f"the report could not be written to {path}: {error.strerror or error}. What the job "
            "did stays done"
        ) from error
    finally:
        with suppress(OSError):
            unfinished.unlink()


def _write_parquet(report: Report, file: Path) -> None:
    with pyarrow.parquet.ParquetWriter(file, report.columns.SCHEMA) as writer:
        for batch in report.batches():
            writer.write_batch(batch)


def _write_lines(report: Report, file: Path) -> None:
    with file.open("w", encoding="utf-8") as lines:
        for row in _rows(report.batches()):
            lines.write(json.dumps(row, ensure_ascii=False) + "\n")


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, object]]:
    for batch in batches:
        yield from batch.to_pylist()


_WRITERS: Final[dict[str, Callable[[Report, Path], None]]] = {
    ".parquet": _write_parquet,
    ".jsonl": _write_lines,
}
