"""Numbered rows, and what must hold of a closed ledger that they were appended to.

Every row says which one it is, so a ledger that was read shows by itself whether a row is
lost, repeated or out of order, whoever wrote it and however its writer ended.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import pyarrow as pa

from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.session import BookKeeper


def numbered(number: int, size_bytes: int = 24) -> bytes:
    """The payload of one row."""
    return f"{number:010d}".encode().ljust(size_bytes, b".")


def numbered_table(first: int, count: int, size_bytes: int = 24) -> pa.Table:
    """Rows as a table of the default schema."""
    payloads = [numbered(number, size_bytes) for number in range(first, first + count)]
    return pa.table({"payload": pa.array(payloads, pa.binary())})


def wait_for_every_copy(writer: LedgerWriter, seconds: float = 60.0) -> None:
    """Return when the bookies have all that was appended: an acknowledgement does not wait for
    the slowest of a write set. A bookie that was replaced is sent nothing more: what it lacks of
    acknowledged entries is not waited for.
    """

    def is_on_its_way(row: dict[str, Any]) -> bool:
        now = writer.metadata.last_fragment.ensemble[row["position"]]
        is_sent = not row["acknowledged"] or row["bookie_id"] == now
        return row["status"] == "pending" and is_sent

    deadline = time.monotonic() + seconds
    while any(map(is_on_its_way, writer.acks_arrow().to_pylist())):
        assert time.monotonic() < deadline, f"after {seconds} s copies are still on their way"
        time.sleep(0.005)


def check_numbered_ledger(
    bk: BookKeeper,
    ledger_id: int,
    acknowledged_entry: int,
    acknowledged_rows: int,
    *,
    copies: int | None = None,
) -> int:
    """Check a closed ledger of numbered rows; returns how many it holds.

    Args:
        bk: a connection to its cluster.
        ledger_id: the ledger.
        acknowledged_entry: the last entry that its writer was told is written; -1 for none.
        acknowledged_rows: the rows up to and including that entry.
        copies: how many replicas each entry has at the least; ``None`` is its ack quorum, which
            holds as long as no bookie loses what it acknowledged.
    """
    info = bk.ledger(ledger_id)
    assert info.state == "CLOSED"
    assert info.last_entry_id is not None
    assert acknowledged_entry <= info.last_entry_id, "confirmed-never-exceeds-last-entry"
    payloads: list[bytes] = []
    if info.last_entry_id >= 0:
        payloads = bk.open_ledger(ledger_id).read_arrow().column("payload").to_pylist()
    assert len(payloads) >= acknowledged_rows, "acked-entries-are-readable"
    numbers = [int(payload[:10]) for payload in payloads]
    assert numbers == list(range(len(numbers))), "entries-in-write-order"
    check_replicas(bk, ledger_id, copies)
    return len(numbers)


def check_replicas(bk: BookKeeper, ledger_id: int, copies: int | None = None) -> None:
    """Every entry of a closed ledger is on an ack quorum, and the same wherever it is."""
    needed = bk.ledger(ledger_id).ack_quorum_size if copies is None else copies
    digests: dict[int, list[str]] = defaultdict(list)
    replicas = bk.diff_replicas_arrow(ledger_id).to_pylist()
    for replica in replicas:
        if replica["status"] == "verified":
            digests[replica["entry_id"]].append(replica["digest"])
    for entry_id in sorted({replica["entry_id"] for replica in replicas}):
        assert len(digests[entry_id]) >= needed, "closed-entries-reach-ack-quorum"
        assert len(set(digests[entry_id])) == 1, "replicas-are-identical"
