"""Whether ledgers are whole again, whatever was done to their bookies."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from spark_bookkeeper.autorecovery.notes import Notes
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.replication.check_ledgers import check_ledgers
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import Ground


def assert_whole(ground: Ground, *writers: LedgerWriter, without: Collection[str] = ()) -> None:
    """Every replica of every entry is there and verifies, as another client sees it.

    Args:
        without: bookies that no ensemble names any more.
    """
    client = ground.client()
    ids = [writer.ledger_id for writer in writers]
    for ledger_id in ids:
        assert not client.store.read_ledger(ledger_id).value.bookies() & set(without)
    report = check_ledgers(client, LocalRunner(client), ids, 100)
    assert report.is_complete, report.unfinished


def is_whole(
    ground: Ground, writers: Iterable[LedgerWriter] | None = None, *, of: str | None = None
) -> bool:
    """Whether bookies, or this one, have all that they should have of these ledgers, or of all."""
    client = ground.client()
    ids = None if writers is None else [writer.ledger_id for writer in writers]
    report = check_ledgers(client, LocalRunner(client), ids, 100)
    return all(row.status.is_done for row in report.rows if of in (None, row.source))


def assert_replicated(ground: Ground, *writers: LedgerWriter) -> None:
    """Whole, and no task, lock or note of replication workers is left."""
    assert_whole(ground, *writers)
    store = ground.context.store
    assert list(store.underreplication.ledger_ids()) == []
    assert store.underreplication.locks() == {}
    assert list(Notes(store.registers).ledger_ids()) == []
