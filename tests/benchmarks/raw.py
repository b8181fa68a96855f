"""Plain code that moves the same bytes, or does the same puts: the limit of this machine."""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import crc32c
import numpy as np
import pyarrow as pa

COPIES = 3
COPY_BYTES = 1 << 20
CHECKED_BYTES = 256 << 10


def noise(size_bytes: int, seed: int = 7) -> bytes:
    """Bytes that do not compress."""
    return np.random.default_rng(seed).bytes(size_bytes)


def noise_table(size_bytes: int, row_bytes: int = 1024, batch_bytes: int = 8 << 20) -> pa.Table:
    """Rows of one binary column ``payload`` that do not compress."""
    rows_each = max(1, min(batch_bytes, size_bytes) // row_bytes)
    batches = []
    for number in range(max(1, size_bytes // (rows_each * row_bytes))):
        offsets: Any = np.arange(0, (rows_each + 1) * row_bytes, row_bytes, dtype=np.int32)
        column = pa.BinaryArray.from_buffers(
            pa.binary(),
            rows_each,
            [None, pa.py_buffer(offsets), pa.py_buffer(noise(rows_each * row_bytes, number))],
        )
        batches.append(pa.RecordBatch.from_arrays([column], names=["payload"]))
    return pa.Table.from_batches(batches)


def arrow_file(table: pa.Table) -> memoryview:
    """A table as the bytes of an Arrow IPC file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return memoryview(sink.getvalue())


def write_synced(path: Path, pieces: Iterator[memoryview] | Sequence[memoryview]) -> None:
    """A new file with these bytes, and with its name durable."""
    with open(path, "wb", buffering=0) as file:
        for piece in pieces:
            view = memoryview(piece).cast("B")
            while view:
                view = view[file.write(view) :]
        os.fsync(file.fileno())
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def sync_file_system(path: Path) -> None:
    """Everything that was done before in the file system of a directory is durable."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _LIBRARY.syncfs(directory) != 0:
            raise OSError(ctypes.get_errno(), "syncfs failed")
    finally:
        os.close(directory)


_LIBRARY = ctypes.CDLL(None, use_errno=True)


def write_copies(directory: Path, data: memoryview) -> float:
    """Seconds for three fsynced copies by three threads, which are removed again."""
    paths = [directory / f"copy-{n}" for n in range(COPIES)]
    pieces = [data[at : at + COPY_BYTES] for at in range(0, len(data), COPY_BYTES)]
    with ThreadPoolExecutor(COPIES) as threads:
        started = time.perf_counter()
        list(threads.map(lambda path: write_synced(path, pieces), paths))
        seconds = time.perf_counter() - started
    for path in paths:
        path.unlink()
    return seconds


def copy_files(
    sources: Sequence[Path], directory: Path, width: int = 4, *, verified: bool = False
) -> float:
    """Seconds to copy files, each fsynced, several at a time; the copies are removed again.

    Args:
        verified: with the CRC32C of what is read, and of the copy, which is read back.
    """
    directory.mkdir(exist_ok=True)

    def copy(numbered: tuple[int, Path]) -> Path:
        number, source = numbered
        target = directory / f"copy-{number}"
        summed = _Summed()
        with open(source, "rb", buffering=0) as file:
            chunks = _chunks(file.read)
            write_synced(target, summed.each(chunks) if verified else chunks)
        assert not verified or checksum(target) == summed.value
        return target

    with ThreadPoolExecutor(width) as threads:
        started = time.perf_counter()
        copies = list(threads.map(copy, enumerate(sources)))
        seconds = time.perf_counter() - started
    for path in copies:
        path.unlink()
    return seconds


def join_files(directory: Path, joined: Path, width: int = 8) -> float:
    """Seconds to read small files one by one, write their bytes as one file that is synced, and
    remove them, several at a time.
    """

    def content(path: str) -> bytes:
        file = os.open(path, os.O_RDONLY)
        try:
            return os.read(file, 1 << 16)
        finally:
            os.close(file)

    def remove(some: Sequence[str]) -> None:
        for path in some:
            os.unlink(path)

    started = time.perf_counter()
    paths = [f"{directory}/{name}" for name in sorted(os.listdir(directory))]
    write_synced(joined, [memoryview(b"".join(map(content, paths)))])
    with ThreadPoolExecutor(width) as threads:
        list(threads.map(remove, (paths[n::width] for n in range(width))))
    sync_directory(directory)
    return time.perf_counter() - started


def checksum(path: Path, size: int | None = None) -> int:
    """CRC32C of a file, or of its first bytes, read into one buffer."""
    value, left = 0, path.stat().st_size if size is None else size
    buffer = memoryview(bytearray(CHECKED_BYTES))
    with open(path, "rb", buffering=0) as file:
        while left and (count := file.readinto(buffer[:left])):
            value = crc32c.crc32c(buffer[:count], value)
            left -= count
    return value


def read_verified(paths: Sequence[Path], width: int = 2) -> float:
    """Seconds to read files and compute their CRC32C, several at a time."""
    with ThreadPoolExecutor(width) as threads:
        started = time.perf_counter()
        list(threads.map(checksum, paths))
        return time.perf_counter() - started


class _Summed:
    """CRC32C of pieces on their way."""

    def __init__(self) -> None:
        self.value = 0

    def each(self, pieces: Iterator[memoryview]) -> Iterator[memoryview]:
        for piece in pieces:
            self.value = crc32c.crc32c(piece, self.value)
            yield piece


def _chunks(read: Callable[[int], bytes]) -> Iterator[memoryview]:
    while data := read(COPY_BYTES):
        yield memoryview(data)


def append_and_wait(directory: Path, payload: bytes, count: int) -> list[float]:
    """Seconds of each append to three plain files, fdatasynced by three threads, two awaited."""
    paths = [directory / f"journal-{n}" for n in range(COPIES)]
    with ExitStack() as stack:
        files = [stack.enter_context(open(path, "wb", buffering=0)) for path in paths]

        def append(number: int, _: int) -> None:
            files[number].write(payload)
            os.fdatasync(files[number].fileno())

        took = _await_two_of_three(append, count)
    for path in paths:
        path.unlink()
    return took


def put_and_wait(directory: Path, payload: bytes, count: int) -> list[float]:
    """The same with a new file for each append, content and name synced. The files stay."""
    home = Path(tempfile.mkdtemp(dir=directory))
    homes = [home / str(n) for n in range(COPIES)]
    for home in homes:
        home.mkdir()

    def put(number: int, turn: int) -> None:
        write_synced(homes[number] / str(turn), [memoryview(payload)])

    return _await_two_of_three(put, count)


def _await_two_of_three(store: Callable[[int, int], None], count: int) -> list[float]:
    took: list[float] = []
    with ExitStack() as stack:
        # A thread for each copy, as each bookie has one, so that a slow one holds up itself only.
        threads = [stack.enter_context(ThreadPoolExecutor(1)) for _ in range(COPIES)]
        for turn in range(count):
            started = time.perf_counter()
            pending = {t.submit(store, n, turn) for n, t in enumerate(threads)}
            done = 0
            while done < 2:
                finished, pending = wait(pending, return_when="FIRST_COMPLETED")
                done += len(finished)
            took.append(time.perf_counter() - started)
    return took
