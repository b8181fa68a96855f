"""Checking names what is missing, damaged or unavailable, bookie by bookie."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from spark_bookkeeper.agent.compaction_job import CompactionRequest, compact_ledgers
from spark_bookkeeper.bookie.holdings import Holdings
from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.bookie.schema import MARKER_PATH, slot_number
from spark_bookkeeper.bookie.verdict import Verdict
from spark_bookkeeper.bookie.verdict import Verified as Entry
from spark_bookkeeper.client import lifecycle, views
from spark_bookkeeper.client.read import splits
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import BookieUnavailableError, RecoveryUndecidedError
from spark_bookkeeper.metadata.update import update_ledger
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication import check_ledgers as checking
from spark_bookkeeper.replication import share_check
from spark_bookkeeper.replication.check_ledgers import CheckWork, check_ledgers, check_one
from spark_bookkeeper.replication.repair_ledgers import repair_ledgers
from spark_bookkeeper.replication.report import CheckReport
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import Ground, InlineRuntime
from tests import worlds
from tests.spoiling import spoil
from tests.support.rows import wait_for_every_copy
from tests.worlds import USUAL, bulk_written, rows_writer


def written(ground: Ground, quorum: Quorum = USUAL) -> LedgerWriter:
    return worlds.written(ground, 10, quorum, payload=lambda number: b"%d" % number * 50)


def checked(ground: Ground, percentage: int = 100) -> CheckReport:
    client = ground.client()
    return check_ledgers(client, LocalRunner(client), None, percentage)


def test_a_ledger_with_much_to_read_is_checked_share_by_share_and_reported_the_same(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(ground)
    short = written(ground, Quorum(4, 3, 2)).metadata.last_fragment.ensemble[1]
    ground.files(short, "slots")[-1].unlink()
    with_open = lifecycle.create_ledger(ground.context, USUAL)
    with_open.append(b"a")
    wait_for_every_copy(with_open)
    as_one = checked(ground)
    monkeypatch.setattr(checking, "LARGE_BYTES", 1)
    client = ground.client()
    seen: list[int] = []

    report = check_ledgers(
        client, LocalRunner(client), None, 100, progress=lambda *told: seen.append(told[2])
    )

    assert report.rows == as_one.rows
    assert set(seen) == {3 + 4 + 1}, "the shares of those whose size is known"
    assert not as_one.is_complete
    with_open.abandon()


class Verified:
    """How many entries bookies were asked to verify, in which order and with which pauses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, runtime: InlineRuntime) -> None:
        self.asked: list[int] = []
        self.slept_before: list[float] = []
        real = Replica.verify

        def verify(
            replica: Replica, entries: Sequence[int], *known: Holdings, with_files: bool = False
        ) -> Verdict:
            self.asked.append(len(entries))
            self.slept_before.append(runtime.slept)
            return real(replica, entries, *known, with_files=with_files)

        monkeypatch.setattr(Replica, "verify", verify)


@pytest.mark.parametrize("kind", ["slots", "parts", "whole", "gone"])
@pytest.mark.parametrize("percentage", [50, 100])
def test_a_large_share_is_verified_in_pieces_and_reported_the_same(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, kind: str, percentage: int
) -> None:
    writer = bulk(ground) if kind == "parts" else written(ground)
    bookie = writer.metadata.last_fragment.ensemble[1]
    if kind in ("slots", "parts"):
        spoil(ground.files(bookie, kind)[0])
    if kind in ("slots", "gone"):
        ground.files(bookie, "slots")[-1].unlink()
    as_one = checked(ground, percentage)
    entries = as_one.rows[0].entries
    verified = Verified(monkeypatch, InlineRuntime())
    monkeypatch.setattr(share_check, "PIECE_BYTES", 1)

    report = checked(ground, percentage)

    assert report.rows == as_one.rows
    assert entries > 3
    assert set(verified.asked) == {1}
    assert len(verified.asked) >= 3 * entries


