"""C1: what a closed ledger of many small files costs to read, before and after compaction, and what
compaction costs beside writing it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pyarrow as pa

from spark_bookkeeper.protocol.ids import LedgerId
from tests.benchmarks.appending import MB, SMALL
from tests.benchmarks.frames import consume
from tests.benchmarks.lab import Lab
from tests.benchmarks.measure import RAW, Against, Line, at_least
from tests.benchmarks.raw import join_files, noise

BEFORE = "the same, not compacted"
WRITER = "the writer of it, who waits for each append"


def reading(lab: Lab) -> Iterator[Line]:
    """C1, of two ledgers alike: one was compacted, and both are read in turns."""
    assert lab.spark is not None
    appends = lab.sizes.small_files
    small, compacted = _written(lab, appends), _written(lab, appends)
    report = lab.bk.compact([compacted])
    assert report.is_complete, report
    files = [_files(lab, ledger_id) for ledger_id in (small, compacted)]
    size = appends * SMALL
    scratch = lab.scratch("raw-compacted")
    path = scratch / "rows.arrows"
    table = _table(lab, compacted)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    assert table.equals(_table(lab, small)), "both have the same rows"

    def scan(ledger_id: LedgerId) -> Callable[[], float]:
        def read() -> float:
            started = time.perf_counter()
            consume(lab.bk.open_ledger(ledger_id).read())
            return size / (time.perf_counter() - started) / MB

        return read

    def here(ledger_id: LedgerId) -> Callable[[], float]:
        def read() -> float:
            started = time.perf_counter()
            rows = _table(lab, ledger_id).num_rows
            seconds = time.perf_counter() - started
            assert rows == appends
            return size / seconds / MB

        return read

    def one_file() -> float:
        started = time.perf_counter()
        with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
            stream.read_all()
        return size / (time.perf_counter() - started) / MB

    def compaction(bookies: int) -> Callable[[], float]:
        def compact() -> float:
            ledger_id = _written(lab, appends)
            ensemble = lab.bk.open_ledger(ledger_id).metadata.last_fragment.ensemble
            bookie_ids = ensemble[:bookies]
            started = time.perf_counter()
            report = lab.bk.compact([ledger_id], bookie_ids=bookie_ids)
            seconds = time.perf_counter() - started
            assert report.is_complete, report
            return appends / seconds

        return compact

    def joining() -> float:
        pattern = f"bookies/*/ledgers/{_written(lab, appends)}-*/slots"
        slots = next(lab.cluster_directory.glob(pattern))
        return appends / join_files(slots, lab.scratch("raw-joined") / "joined")

    def writing() -> float:
        started = time.perf_counter()
        _written(lab, appends)
        return appends / (time.perf_counter() - started)

    sizes = (
        f"{appends:,} appends of {SMALL} B, one after the other: {files[0]:,} files on the "
        f"bookies, {files[1]:,} compacted"
    )
    yield Line(
        "C1",
        "read_arrow of a ledger of many small files, compacted",
        "MB/s",
        sizes,
        here(compacted),
        [
            Against(BEFORE, here(small), at_least(1)),
            Against(f"{RAW}: one Arrow file, nothing verified", one_file),
        ],
        rounds=lab.sizes.rounds,
    )
    yield Line(
        "C1",
        "scan of a ledger of many small files into a Spark job, compacted",
        "MB/s",
        sizes,
        scan(compacted),
        [Against(BEFORE, scan(small), at_least(1))],
        rounds=lab.sizes.rounds,
        warm_up=2,  # Spark's first jobs are several times slower
    )
    system = "the same files read, written as one file, and removed; nothing is verified"
    for whose, bookies, target, raw in (
        ("of one bookie, as its agent does it", 1, 10, [Against(f"{RAW}: {system}", joining)]),
        ("of all bookies by one process", 3, 3, []),
    ):
        yield Line(
            "C1",
            f"compaction against the waited writer, {whose}",
            "entries/s",
            sizes,
            compaction(bookies),
            [Against(WRITER, writing, at_least(target)), *raw],
            rounds=lab.sizes.rounds,
        )


def _written(lab: Lab, appends: int) -> LedgerId:
    payload = noise(SMALL)
    with lab.bk.create_ledger() as writer:
        for _ in range(appends):
            writer.append(payload)
    return writer.ledger_id


def _table(lab: Lab, ledger_id: LedgerId) -> pa.Table:
    return lab.bk.open_ledger(ledger_id).read_arrow()


def _files(lab: Lab, ledger_id: LedgerId) -> int:
    held = lab.cluster_directory.glob(f"bookies/*/ledgers/{ledger_id}-*/**/*")
    return sum(path.is_file() for path in held)
