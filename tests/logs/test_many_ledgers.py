"""A log of many ledgers costs what is left of it, however much was truncated: as requests."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from spark_bookkeeper.client.ledger import custom_metadata
from spark_bookkeeper.logs import opening
from spark_bookkeeper.logs.log import Log
from spark_bookkeeper.logs.logs import create_log, open_log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.metadata import logs
from spark_bookkeeper.protocol.ids import NO_ENTRY, EntryId, LedgerId
from spark_bookkeeper.protocol.log import LogHead
from spark_bookkeeper.protocol.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.ground import Ground

USUAL = Quorum(3, 3, 2)
LEFT = 12


def with_ledgers(directory: Path, count: int) -> tuple[Ground, Log]:
    """A log of so many ledgers, closed and empty but the last two, of which all but some go."""
    ground = Ground(directory)
    context = ground.context
    log = create_log(context, "long", LogOptions(USUAL))
    ensemble = tuple(ground.bookie_ids[:3])
    for number in range(count - 1):
        ledger_id = context.store.generate_ledger_id()
        nonce = context.runtime.token()
        incarnations = dict.fromkeys(ensemble, "i")
        empty = LedgerMetadata(
            quorum=USUAL,
            state=LedgerState.CLOSED,
            fragments=(Fragment(EntryId(0), ensemble),),
            digest_type=DigestType.CRC32C,
            password=b"",
            last_entry_id=NO_ENTRY,
            length_bytes=0,
            ctime_ms=number,
            custom_metadata=custom_metadata(nonce, log.schema, None, 1, incarnations, None),
        )
        context.store.create_ledger(ledger_id, empty, is_generated=True)
        head = logs.read_log(context.store.registers, "long")
        opening.add_to_list(context, "long", head, ledger_id)
    with log.become_writer() as writer:
        for n in range(3):
            writer.append(b"%d" % n)
    log.truncate(log.ledgers()[-LEFT])
    assert len(log.ledgers()) == LEFT
    return ground, log


def costs(directory: Path, count: int) -> dict[str, Counter[str]]:
    """What is asked for when the log is opened, followed, read, truncated, and written again."""
    ground, _ = with_ledgers(directory, count)
    spent: dict[str, Counter[str]] = {}

    def told(name: str) -> None:
        spent[name] = ground.count()
        ground.forget()

    ground.forget()
    log = open_log(ground.client(), "long")
    told("open")
    assert [entry.payload for entry in islice(log.tail(), 3)] == [b"0", b"1", b"2"]
    told("follow")
    assert log.read_arrow().num_rows == 3
    told("read")
    assert len(log.truncate(log.ledgers()[5])) == 5
    told("truncate")
    assert log.truncate(LedgerId(0)) == []
    told("truncate nothing")
    log.become_writer().close()
    told("write")
    return spent


def test_what_was_truncated_costs_nothing_any_more(tmp_path: Path) -> None:
    few = costs(tmp_path / "few", LEFT)
    many = costs(tmp_path / "many", 200)

    assert many == few
    assert many["open"].total() == 1
    assert many["truncate"]["delete_ledger"] == 5


def test_nor_does_it_where_the_list_is_in_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal = LogHead.to_seal
    monkeypatch.setattr(LogHead, "to_seal", lambda head: seal(head, 25))

    few = costs(tmp_path / "few", 115)
    many = costs(tmp_path / "many", 315)

    assert many == few
    assert many["open"].total() == 1
    assert many["follow"]["read_register"] < 10
