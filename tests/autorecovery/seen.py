"""Tasks: one that is published, which there are, and what the table says of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spark_bookkeeper.autorecovery.table import underreplicated_table
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.protocol.task_notes import Marked, TaskNote
from spark_bookkeeper.testing.ground import Ground
from tests.support.autorecovery import USUAL, Process, written


def task_ids(ground: Ground) -> list[int]:
    return list(ground.context.store.underreplication.ledger_ids())


def victim_of(writer: LedgerWriter) -> BookieId:
    return writer.metadata.last_fragment.ensemble[0]


def row_of(ground: Ground, ledger_id: int) -> dict[str, object]:
    rows = underreplicated_table(ground.context).to_pylist()
    (row,) = [row for row in rows if row["ledger_id"] == ledger_id]
    return dict(row)


def damage(ground: Ground, bookie: str) -> None:
    for path in ground.files(bookie, "slots"):
        damage_file(path)


def damage_file(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.chmod(0o644)
    path.write_bytes(data)


def failed(
    note: TaskNote, error: str, at_ms: int, marked: Marked | None = None, wait_ms: int = 10_000
) -> TaskNote:
    """What is noted when an attempt failed; the next one is so much later, whatever happens."""
    waits: Any = {"waits_for": (), "writable": 9, "first_ms": wait_ms, "most_ms": wait_ms}
    return note.failed(error, None, at_ms, marked, **waits)


def audited(ground: Ground, *args: Any, **options: Any) -> Process:
    """A process that has looked once for whoever is missing."""
    process = Process(ground, *args, **options)
    process.audit()
    return process


def published(
    ground: Ground,
    quorum: Quorum = USUAL,
    count: int = 4,
    *,
    close: bool = True,
    destroy: bool = False,
) -> tuple[LedgerWriter, BookieId, Process]:
    """A ledger, the first of its bookies, which is lost, and the process that published that."""
    writer = written(ground, quorum, count, close=close)
    lost, process = victim_of(writer), Process(ground)
    ground.stop(lost, destroy=destroy)
    process.audit()
    return writer, lost, process
