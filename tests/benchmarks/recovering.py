"""P6 and P7: recovery of ledgers nobody closed, and of a bookie that is lost."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import crc32c
import pyarrow as pa
from kazoo.client import KazooClient
from typing_extensions import Self

import spark_bookkeeper as sbk
from spark_bookkeeper.bookie.entry import NewEntry
from spark_bookkeeper.bookie.record import encode_add
from spark_bookkeeper.protocol.ids import NO_ENTRY, BookieId, LedgerId
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from tests.benchmarks import raw
from tests.benchmarks.appending import MB, SMALL
from tests.benchmarks.lab import Lab
from tests.benchmarks.measure import RAW, Against, Line, at_least, at_most
from tests.benchmarks.profiling import timed
from tests.support.slotlog import log_of

ENTRIES = 10
WIDTH = 32
TOGETHER = 128
ENTRY_BYTES = 1 << 20
ENTRIES_A_SLOT = 8
ZNODE_BYTES = 700
"""About what the metadata of a ledger takes."""
FENCE_BYTES = 1024


def ledgers(lab: Lab) -> Iterator[Line]:
    """P6."""
    with _Bare(lab) as bare:
        yield _empty(lab, bare)
        yield _tail(lab)
        yield _job(lab, bare)


class _Bare:
    """The least that the recovery of a ledger consists of, by plain code and plain kazoo.

    A write to ZooKeeper, a small new file on each of three bookies, its content and name synced,
    and a write to ZooKeeper: the flag, the fences and the close.
    """

    def __init__(self, lab: Lab) -> None:
        hosts = lab.bk.metadata_uri.split("://")[1].split("/")[0]
        self._client = KazooClient(hosts)
        self._scratch = lab.scratch("raw-recovery")
        self._threads = ThreadPoolExecutor(raw.COPIES)
        self._value = raw.noise(ZNODE_BYTES)
        self._fence = [memoryview(raw.noise(FENCE_BYTES))]

    def __enter__(self) -> Self:
        self._client.start()
        self._client.ensure_path("/raw-recovery")
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()
        self._client.stop()
        self._client.close()
        shutil.rmtree(self._scratch)

    def one_by_one(self, count: int) -> float:
        """Milliseconds of each; the fences side by side."""
        return self._run(count, 1, self._threads.map) / count * 1000

    def at_once(self, count: int) -> float:
        """How many in a second, ``WIDTH`` at a time; the fences of each one after the other."""
        return count / self._run(count, WIDTH, map)

    def _run(self, count: int, width: int, spread: Callable[..., Iterator[None]]) -> float:
        turns = list(range(count))
        run = Path(tempfile.mkdtemp(dir=self._scratch))
        homes = [run / str(n) for n in range(raw.COPIES)]
        for home in homes:
            home.mkdir()
        for turn in turns:
            self._client.ensure_path(f"/raw-recovery/{turn}")

        def recover(turn: int) -> None:
            self._client.set(f"/raw-recovery/{turn}", self._value)
            paths = [home / str(turn) for home in homes]
            list(spread(lambda path: raw.write_synced(path, self._fence), paths))
            self._client.set(f"/raw-recovery/{turn}", self._value)

        started = time.perf_counter()
        ThreadRuntime().map(recover, turns, width)
        return time.perf_counter() - started


class _BareShares:
    """The least that making small shares again consists of, by plain code and plain kazoo.

    For each share its node is read, and a small file, whose CRC32C is compared; a new file of the
    same bytes is put into two new directories, all of it synced, read back and compared; and the
    node is written, if it has the version that was read.
    """

    def __init__(self, lab: Lab, bk: sbk.BookKeeper, count: int) -> None:
        hosts = bk.metadata_uri.split("://")[1].split("/")[0]
        self._client = KazooClient(hosts)
        self._scratch = lab.scratch("raw-shares")
        self._turns = list(range(count))
        self._value = raw.noise(ZNODE_BYTES)
        self._data = raw.noise(ENTRIES * SMALL)
        self._checksum = crc32c.crc32c(self._data)

    def __enter__(self) -> Self:
        self._client.start()
        for turn in self._turns:
            self._client.ensure_path(self._node(turn))
            self._source(turn).parent.mkdir(parents=True)
            self._source(turn).write_bytes(self._data)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop()
        self._client.close()

    def at_once(self) -> float:
        """How many in a second, ``WIDTH`` at a time, each with syncs of its own."""

        def share(home: Path, turn: int) -> None:
            _, stat = self._client.get(self._node(turn))
            data = self._read(turn)
            target = self._target(home, turn)
            target.parent.mkdir(parents=True)
            raw.sync_directory(home)
            raw.sync_directory(target.parents[1])
            raw.write_synced(target, [memoryview(data)])
            assert target.read_bytes() == data
            self._client.set(self._node(turn), self._value, stat.version)

        home = Path(tempfile.mkdtemp(dir=self._scratch))
        started = time.perf_counter()
        ThreadRuntime().map(partial(share, home), self._turns, WIDTH)
        return len(self._turns) / (time.perf_counter() - started)

    def together(self) -> float:
        """The same in one thread, ``TOGETHER`` of them from step to step, and all synced as one."""
        home = Path(tempfile.mkdtemp(dir=self._scratch))
        started = time.perf_counter()
        for start in range(0, len(self._turns), TOGETHER):
            turns = self._turns[start : start + TOGETHER]
            reads = [self._client.get_async(self._node(turn)) for turn in turns]
            versions = [read.get()[1].version for read in reads]
            targets = [self._target(home, turn) for turn in turns]
            contents = [self._read(turn) for turn in turns]
            unnamed = []
            for target, data in zip(targets, contents, strict=True):
                target.parent.mkdir(parents=True)
                unnamed.append(os.open(target.parent, os.O_TMPFILE | os.O_WRONLY, 0o666))
                os.write(unnamed[-1], data)
            raw.sync_file_system(home)
            for target, file in zip(targets, unnamed, strict=True):
                os.link(f"/proc/self/fd/{file}", target, src_dir_fd=file, follow_symlinks=True)
                os.close(file)
            raw.sync_file_system(home)
            for target, data in zip(targets, contents, strict=True):
                assert target.read_bytes() == data
            transaction = self._client.transaction()
            for turn, version in zip(turns, versions, strict=True):
                transaction.set_data(self._node(turn), self._value, version)
            assert not any(isinstance(each, Exception) for each in transaction.commit())
        return len(self._turns) / (time.perf_counter() - started)

    def _node(self, turn: int) -> str:
        return f"/raw-shares/{turn}"

    def _source(self, turn: int) -> Path:
        return self._scratch / "sources" / str(turn) / "slot"

    def _target(self, home: Path, turn: int) -> Path:
        return home / str(turn) / "copies" / "copy"

    def _read(self, turn: int) -> bytes:
        data = self._source(turn).read_bytes()
        assert crc32c.crc32c(data) == self._checksum
        return data


def _empty(lab: Lab, bare: _Bare) -> Line:
    count = lab.sizes.recoveries

    def ours() -> float:
        left = _left_behind(lab.bk, count, 0)
        started = time.perf_counter()
        with timed():
            for ledger_id in left:
                assert lab.bk.open_ledger(ledger_id).is_closed
        seconds = time.perf_counter() - started
        for ledger_id in left:
            lab.bk.delete_ledger(ledger_id, even_if_alive=True)
        return seconds / count * 1000

    return Line(
        "P6",
        "recovery of an empty ledger",
        "ms",
        f"{count} a round, one after the other",
        ours,
        [
            Against("raw: 2 writes to ZooKeeper, 3 puts", lambda: bare.one_by_one(count)),
            lab.against_peer(
                lambda: lab.peer().ask("recover", count + 1, 0, 1)["ms"], at_most(0.7)
            ),
        ],
        rounds=lab.sizes.rounds,
    )


def _tail(lab: Lab) -> Line:
    size = lab.sizes.tail_bytes
    scratch = lab.scratch("raw-tail")
    raw.write_synced(scratch / "tail", [memoryview(raw.noise(size))])
    payload = raw.noise(ENTRY_BYTES)

    def ours() -> float:
        ledger_id = _with_tail(lab.bk, payload, size // ENTRY_BYTES)
        started = time.perf_counter()
        with timed():
            reader = lab.bk.open_ledger(ledger_id)
        seconds = time.perf_counter() - started
        assert reader.last_add_confirmed == size // ENTRY_BYTES - 1
        lab.forget(ledger_id)
        return seconds * 1000

    def verified() -> float:
        """Two bookies' bytes are checked before they count, and what is copied once more."""
        seconds = raw.read_verified([scratch / "tail"] * 2)
        copied = raw.copy_files([scratch / "tail"], scratch / "copies", verified=True)
        return (seconds + copied) * 1000

    return Line(
        "P6",
        "recovery of a tail that one bookie of three lacks",
        "ms",
        f"{size >> 20} MiB in entries of 1 MiB, none of them below a LAC",
        ours,
        [
            Against(
                RAW,
                lambda: raw.copy_files([scratch / "tail"], scratch / "copies") * 1000,
                at_most(1.3),
            ),
            Against("raw, verified as ours", verified),
        ],
        rounds=lab.sizes.rounds,
    )


