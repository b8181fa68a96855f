"""The demo's proof: the ledgers hold exactly the appended rows, on every replica.

Each question gets a sentence, for a person to judge, and a truth value. Every answer comes from a
new read of the bookies' files, never from a writer's memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark_bookkeeper.replication.runner import Progress, no_progress
from spark_bookkeeper.session import BookKeeper
from spark_bookkeeper.spark.job import collect


class Answer(NamedTuple):
    """One question of the proof, and its answer."""

    question: str
    holds: bool
    evidence: str


def acknowledged_rows(result: Mapping[str, Any]) -> Answer:
    """Check that the recovered ledger has every row that was acknowledged to its writer."""
    acknowledged, kept = result["acknowledged_rows"], result["rows_in_first"]
    return Answer(
        "every acknowledged row is in the ledger that was recovered",
        acknowledged <= kept,
        f"{acknowledged:,} rows acknowledged, {kept:,} in the ledger",
    )


def same_rows(bk: BookKeeper, ledger_ids: Sequence[int], source: pa.Table) -> Answer:
    """Compare the ledgers, one after the other, with the source: count, order, every value."""
    read = pa.concat_tables([bk.open_ledger(i).read_arrow() for i in ledger_ids])
    equal = read.num_rows == source.num_rows and read.cast(source.schema).equals(source)
    return Answer(
        "row for row, in order, every value compared in Arrow",
        equal,
        f"{read.num_rows:,} rows read, {source.num_rows:,} in the source"
        + ("" if equal else f"; they differ from row {_first_difference(read, source)} on"),
    )


def same_counts(bk: BookKeeper, ledger_ids: Sequence[int], source: pa.Table) -> Answer:
    """Compare Spark's number of rows of each carrier with the source's."""
    frames = [bk.open_ledger(ledger_id).read().select("carrier") for ledger_id in ledger_ids]
    together = frames[0]
    for frame in frames[1:]:
        together = together.unionAll(frame)
    counted = collect(together.groupBy("carrier").count(), "count per carrier")
    found = {row["carrier"]: row["count"] for row in counted}
    wanted = {
        entry["values"]: entry["counts"]
        for entry in pc.value_counts(source.column("carrier").combine_chunks()).to_pylist()
    }
    most = ", ".join(f"{name} {count:,}" for name, count in Counter(found).most_common(3))
    return Answer(
        "counts per carrier, by Spark", found == wanted, f"{len(found)} carriers: {most}, ..."
    )


def same_replicas(bk: BookKeeper, ledger_ids: Sequence[int]) -> Answer:
    """Check that every entry is on every bookie of its write set, with one digest."""
    entries = replicas = 0
    wrong: list[str] = []
    for ledger_id in ledger_ids:
        info = bk.ledger(ledger_id)
        digests: dict[int, list[str | None]] = {}
        for row in bk.diff_replicas_arrow(ledger_id).to_pylist():
            is_good = row["status"] == "verified"
            digests.setdefault(row["entry_id"], []).append(row["digest"] if is_good else None)
        for entry_id in range((info.last_entry_id or 0) + 1):
            found = digests.get(entry_id, [])
            if len(found) != info.write_quorum_size or len(set(found)) != 1 or None in found:
                wrong.append(f"ledger {ledger_id} entry {entry_id}")
        entries += len(digests)
        replicas += sum(map(len, digests.values()))
    return Answer(
        "replica for replica, every digest verified and compared",
        not wrong,
        f"{entries:,} entries on {replicas:,} replicas"
        + (f"; wrong: {', '.join(wrong[:5])}" if wrong else ""),
    )


def nothing_missing(
    bk: BookKeeper, ledger_ids: Sequence[int], progress: Progress = no_progress
) -> Answer:
    """Check all entries, as a Spark job, and expect every share to be healthy."""
    report = bk.check_ledgers(ledger_ids, percentage=100, progress=progress)
    counts = ", ".join(f"{count} {status}" for status, count in report.counts.items())
    return Answer(
        "check_ledgers(percentage=100), as a Spark job",
        report.is_complete and bool(report.rows),
        f"{counts} shares of fragments",
    )


def names_nobody_lost(bk: BookKeeper, ledger_ids: Sequence[int], lost: str) -> Answer:
    """Check that no ensemble names the lost bookie any more."""
    named = [
        f"ledger {ledger_id} fragment {fragment.first_entry_id}"
        for ledger_id in ledger_ids
        for fragment in bk.ledger(ledger_id).fragments
        if lost in fragment.ensemble
    ]
    return Answer(
        "no ensemble names the lost bookie",
        not named,
        ", ".join(named) or f"{lost} is named by none of the fragments",
    )


def _first_difference(read: pa.Table, source: pa.Table) -> int:
    low, high = 0, min(read.num_rows, source.num_rows)
    while low < high:  # find the longest equal prefix
        middle = (low + high + 1) // 2
        piece = read.slice(0, middle)
        if piece.cast(source.schema).equals(source.slice(0, middle)):
            low = middle
        else:
            high = middle - 1
    return low
