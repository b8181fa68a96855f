"""P1, P3, P4 and P9: bulk appends, small appends, and how they grow. No Spark."""

from __future__ import annotations

import os
import statistics
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

from kazoo.client import KazooClient

import spark_bookkeeper as sbk
from spark_bookkeeper.bookie.schema import LedgerPaths
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from tests.benchmarks import raw
from tests.benchmarks.lab import Lab
from tests.benchmarks.measure import RAW, Against, Line, Skipped, at_least, at_most

MB = 1_000_000
SMALL = 1024
TINY = 100


def bulk(lab: Lab) -> Iterator[Line]:
    """P1."""
    size = lab.sizes.bulk_bytes
    table = raw.noise_table(size)
    data = raw.arrow_file(table)
    scratch = lab.scratch("raw-bulk")

    def ours() -> float:
        writer = lab.bk.create_ledger(schema=table.schema)
        started = time.perf_counter()
        writer.append(table)
        seconds = time.perf_counter() - started
        writer.close()
        lab.forget(writer.ledger_id)
        return size / seconds / MB

    def copies() -> float:
        return size / raw.write_copies(scratch, data) / MB

    def peer(total: int, entry: int, window: int) -> float:
        answer = lab.peer().ask("async", total, entry, window)
        lab.peer().ask("delete", int(answer["ledger"]))
        return answer["mb_per_s"]

    yield Line(
        "P1",
        "bulk append of Arrow data, 1 KB rows, 3/3/2, fsynced",
        "MB/s",
        f"{size >> 20} MiB; BookKeeper's 1 KB entries: {lab.sizes.small_bytes >> 20} MiB",
        ours,
        [
            Against(RAW, copies, at_least(0.85)),
            lab.against_peer(
                lambda: peer(size, 1 << 20, 64), at_least(1.3), name="BookKeeper, 1 MB entries"
            ),
            lab.against_peer(
                lambda: peer(lab.sizes.small_bytes, SMALL, 1000),
                at_least(10),
                name="BookKeeper, 1 KB entries",
            ),
        ],
        rounds=lab.sizes.rounds,
    )


def small(lab: Lab) -> Iterator[Line]:
    """P3."""
    count = lab.sizes.sync_appends
    payload = raw.noise(SMALL)
    scratch = lab.scratch("raw-small")

    def ours() -> float:
        with lab.bk.create_ledger() as writer:
            writer.append(payload)  # the channels start with it
            took = _appends(writer, payload, count)
        lab.bk.delete_ledger(
            writer.ledger_id, even_if_alive=True
        )  # its files stay, see ``Lab.forget``
        return statistics.median(took) * 1000

    yield Line(
        "P3",
        "one small append, synchronous, p50",
        "ms",
        f"{count} appends of {SMALL} B a round",
        ours,
        [
            Against(
                RAW,
                lambda: statistics.median(raw.append_and_wait(scratch, payload, count)) * 1000,
            ),
            Against(
                "raw: a new file for each",
                lambda: statistics.median(raw.put_and_wait(scratch, payload, count)) * 1000,
                at_most(1.25),
            ),
            lab.against_peer(
                lambda: lab.peer(flush=True).ask("sync", count, SMALL)["p50_ms"],
                at_most(1),
                name="BookKeeper, flushing when idle",
                flush=True,
            ),
            lab.against_peer(
                lambda: lab.peer().ask("sync", count, SMALL)["p50_ms"],
                at_most(0.4),
                name="BookKeeper, as it is installed",
            ),
        ],
        rounds=lab.sizes.rounds,
    )
    lab.close_peers()