def _with_tail(bk: sbk.BookKeeper, payload: bytes, entries: int) -> LedgerId:
    """A ledger whose writer ended when two of three bookies had stored what it sent."""
    writer = bk.create_ledger()
    ledger = writer._pipeline.ledger
    logs = [log_of(bk.context, b, ledger) for b in writer.metadata.last_fragment.ensemble[:2]]
    for log in logs:
        log.prepare()
    for slot, first in enumerate(range(0, entries, ENTRIES_A_SLOT)):
        some = range(first, min(entries, first + ENTRIES_A_SLOT))
        record = encode_add(
            ledger.key,
            ledger.encoding,
            "5a" * 16,
            slot,
            NO_ENTRY,
            [NewEntry(e, (e + 1) * len(payload), payload) for e in some],
        )
        for log in logs:
            log.add(slot, record)
    writer.abandon()
    return writer.ledger_id


def _job(lab: Lab, bare: _Bare) -> Line:
    count = lab.sizes.job_ledgers
    assert lab.spark is not None

    def ours() -> float:
        left = _left_behind(lab.bk, count, ENTRIES)
        started = time.perf_counter()
        with timed():
            report = lab.bk.recover_ledgers(left)
        seconds = time.perf_counter() - started
        assert report.is_complete, report
        for ledger_id in left:
            lab.bk.delete_ledger(ledger_id, even_if_alive=True)
        return count / seconds

    return Line(
        "P6",
        f"recovery of small ledgers: one Spark job, BookKeeper {WIDTH} at a time",
        "per s",
        f"{count:,} ledgers of {ENTRIES} x {SMALL} B a round",
        ours,
        [
            Against(f"raw: the same, {WIDTH} at a time", lambda: bare.at_once(count)),
            lab.against_peer(
                lambda: lab.peer().ask("recover", count + 1, ENTRIES, WIDTH)["per_s"],
                at_least(1),
            ),
        ],
        rounds=lab.sizes.rounds,
    )


