"""Checking names what is missing, damaged or unavailable, bookie by bookie."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from spark_bookkeeper.bookie.schema import MARKER_PATH
from spark_bookkeeper.client import ledgers
from spark_bookkeeper.client.writer import LedgerWriter
from spark_bookkeeper.errors import BookieUnavailableError
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.check_ledgers import check_ledgers
from spark_bookkeeper.replication.report import CheckReport
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import Ground
from spark_bookkeeper.testing.rows import wait_for_every_copy

USUAL = Quorum(3, 3, 2)


def written(ground: Ground, quorum: Quorum = USUAL) -> LedgerWriter:
    with ledgers.create_ledger(ground.context, quorum) as writer:
        for i in range(10):
            writer.append(b"%d" % i * 50)
    return writer


def checked(ground: Ground, percentage: int = 100) -> CheckReport:
    client = ground.client()
    return check_ledgers(client, LocalRunner(client), None, percentage)


def statuses(report: CheckReport) -> dict[str, str]:
    return {str(row.source): row.status for row in report.rows}


@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 3, 2), (3, 2, 1)])
def test_a_whole_ledger_is_healthy(ground: Ground, sizes: tuple[int, int, int]) -> None:
    quorum = Quorum(*sizes)
    written(ground, quorum)

    report = checked(ground)

    assert report.is_complete
    assert report.counts == {"healthy": quorum.ensemble_size}
    assert sum(row.entries for row in report.rows) == 10 * quorum.write_quorum_size


def test_a_bookie_that_goes_while_it_is_read_is_unavailable_and_not_damaged(
    ground: Ground,
) -> None:
    writer = written(ground)
    going = writer.metadata.last_fragment.ensemble[0]
    seen: list[str] = []

    def strike(place: str, operation: str, path: str) -> None:
        if place == going and seen:
            raise BookieUnavailableError("it does not answer", bookie_id=going)
        if place == going and path == MARKER_PATH:
            seen.append(path)

    ground.before.append(strike)
    assert statuses(checked(ground))[going] == "unavailable"


def test_missing_damaged_and_unavailable_are_told_apart(ground: Ground) -> None:
    writer = written(ground)
    down, wiped, damaged = writer.metadata.last_fragment.ensemble
    ground.stop(down)
    ground.format(wiped)
    path = ground.files(damaged, "slots")[3]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))

    report = checked(ground)

    assert statuses(report) == {down: "unavailable", wiped: "unavailable", damaged: "damaged"}
    (row,) = [r for r in report.rows if r.source == damaged]
    assert "1 of 10 entries are damaged: entry 3" in str(row.reason)
    assert not report.is_complete


def test_entries_that_a_bookie_never_got_are_missing(ground: Ground) -> None:
    writer = written(ground)
    short = writer.metadata.last_fragment.ensemble[1]
    for path in ground.files(short, "slots")[-2:]:
        path.unlink()

    report = checked(ground)

    assert statuses(report)[short] == "missing"
    (row,) = report.unfinished
    assert "lacks 2 of 10 entries, the first is 8" in str(row.reason)


@pytest.mark.parametrize("seed", range(5))
def test_random_damage_anywhere_is_named(ground: Ground, seed: int) -> None:
    dice = random.Random(seed)
    table = pa.table({"n": range(4000), "s": [f"row {i}" * 9 for i in range(4000)]})
    with ledgers.create_ledger(
        ground.context, Quorum(4, 3, 2), schema=table.schema, entry_target_bytes=20_000
    ) as writer:
        writer.append(table)
    victim = dice.choice(writer.metadata.last_fragment.ensemble)
    path = dice.choice(ground.files(victim, "parts"))
    data = bytearray(path.read_bytes())
    begin, end = len(data) // 4, len(data) * 3 // 4
    data[dice.randrange(begin, end)] ^= 1 << dice.randrange(8)
    path.write_bytes(bytes(data))

    report = checked(ground)

    assert [row.source for row in report.unfinished] == [victim]
    assert report.unfinished[0].status == "damaged"


def test_a_quick_check_still_looks_at_the_ends_of_every_share(ground: Ground) -> None:
    writer = written(ground)
    report = checked(ground, percentage=0)
    assert [row.entries for row in report.rows] == [2, 2, 2]
    short = writer.metadata.last_fragment.ensemble[1]
    ground.files(short, "slots")[-1].unlink()

    assert statuses(checked(ground, percentage=0))[short] == "missing"
    assert sum(row.entries for row in checked(ground, percentage=50).rows) == 15


def test_an_open_ledger_is_checked_to_its_lac_and_not_disturbed(ground: Ground) -> None:
    writer = ledgers.create_ledger(ground.context, USUAL)
    for _ in range(5):
        writer.append(b"x")
    wait_for_every_copy(writer)

    assert checked(ground).is_complete
    assert writer.append(b"y") == 5


def test_a_ledger_that_does_not_exist_is_gone(ground: Ground) -> None:
    report = check_ledgers(ground.context, LocalRunner(ground.context), [LedgerId(9)], 100)

    assert [row.status for row in report.rows] == ["gone"]