def test_who_is_to_stop_is_heard_in_the_middle_of_a_large_share(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is said of a share of which not all was looked at."""
    writer = written(ground)
    monkeypatch.setattr(share_check, "PIECE_BYTES", 150)
    runtime = InlineRuntime()
    verified = Verified(monkeypatch, runtime)

    findings = check_one(
        ground.client(runtime),
        CheckWork(writer.ledger_id, 100),
        lambda: sum(verified.asked) >= 14,
    )

    assert [finding.status for finding in findings] == ["healthy", "left"]
    assert 14 <= sum(verified.asked) <= 16, "of the 30 that all shares have"


def test_a_whole_check_keeps_to_its_limit(ground: Ground) -> None:
    for _ in range(3):
        written(ground)

    def slept(limit: int | None) -> float:
        runtime = InlineRuntime()
        context = ground.client(runtime)
        report = check_ledgers(context, LocalRunner(context), None, 100, bytes_per_second=limit)
        assert report.is_complete
        return runtime.slept

    assert slept(None) == 0
    assert slept(10) > 5


def test_the_limit_is_kept_within_a_large_share(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = written(ground)
    bookie = writer.metadata.last_fragment.ensemble[0]
    share = EntryId(0), bookie
    monkeypatch.setattr(share_check, "PIECE_BYTES", 150)
    runtime = InlineRuntime()
    verified = Verified(monkeypatch, runtime)

    (finding,) = check_one(
        ground.client(runtime), CheckWork(writer.ledger_id, 100, share, bytes_per_second=10)
    )

    pauses = [after - before for before, after in pairwise(verified.slept_before)]
    assert finding.bytes == 500
    assert len(pauses) >= 3
    assert min(pauses) > 5, "of 150 bytes at 10 a second"


def test_a_comparison_keeps_to_its_limit(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, runtime = written(ground), InlineRuntime()
    monkeypatch.setattr(splits, "SMALL_PIECE_BYTES", 150)
    monkeypatch.setattr(splits, "PIECE_BYTES", 150)
    whole = views.replicas_table(ground.client(runtime), writer.ledger_id)
    assert runtime.slept == 0
    verified = Verified(monkeypatch, runtime)

    assert views.replicas_table(ground.client(runtime), writer.ledger_id, 10).equals(whole)

    pauses = [after - before for before, after in pairwise(verified.slept_before)]
    assert len(pauses) > 8
    assert min(pauses) > 4, "of at least 50 bytes at 10 a second"


@pytest.mark.parametrize("manner", ["flipped", "cut"])
@pytest.mark.parametrize("kind", ["slots", "parts", "copies"])
def test_a_file_that_is_spoilt_only_around_its_entries_is_named_and_made_again(
    ground: Ground, kind: str, manner: str
) -> None:
    """Every entry in it can be read; but Arrow cannot open it, and it says so before more goes."""
    rows = pa.table({"n": pa.array(range(4_000), pa.int64())})
    with rows_writer(ground, rows, target=4_096) as writer:
        writer.append(rows.slice(0, 50))
        writer.append(rows.slice(50))
    bookie = writer.metadata.last_fragment.ensemble[1]
    client = ground.client()
    if kind == "copies":
        ground.files(bookie, "slots")[0].unlink()
        assert repair_ledgers(client, LocalRunner(client), None).is_complete
    path = ground.files(bookie, kind)[0]
    data = path.read_bytes()
    spoilt = data[:-3] if manner == "cut" else data[:-3] + b"?" + data[-2:]
    path.chmod(0o644)
    path.write_bytes(spoilt)

    report = checked(ground)

    assert report.counts == {"damaged": 1, "healthy": 2}
    (row,) = report.unfinished
    assert row.source == bookie
    assert path.name in str(row.reason)
    assert "ledger repair" in str(row.reason)
    assert lifecycle.open_ledger(client, writer.ledger_id).read_arrow().equals(rows)
    assert checked(ground, percentage=50).is_complete, "files are looked at when all is looked at"

    repaired = repair_ledgers(client, LocalRunner(client), None)

    assert repaired.counts == {"replicated": 1}
    assert checked(ground).is_complete
    assert repair_ledgers(client, LocalRunner(client), None).rows == ()


@pytest.mark.parametrize(("how", "status"), [("compacted", "healthy"), ("lost", "missing")])
def test_who_finds_a_file_gone_of_which_the_entries_were_good_looks_for_them_again(
    ground: Ground, how: str, status: str
) -> None:
    """Compaction has moved them (SLOT-LOG rule R20), or they went with the file."""
    writer = written(ground)
    bookie = writer.metadata.last_fragment.ensemble[1]
    operations: list[str] = []

    def strike(place: str, operation: str, path: str) -> None:
        if place != bookie or "/slots/" not in path or "struck" in operations:
            return
        if operation != "read" or operations[-1:] != ["sync"]:  # a look at a whole file
            operations.append(operation)
            return
        operations.append("struck")
        if how == "compacted":
            compact_ledgers(ground.client(), None, [bookie], CompactionRequest(files_least=2))
        else:
            for file in ground.files(bookie, "slots"):
                file.unlink()

    ground.before.append(strike)

    report = checked(ground)

    assert len(ground.files(bookie, "copies")) == (how == "compacted")
    found = {str(row.source): (row.status, row.entries, row.bytes) for row in report.rows}
    assert found.pop(bookie) == (status, 10, 500)
    assert list(found.values()) == [("healthy", 10, 500)] * 2


def test_a_share_that_another_bookie_has_meanwhile_is_not_called_healthy(ground: Ground) -> None:
    writer = written(ground)
    (other,) = set(ground.bookie_ids) - writer.metadata.bookies()

    rows = check_one(ground.client(), CheckWork(writer.ledger_id, 100, (EntryId(0), other)))

    assert [(row.status, row.source) for row in rows] == [("left", other)]


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


def test_a_bookie_that_goes_while_it_is_read_is_unavailable_and_not_damaged(ground: Ground) -> None:
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


def bulk(ground: Ground, quorum: Quorum = USUAL) -> LedgerWriter:
    writer, _ = bulk_written(ground, quorum)
    return writer


def bad_sector(ground: Ground, bookie: BookieId, kind: str) -> None:
    """Files of that kind cannot be read on a bookie that answers otherwise."""

    def strike(place: str, operation: str, path: str) -> None:
        if place == bookie and operation.startswith("read") and f"/{kind}/" in path:
            raise BookieUnavailableError("Input/output error", bookie_id=bookie, path=path)

    ground.before.append(strike)


def test_a_file_that_cannot_be_read_is_not_known_to_be_damaged(ground: Ground) -> None:
    writer = bulk(ground)
    bad = writer.metadata.last_fragment.ensemble[1]
    bad_sector(ground, bad, "parts")

    report = checked(ground)

    assert report.counts == {"healthy": 2, "unreadable": 1}
    (row,) = report.unfinished
    assert row.source == bad
    assert "could not be read: entry 0: " in str(row.reason)
    assert "Input/output error" in str(row.reason)
    assert f"if it stays so, `spark-bookkeeper ledger repair {writer.ledger_id}`" in str(row.reason)


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_file_that_is_gone_is_damage_also_beside_one_that_cannot_be_read(
    ground: Ground, is_gone: bool
) -> None:
    writer = written(ground)
    bad = writer.metadata.last_fragment.ensemble[1]
    path = ground.files(bad, "slots")[3]
    if is_gone:
        path.unlink()
    else:
        spoil(path)
    slow = ground.files(bad, "slots")[5].name

    def strike(place: str, operation: str, path: str) -> None:
        is_body = operation == "read_range" and ("read", slow) in seen
        if place == bad and is_body and path.endswith(slow):
            raise BookieUnavailableError("Input/output error", bookie_id=bad, path=path)
        if place == bad and path.endswith(slow):
            seen.add(("read", slow))

    seen: set[tuple[str, str]] = set()
    ground.before.append(strike)

    assert statuses(checked(ground))[bad] == "damaged"


def test_missing_damaged_and_unavailable_are_told_apart(ground: Ground) -> None:
    writer = written(ground)
    down, wiped, damaged = writer.metadata.last_fragment.ensemble
    ground.stop(down)
    ground.format(wiped)
    spoil(ground.files(damaged, "slots")[3])

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
    writer = bulk(ground, Quorum(4, 3, 2))
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
    writer = lifecycle.create_ledger(ground.context, USUAL)
    for _ in range(5):
        writer.append(b"x")
    wait_for_every_copy(writer)

    assert checked(ground).is_complete
    assert writer.append(b"y") == 5


@pytest.mark.parametrize("entries", [1, 5])
@pytest.mark.parametrize("is_recovered", [False, True])
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_bookie_of_an_open_ledger_that_cannot_be_asked_is_unavailable(
    ground: Ground, entries: int, is_recovered: bool, is_lost: bool
) -> None:
    writer = lifecycle.create_ledger(ground.context, Quorum(2, 2, 1))
    for _ in range(entries):
        writer.append(b"x")
    wait_for_every_copy(writer)
    writer.abandon()
    gone, there = writer.metadata.last_fragment.ensemble
    ground.stop(gone, destroy=is_lost)
    if is_recovered:
        with pytest.raises(RecoveryUndecidedError):
            lifecycle.open_ledger(ground.client(), writer.ledger_id)

    report = checked(ground, percentage=0)

    assert statuses(report) == {gone: "unavailable", there: "healthy"}
    assert not report.is_complete
    assert f"bookie recover {gone}" in str(report.unfinished[0].reason)


@pytest.mark.parametrize("again", [False, True])
def test_a_bookie_with_no_share_must_be_there_all_the_same(ground: Ground, again: bool) -> None:
    with lifecycle.create_ledger(ground.context, USUAL) as writer:
        pass
    gone = writer.metadata.last_fragment.ensemble[0]
    assert checked(ground).is_complete
    ground.stop(gone)
    if again:
        ground.format(gone)

    assert checked(ground).counts == {"healthy": 2, "unavailable": 1}


class SlowLane:
    """Puts in slots of one bookie wait, from a slot on, until they may go on."""

    def __init__(self, ground: Ground, bookie: BookieId, slot: int) -> None:
        self._bookie = bookie
        self._slot = slot
        self.may_go_on = threading.Event()
        ground.before.append(self._wait)

    def _wait(self, place: str, operation: str, path: str) -> None:
        if place == self._bookie and operation == "put_if_absent" and "/slots/" in path:
            number = slot_number(path.rpartition("/")[2])
            if number is not None and number >= self._slot:
                assert self.may_go_on.wait(60)


def test_what_a_slow_channel_of_an_open_ledger_has_not_stored_yet_is_pending(
    ground: Ground,
) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    slow = writer.metadata.last_fragment.ensemble[2]
    channel = SlowLane(ground, slow, 1)
    for _ in range(5):
        writer.append(b"x")
    ground.until(lambda: len(ground.files(slow, "slots")) == 1)

    report = checked(ground)

    assert report.counts == {"healthy": 2, "pending": 1}
    (row,) = report.unfinished
    assert (row.source, row.entries) == (slow, 4)
    assert "lacks 3 of 4 entries, the first is 1: they may still be on their way" in str(row.reason)
    assert not report.is_complete  # the replica is not there
    channel.may_go_on.set()
    wait_for_every_copy(writer)
    assert checked(ground).is_complete
    writer.close()


def test_entries_that_arrive_while_they_are_looked_for_are_healthy(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    slow = writer.metadata.last_fragment.ensemble[2]
    channel = SlowLane(ground, slow, 1)
    for _ in range(5):
        writer.append(b"x")
    seen: list[str] = []

    def let_go(place: str, operation: str, path: str) -> None:
        if place == slow and path == MARKER_PATH and operation == "read":
            seen.append(path)
            if len(seen) == 2:  # after the tail was read, and the first look is over
                channel.may_go_on.set()
                wait_for_every_copy(writer)

    reader = ground.client(None, let_go)
    report = check_ledgers(reader, LocalRunner(reader), None, 100)

    assert report.is_complete
    assert len(seen) > 2
    writer.close()


def test_an_entry_between_others_that_a_bookie_of_an_open_ledger_lost_is_damaged(
    ground: Ground,
) -> None:
    writer = worlds.written(ground, 5, close=False)
    holed, cut, _ = writer.metadata.last_fragment.ensemble
    ground.files(holed, "slots")[1].unlink()
    writer.abandon()
    for path in ground.files(cut, "slots")[-2:]:
        path.unlink()

    report = checked(ground)

    assert report.counts == {"damaged": 1, "healthy": 1, "pending": 1}
    assert statuses(report)[holed] == "damaged"
    row = next(row for row in report.rows if row.source == holed)
    assert "1 of 4 entries are damaged: entry 1" in str(row.reason)
    assert "when it is closed" in str(row.reason)


def test_entries_that_a_recovery_found_missing_are_missing(ground: Ground) -> None:
    """Nobody sends them any more: the writer is fenced, and recovery begins behind the LAC."""
    writer = worlds.written(ground, 5, close=False)
    writer.abandon()
    short = writer.metadata.last_fragment.ensemble[0]
    for path in ground.files(short, "slots")[-3:]:
        path.unlink()
    update_ledger(ground.context.store, writer.ledger_id, lambda old: old.in_recovery())

    assert statuses(checked(ground))[short] == "missing"


def test_a_bookie_that_a_writer_gave_up_lacks_what_it_never_got(ground: Ground) -> None:
    writer = worlds.written(ground, 5, close=False)
    given_up = writer.metadata.last_fragment.ensemble[0]
    ground.stop(given_up)
    for _ in range(3):
        writer.append(b"x")
    ground.until(lambda: given_up not in writer.metadata.last_fragment.ensemble)
    ground.start(given_up)
    ground.files(given_up, "slots")[-1].unlink()
    ground.until(lambda: "pending" not in checked(ground).counts)

    report = checked(ground)

    assert {row.source: row.status for row in report.unfinished} == {given_up: "missing"}
    assert "ledger repair" in str(report.unfinished[0].reason)
    assert "when it is closed" not in str(report.unfinished[0].reason)
    writer.close()


def test_a_doubt_about_one_entry_says_nothing_of_the_others(ground: Ground) -> None:
    writer = written(ground)
    short = writer.metadata.last_fragment.ensemble[1]
    files = ground.files(short, "slots")
    files[2].unlink()
    for path in files[-3:]:
        path.unlink()

    report = checked(ground)

    (row,) = report.unfinished
    assert row.status == "damaged"
    assert "1 of 10 entries are damaged: entry 2" in str(row.reason)
    assert "lacks" in str(row.reason)


def test_what_can_only_be_read_crosswise_is_damaged_on_either_bookie(ground: Ground) -> None:
    """Of one bookie the record, of the other a part: reads go through, and each replica is bad."""
    writer, table = bulk_written(ground, Quorum(2, 2, 2))
    one, other = writer.metadata.last_fragment.ensemble
    (record,) = (path for path in ground.files(one, "slots") if path.stat().st_size > 1000)
    spoil(record, record.stat().st_size // 4)
    spoil(ground.files(other, "parts")[0])

    report = checked(ground)
    replicas = views.replicas_table(ground.client(), writer.ledger_id).to_pylist()

    assert statuses(report) == {one: "damaged", other: "damaged"}
    bad = [(r["bookie_id"], r["entry_id"]) for r in replicas if r["status"] == "unreadable"]
    last = writer.last_add_confirmed
    assert {entry for bookie, entry in bad if bookie == one} == set(range(last + 1))
    assert len([entry for bookie, entry in bad if bookie == other]) == 1
    reader = lifecycle.open_ledger(ground.client(), writer.ledger_id)
    assert reader.read_arrow().equals(table)


def two_fragments(ground: Ground) -> tuple[LedgerWriter, BookieId]:
    """An open ledger, and a bookie that has its place in the first fragment alone."""
    writer = lifecycle.create_ledger(ground.context, Quorum(3, 3, 3))
    for _ in range(5):
        writer.append(b"x")
    given_up = writer.metadata.last_fragment.ensemble[0]
    ground.stop(given_up)
    writer.append(b"y")
    ground.start(given_up)
    writer.abandon()
    return writer, given_up


def test_earlier_fragments_are_checked_also_when_nobody_knows_how_far_the_last_goes(
    ground: Ground,
) -> None:
    writer, there = two_fragments(ground)
    last = writer.metadata.last_fragment
    for bookie in last.ensemble:
        ground.stop(bookie)

    report = checked(ground)
    replicas = views.replicas_table(ground.client(), writer.ledger_id).to_pylist()

    of_first = {row.source: row.status for row in report.rows if row.first_entry_id == 0}
    assert of_first.pop(there) == "healthy"
    assert set(of_first.values()) == {"unavailable"}
    assert len(of_first) == 2
    (row,) = [row for row in report.rows if row.first_entry_id == last.first_entry_id]
    assert (row.status, row.source) == ("left", None)
    assert "no bookie of its last fragment answered" in str(row.reason)
    good = [r["entry_id"] for r in replicas if r["status"] == "verified"]
    assert good == list(range(last.first_entry_id))
    beyond = {r["bookie_id"]: r for r in replicas if r["entry_id"] == last.first_entry_id}
    assert set(beyond) == set(last.ensemble)
    assert all("does not answer" in r["reason"] for r in beyond.values())


def test_a_ledger_that_does_not_exist_is_gone(ground: Ground) -> None:
    report = check_ledgers(ground.context, LocalRunner(ground.context), [LedgerId(9)], 100)

    assert [row.status for row in report.rows] == ["gone"]


def test_the_limit_is_told_of_what_was_read_twice() -> None:
    """Entries in a file that is damaged around them are read once more, and counted once."""
    verdict = Verdict({0: Entry(100, b""), 1: Entry(10, b"")}, {}, {0: "cut short"})
    replica = SimpleNamespace(
        bookie_id="b:1",
        verify=lambda entries, with_files: Verdict(
            {e: verdict.good[e] for e in entries}, {}, verdict.spoilt
        ),
    )
    context = SimpleNamespace(bookies=SimpleNamespace(ask=lambda replica, purpose, call: call()))
    ledger = SimpleNamespace(ledger_id=1)
    check: Any = share_check.ShareCheck
    share = check(context, ledger, replica, [0, 1], with_files=True)

    assert share._look_at([0, 1]) == 210
    assert share._bytes == 110