def _left_behind(bk: sbk.BookKeeper, count: int, entries: int) -> list[LedgerId]:
    """Ledgers whose writer went without closing them."""
    payload = raw.noise(SMALL)

    def leave(_: int) -> LedgerId:
        writer = bk.create_ledger()
        futures = [writer.append_async(payload) for _ in range(entries)]
        for future in futures:
            future.result()
        writer.abandon()
        return writer.ledger_id

    return ThreadRuntime().map(leave, list(range(count)), 16)


def bookie(lab: Lab) -> Iterator[Line]:
    """P7, in a cluster of its own: it loses a bookie in every round."""
    assert lab.spark is not None
    with lab.new_cluster("losing") as bk:
        yield _lost_bytes(lab, bk)
        with _BareShares(lab, bk, lab.sizes.lost_ledgers * 3 // 4) as bare:
            yield _lost_ledgers(lab, bk, bare)
    shutil.rmtree(lab.directory / "losing")


def _lost_bytes(lab: Lab, bk: sbk.BookKeeper) -> Line:
    """A plain copy goes before each contender. Where a machine gives memory back that is not used,
    and has to ask for it again, the first to write so much waits for that: seconds, seen as time
    of the kernel."""
    size = lab.sizes.lost_bytes
    table = raw.noise_table(size // 4)
    scratch = lab.scratch("raw-lost")

    def write() -> tuple[list[LedgerId], BookieId]:
        made = [_written(bk, table) for _ in range(4)]
        return made, _most_used(bk, made)

    made, victim = write()
    lost = []
    for number, path in enumerate(_files(bk, victim)):
        lost.append(scratch / f"file-{number}")
        shutil.copyfile(path, lost[-1])
    total = sum(path.stat().st_size for path in lost)
    for ledger_id in made:
        lab.forget(ledger_id, bk)

    def copied(*, verified: bool = False) -> float:
        return raw.copy_files(lost, scratch / "copies", verified=verified)

    def ours() -> float:
        made, victim = write()
        figure = sum(path.stat().st_size for path in _files(bk, victim))
        copied()
        seconds = _recover(bk, victim)
        for ledger_id in made:
            lab.forget(ledger_id, bk)
        return figure / seconds / MB

    def theirs(*, verified: bool) -> float:
        copied()
        return total / copied(verified=verified) / MB

    return Line(
        "P7",
        "re-replication of a lost bookie, as a Spark job",
        "MB/s",
        f"{total >> 20} MiB in {len(lost)} files",
        ours,
        [
            Against(
                "raw, verified as ours",
                lambda: theirs(verified=True),
                at_least(0.8),
            ),
            Against(RAW, lambda: theirs(verified=False)),
        ],
        rounds=lab.sizes.rounds,
    )


def _lost_ledgers(lab: Lab, bk: sbk.BookKeeper, bare: _BareShares) -> Line:
    count = lab.sizes.lost_ledgers
    payload = raw.noise(SMALL)
    aside = lab.scratch("lost")

    def write(_: int) -> LedgerId:
        with bk.create_ledger() as writer:
            for future in [writer.append_async(payload) for _ in range(ENTRIES)]:
                future.result()
        return writer.ledger_id

    def ours() -> float:
        made = ThreadRuntime().map(write, list(range(count)), 16)
        victim = _most_used(bk, made)
        hit = sum(victim in bk.ledger(i).fragments[0].ensemble for i in made)
        assert bk.cluster is not None
        # Its files go at the end, and so do those of the ledgers: see ``Lab.forget``.
        root = bk.cluster.root_of(victim)
        root.rename(Path(tempfile.mkdtemp(dir=aside)) / "bookie")
        root.mkdir()
        seconds = _recover(bk, victim)
        for ledger_id in made:
            bk.delete_ledger(ledger_id, even_if_alive=True)
        return hit / seconds

    return Line(
        "P7",
        "re-replication of small ledgers, as a Spark job",
        "per s",
        f"{count:,} ledgers of {ENTRIES} x {SMALL} B, some three quarters of them hit",
        ours,
        [
            Against(f"raw: the same, {WIDTH} at a time", bare.at_once),
            Against(f"raw: the same, {TOGETHER} together", bare.together),
            lab.against_peer(
                lambda: lab.peer().ask("bookie", count, ENTRIES, SMALL)["per_s"], at_least(1)
            ),
        ],
        rounds=lab.sizes.rounds,
    )


def _written(bk: sbk.BookKeeper, table: pa.Table) -> LedgerId:
    with bk.create_ledger(schema=table.schema) as writer:
        writer.append(table)
    return writer.ledger_id


def _most_used(bk: sbk.BookKeeper, ledger_ids: list[LedgerId]) -> BookieId:
    used = Counter(b for i in ledger_ids for b in bk.ledger(i).fragments[0].ensemble)
    return used.most_common(1)[0][0]


def _files(bk: sbk.BookKeeper, bookie_id: BookieId) -> list[Path]:
    assert bk.cluster is not None
    root = bk.cluster.root_of(bookie_id)
    return sorted(path for path in root.glob("ledgers/*/*/*") if path.is_file())


def _recover(bk: sbk.BookKeeper, victim: BookieId) -> float:
    """Seconds to recover a bookie that is destroyed first; it is there again afterwards."""
    assert bk.cluster is not None
    bk.cluster.stop_bookie(victim, destroy=True)
    started = time.perf_counter()
    with timed():
        report = bk.recover_bookie(victim)
    seconds = time.perf_counter() - started
    assert report.is_complete, report
    bk.cluster.start_bookie(victim)
    return seconds