def windowed(lab: Lab) -> Iterator[Line]:
    """P4."""
    window, count = 1000, lab.sizes.window_appends
    scratch = lab.scratch("raw-window")
    for size in (TINY, SMALL):
        payload = raw.noise(size)
        total = count if size == TINY else count // 4

        def ours(payload: bytes = payload, total: int = total) -> float:
            with lab.bk.create_ledger() as writer:
                writer.append(payload)
                seconds = _in_window(writer, payload, total, window)
            lab.forget(writer.ledger_id)
            return total / seconds

        def plain(payload: bytes = payload, total: int = total) -> float:
            took = raw.append_and_wait(scratch, payload * window, total // window)
            return total / sum(took)

        peer_total = max(window, total // 4) * size

        def peer(size: int = size, peer_total: int = peer_total) -> float:
            answer = lab.peer().ask("async", peer_total, size, window)
            lab.peer().ask("delete", int(answer["ledger"]))
            return answer["per_s"]

        yield Line(
            "P4",
            f"appends of {size} B, window of {window:,}",
            "per s",
            f"{total:,} a round, BookKeeper {peer_total // size:,}; raw: {window:,} in one write",
            ours,
            [Against(RAW, plain), lab.against_peer(peer, at_least(5))],
            own_target=at_least(200_000) if size == TINY else None,
            rounds=lab.sizes.rounds,
        )


def growth(lab: Lab) -> Iterator[Line | Skipped]:
    """P9."""
    yield from _slots(lab)
    yield from _create_and_close(lab)


def _slots(lab: Lab) -> Iterator[Line]:
    # Without an explicit LAC: a pausing writer would put one into a slot that was just linked.
    with sbk.connect(lab.bk.metadata_uri, config=ClientConfig(explicit_lac_ms=0)) as bk:
        yield from _slots_of(lab, bk)


def _slots_of(lab: Lab, bk: sbk.BookKeeper) -> Iterator[Line]:
    count = lab.sizes.sync_appends
    payload = raw.noise(SMALL)
    young, old = bk.create_ledger(), bk.create_ledger()
    for writer in (young, old):
        for _ in range(10):
            writer.append(payload)
        writer.flush()
        _settle(writer)
    _fill(lab, old, lab.sizes.slots)

    def p50(writer: LedgerWriter) -> float:
        return statistics.median(_appends(writer, payload, count)) * 1000

    yield Line(
        "P9",
        f"append at slot {lab.sizes.slots:,} against slot 10, p50",
        "ms",
        f"{count} appends of {SMALL} B a round; the slots before are links to valid records",
        lambda: p50(old),
        [Against("slot 10", lambda: p50(young), at_most(1.1))],
        rounds=lab.sizes.rounds,
    )
    for writer in (young, old):
        writer.abandon()
        lab.forget(writer.ledger_id)


def _settle(writer: LedgerWriter) -> None:
    """Wait until the third bookie has answered as well."""
    channels = writer._pipeline._channels.by_position.values()
    while any(channel.next_entry <= writer.last_add_pushed for channel in channels):
        time.sleep(0.001)


def _fill(lab: Lab, writer: LedgerWriter, slots: int) -> None:
    """Let a writer go on at a high slot: the ones before are there, by name and in size."""
    assert lab.bk.cluster is not None
    for channel in writer._pipeline._channels.by_position.values():
        root = (
            lab.bk.cluster.root_of(channel.bookie) / LedgerPaths(writer._pipeline.ledger.key).slots
        )
        _link(root, channel._slot, slots)
        channel._slot = slots
    os.sync()


def _link(directory: Path, first: int, end: int) -> None:
    """Files for these slots, as hard links (a file has at most 65,000 of them on ext4)."""
    content = (directory / f"{0:020d}.arrow").read_bytes()
    source = directory
    for number in range(first, end):
        path = directory / f"{number:020d}.arrow"
        if (number - first) % 50_000 == 0:
            path.write_bytes(content)
            source = path
        else:
            os.link(source, path)


def _create_and_close(lab: Lab) -> Iterator[Line]:
    runtime = ThreadRuntime()
    width = 32

    def create(_: int = 0) -> None:
        lab.bk.create_ledger().close()

    def one_by_one() -> float:
        started = time.perf_counter()
        for _ in range(lab.sizes.creates):
            create()
        return lab.sizes.creates / (time.perf_counter() - started)

    def many() -> float:
        started = time.perf_counter()
        runtime.map(create, list(range(lab.sizes.creates_wide)), width)
        return lab.sizes.creates_wide / (time.perf_counter() - started)

    client = KazooClient(lab.bk.metadata_uri.split("://")[1].split("/")[0])
    client.start()
    client.ensure_path("/raw")
    value = raw.noise(900)  # about what a ledger's metadata have

    def plain(_: int = 0) -> None:
        """The same requests by plain kazoo: an id, a create and a set."""
        made = client.create("/raw/id-", ephemeral=True, sequence=True)
        client.delete_async(made)
        path = f"/raw/ledger-{made[-10:]}"
        client.create(path, value)
        client.set(path, value, version=0)

    def plain_one_by_one() -> float:
        started = time.perf_counter()
        for _ in range(lab.sizes.creates):
            plain()
        return lab.sizes.creates / (time.perf_counter() - started)

    def plain_many() -> float:
        started = time.perf_counter()
        runtime.map(plain, list(range(lab.sizes.creates_wide)), width)
        return lab.sizes.creates_wide / (time.perf_counter() - started)

    yield Line(
        "P9",
        "create + close, one after the other",
        "per s",
        f"{lab.sizes.creates} a round",
        one_by_one,
        [
            Against("raw: 3 writes to ZooKeeper", plain_one_by_one, at_least(1)),
            lab.against_peer(lambda: lab.peer().ask("create", lab.sizes.creates, 1)["per_s"], None),
        ],
        rounds=lab.sizes.rounds,
    )
    yield Line(
        "P9",
        f"create + close, {width} at a time",
        "per s",
        f"{lab.sizes.creates_wide} a round",
        many,
        [
            Against("raw: 3 writes to ZooKeeper", plain_many, at_least(1.5)),
            lab.against_peer(
                lambda: lab.peer().ask("create", lab.sizes.creates_wide, width)["per_s"],
                None,
            ),
        ],
        rounds=lab.sizes.rounds,
    )
    client.stop()
    client.close()


def _appends(writer: LedgerWriter, payload: bytes, count: int) -> list[float]:
    took = []
    for _ in range(count):
        started = time.perf_counter()
        writer.append(payload)
        took.append(time.perf_counter() - started)
    return took


def _in_window(writer: LedgerWriter, payload: bytes, count: int, window: int) -> float:
    """Seconds for so many appends, never more than ``window`` of them unanswered."""
    unanswered: deque[Future[int]] = deque()
    started = time.perf_counter()
    for _ in range(count):
        if len(unanswered) >= window:
            unanswered.popleft().result()
        unanswered.append(writer.append_async(payload))
    for future in unanswered:
        future.result()
    return time.perf_counter() - started
