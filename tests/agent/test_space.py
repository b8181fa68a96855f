"""What takes the space, who owns a ledger, and what happened to it: asked, and nothing changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_bookkeeper.agent.compaction_job import compact_ledgers
from spark_bookkeeper.agent.orphans import ORPHANS, orphans_table
from spark_bookkeeper.agent.space import DELETED, NOT_NAMED, SPACE, space_table
from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.deletion import delete_ledger
from spark_bookkeeper.client.history import HISTORY, history_table
from spark_bookkeeper.client.ledger import LOG
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import NoSuchLedgerError
from spark_bookkeeper.logs import truncation
from spark_bookkeeper.logs.logs import create_log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.metadata import ARCHIVE
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.recover_bookie import BookieRecovery, recover_bookie
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import Ground
from tests.agent.test_orphan_deletion import numbered_payloads
from tests.support.rows import wait_for_every_copy
from tests.worlds import USUAL


def made(ground: Ground, made_for: str | None = None, **labels: bytes) -> LedgerWriter:
    """A ledger with one entry; its writer has a session of its own, and lives."""
    writer = lifecycle.create_ledger(ground.client(), USUAL, labels=labels, log=made_for)
    writer.append(b"0")
    wait_for_every_copy(writer)
    return writer


def orphans(ground: Ground) -> dict[int, str]:
    table = orphans_table(ground.context)
    assert table.schema == ORPHANS
    return {row["ledger_id"]: row["reason"] for row in table.to_pylist()}


def space(ground: Ground, ledger_id: int) -> list[dict[str, Any]]:
    table = space_table(ground.context)
    assert table.schema == SPACE
    return [row for row in table.to_pylist() if row["ledger_id"] == ledger_id]


def test_a_ledger_is_nobodys_when_it_has_no_label_and_nobody_writes_it(ground: Ground) -> None:
    writer, named, owned = made(ground), made(ground, name=b"a"), made(ground, owner=b"me")
    assert orphans(ground) == {}

    for each in (writer, named, owned):
        each.close()

    assert set(orphans(ground)) == {writer.ledger_id}


def test_a_ledger_whose_writer_is_gone_is_nobodys_as_well(ground: Ground) -> None:
    writer = made(ground)
    writer._context.store.close()

    assert set(orphans(ground)) == {writer.ledger_id}


def test_the_ledgers_of_a_log_are_the_logs(ground: Ground) -> None:
    log = create_log(ground.context, "orders", LogOptions(USUAL))
    with log.become_writer() as writer:
        writer.append(b"1")
    stray = made(ground, made_for="orders")
    stray.close()
    assert orphans(ground) == {}, "it may be entered yet, by a writer that was frozen"

    with log.become_writer() as writer:
        writer.append(b"2")
    late = made(ground, made_for="orders")
    late.close()

    assert list(orphans(ground)) == [stray.ledger_id]
    assert "log 'orders', which has gone past it" in orphans(ground)[stray.ledger_id]
    truncation.delete(ground.context, "orders")
    assert list(orphans(ground)) == [stray.ledger_id, late.ledger_id]
    assert "log 'orders', which was deleted" in orphans(ground)[late.ledger_id]


def test_what_another_client_made_or_a_table_stands_for_is_nobodys_business(ground: Ground) -> None:
    """What their labels mean is not known, or they are what is left to read from the table."""
    ours, released = made(ground), made(ground)
    for writer in (ours, released):
        writer.close()
    store = ground.context.store
    found = store.read_ledger(released.ledger_id)
    custom = {**found.value.custom_metadata, ARCHIVE: b"a table"}
    store.write_ledger(released.ledger_id, replace(found.value, custom_metadata=custom), found)
    foreign = replace(store.read_ledger(ours.ledger_id).value, custom_metadata={})
    store.create_ledger(LedgerId(1000), foreign)

    assert list(orphans(ground)) == [ours.ledger_id]


def test_the_ledgers_of_a_log_that_is_not_there_yet_may_be_restored(ground: Ground) -> None:
    restored = made(ground, made_for="orders")
    restored.close()

    assert orphans(ground) == {}


def test_bytes_are_live_then_orphan_then_garbage(ground: Ground) -> None:
    writer = made(ground)
    rows = space(ground, writer.ledger_id)
    sizes = {row["live_bytes"] for row in rows}

    assert len(rows) == 3
    assert all(size > 0 for size in sizes)
    assert {(r["garbage_bytes"], r["orphan_bytes"], r["reason"]) for r in rows} == {(0, 0, None)}
    writer.close()
    rows = space(ground, writer.ledger_id)
    assert {row["orphan_bytes"] for row in rows} == sizes
    assert {row["files"] for row in rows} == {1}
    assert space_table(ground.context, garbage_most=1).num_rows == 0
    delete_ledger(ground.context, writer.ledger_id)
    rows = space(ground, writer.ledger_id)
    assert {row["garbage_bytes"] for row in rows} == sizes
    assert {row["reason"] for row in rows} == {DELETED}
    assert space_table(ground.context, garbage_most=1).to_pylist() == rows
    unknown = {"garbage_bytes": None, "live_bytes": None, "orphan_bytes": None, "files": None}
    assert space_table(ground.context, garbage_most=0).to_pylist() == [r | unknown for r in rows]
    for another in [made(ground) for _ in range(4)]:
        another.close()
        delete_ledger(ground.context, another.ledger_id)
    for bookie in ground.bookie_ids:
        files = space_table(ground.context, [bookie], garbage_most=2).column("files").to_pylist()
        assert files == [1, None, None, None, None][: len(files)], "further ones are not looked at"


def test_copies_that_no_fragment_names_are_no_live_bytes(ground: Ground) -> None:
    writer = made(ground, name=b"a")
    writer.close()
    left = writer.metadata.last_fragment.ensemble[0]
    wish = BookieRecovery(bookies=(left,), even_if_alive=True)
    recover_bookie(ground.context, LocalRunner(ground.context), wish)

    here = {row["bookie_id"]: row for row in space(ground, writer.ledger_id)}

    assert set(here) == set(ground.bookie_ids)
    assert [b for b, row in here.items() if row["reason"] == NOT_NAMED] == [left]
    assert [b for b, row in here.items() if row["garbage_bytes"]] == [left]


def test_a_bookie_that_is_lost_is_told_with_the_reason(ground: Ground) -> None:
    lost = ground.bookie_ids[0]
    ground.stop(lost)

    rows = [r for r in space_table(ground.context).to_pylist() if r["bookie_id"] == lost]

    assert len(rows) == 1
    assert "not registered" in rows[0]["reason"]
    assert rows[0]["live_bytes"] is None


def test_looking_changes_nothing(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.client(), Quorum(3, 3, 3))
    writer.append(b"0")  # on all three when it returns, so that no put comes later
    ground.forget()

    space_table(ground.context)
    orphans_table(ground.context)
    history_table(ground.context, LedgerId(writer.ledger_id))

    assert not {"put_if_absent", "create", "delete", "delete_directory"} & ground.count().keys()
    assert writer.append(b"1") == 1


def test_a_history_has_creation_changes_fences_and_the_end(ground: Ground) -> None:
    writer = made(ground)
    ensemble = writer.metadata.last_fragment.ensemble
    table = history_table(ground.context, LedgerId(writer.ledger_id))
    assert table.schema == HISTORY
    assert table["event"].to_pylist() == ["created"]
    ground.stop(ensemble[0])
    ground.until(lambda: writer.append(b"1") > 0 and len(writer.metadata.fragments) == 2)
    lifecycle.open_ledger(ground.context, writer.ledger_id)

    rows = history_table(ground.context, LedgerId(writer.ledger_id)).to_pylist()

    assert [row["event"] for row in rows] == ["created", "ensemble changed", "fenced", "closed"]
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert "tester@ground" in rows[0]["by"]
    assert rows[0]["at"] is not None
    assert f"in place of {ensemble[0]}" in rows[1]["detail"]
    assert set(rows[2]["bookies"]) <= set(rows[1]["bookies"])
    assert rows[3]["entry_id"] == writer.last_add_confirmed


def test_a_history_takes_no_compaction_for_a_recovery(ground: Ground) -> None:
    def fenced(writer: LedgerWriter) -> list[str]:
        rows = history_table(ground.context, LedgerId(writer.ledger_id)).to_pylist()
        return [row["detail"] for row in rows if row["event"] == "fenced"]

    closed, recovered = made(ground), made(ground)
    for writer in (closed, recovered):
        for number in range(20):
            writer.append(b"%d" % number)
        wait_for_every_copy(writer)
    closed.close()
    lifecycle.open_ledger(ground.context, recovered.ledger_id)
    assert fenced(closed) == []
    by = "by a recovery, a deletion or a person; from then on its writer could add nothing"
    assert fenced(recovered) == [by]

    compact_ledgers(ground.context)

    assert fenced(closed) == ["by compaction, after its writer had closed it"]
    by = "before its end, or by compaction after it: nobody keeps which"
    assert fenced(recovered) == [by]


def test_there_is_no_history_of_what_is_not_there(ground: Ground) -> None:
    with pytest.raises(NoSuchLedgerError):
        history_table(ground.context, LedgerId(7))


def test_the_log_of_a_ledger_is_the_one_that_names_it(ground: Ground) -> None:
    """Also of a ledger that was made before logs left a note of theirs on ledgers."""
    log = create_log(ground.context, "orders", LogOptions(USUAL))
    log.write(numbered_payloads(2))
    store = ground.context.store
    for ledger_id in list(store.ledger_ids()):
        found = store.read_ledger(ledger_id)
        custom = {k: v for k, v in found.value.custom_metadata.items() if k != LOG}
        store.write_ledger(ledger_id, replace(found.value, custom_metadata=custom), found)

    assert {row["log"] for row in space_table(ground.context).to_pylist()} == {"orders"}
