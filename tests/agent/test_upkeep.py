"""Compacting, scrubbing and collecting bookie by bookie, as jobs and as duties of an agent."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_bookkeeper.agent.collection import collect_garbage
from spark_bookkeeper.agent.compaction_job import CompactionRequest, compact_ledgers
from spark_bookkeeper.agent.duties import Turn
from spark_bookkeeper.agent.health import BY_HAND, SHORT_OF_SPACE
from spark_bookkeeper.agent.scrubbing import (
    Scrubbing,
    ScrubReport,
    is_due,
    read_mark,
    scrub,
    scrub_problems,
)
from spark_bookkeeper.agent.upkeep import upkeep_duties
from spark_bookkeeper.autorecovery.publishing import DisabledError
from spark_bookkeeper.autorecovery.worker import ReplicationWorker, rereplicate
from spark_bookkeeper.bookie import compaction as bookie_compaction
from spark_bookkeeper.client.deletion import delete_ledger
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.config import AutorecoveryConfig, BookieConfig
from spark_bookkeeper.errors import (
    BookieUnavailableError,
    BookKeeperError,
    CookieMismatchError,
    CorruptEntryError,
)
from spark_bookkeeper.metadata.store import READONLY_CAUSES
from spark_bookkeeper.metrics import BookieMetrics
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.replication.recover_bookie import BookieRecovery, recover_bookie
from spark_bookkeeper.replication.report import Outcome
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.storage.bookie_client import BookieClient
from spark_bookkeeper.storage.local import LocalStorage
from spark_bookkeeper.testing.ground import Ground, InlineRuntime, Killed, StandingStill
from tests import worlds
from tests.hooks import silent
from tests.support.rows import wait_for_every_copy
from tests.worlds import payloads, there


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """Three bookies in directories, metadata in memory."""
    return Ground(tmp_path, bookies=3, runtime=StandingStill())


def written(ground: Ground, count: int = 20, *, close: bool = True) -> LedgerWriter:
    """By a client of its own, which may live on."""
    return worlds.written(ground.client(), count, close=close)


TWENTY = [b"%d" % number for number in range(20)]
"""What such a ledger holds, and how much that is."""
SIZE = sum(map(len, TWENTY))


def spoil(ground: Ground, bookie: BookieId, ledger_id: int) -> None:
    (path, *_) = [p for p in ground.files(bookie) if f"/{ledger_id}-" in str(p)]
    path.write_bytes(path.read_bytes()[:200])


# Compaction


def test_closed_ledgers_of_many_files_are_compacted_and_no_others(ground: Ground) -> None:
    many, few, open_ = written(ground), written(ground, 2), written(ground, close=False)
    before = len(ground.files(ground.bookie_ids[0]))
    planned = compact_ledgers(ground.context, wish=CompactionRequest(dry_run=True))
    assert planned.counts == {"planned": 3}
    assert len(ground.files(ground.bookie_ids[0])) == before

    report = compact_ledgers(ground.context)

    assert {(row.ledger_id, row.status) for row in report.rows} == {
        (many.ledger_id, Outcome.COMPACTED)
    }
    assert [row.entries for row in report.rows] == [20, 20, 20]
    files = [p for p in ground.files(ground.bookie_ids[0]) if f"/{many.ledger_id}-" in str(p)]
    assert len(files) == 2
    assert payloads(ground, many.ledger_id) == TWENTY
    assert payloads(ground, few.ledger_id) == TWENTY[:2]
    open_.append(b"more")
    open_.close()
    assert payloads(ground, open_.ledger_id) == [*TWENTY, b"more"]
    assert {row.ledger_id for row in compact_ledgers(ground.context).rows} == {open_.ledger_id}
    assert compact_ledgers(ground.context).rows == ()


def test_only_ledgers_and_bookies_that_were_named_are_compacted(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookie_compaction, "SLOTS", 18)  # of a call
    one, two = written(ground), written(ground)
    bookie = ground.bookie_ids[1]

    told: list[tuple[str, int, int]] = []
    report = compact_ledgers(
        ground.context,
        [one.ledger_id],
        [bookie],
        progress=lambda what, done, total, _: told.append((what, done, total)),
    )

    at_work = f"compacting, ledger {one.ledger_id} on {bookie}"
    assert told == [
        (at_work, 0, 1),
        (f"{at_work}, 18 files so far", 0, 1),
        ("compacting", 1, 1),
    ], "none is done before it is"
    assert [(row.ledger_id, row.source) for row in report.rows] == [(one.ledger_id, bookie)]
    assert payloads(ground, two.ledger_id) == payloads(ground, one.ledger_id)


def test_a_ledger_is_compacted_by_one_call_of_its_bookie(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread for each file would cost more than the file."""
    written(ground)
    begin, asked = BookieClient.begin, []

    def noted(bookie_client: BookieClient, purpose: str, *args: Any, **named: Any) -> Any:
        asked.append(purpose)
        return begin(bookie_client, purpose, *args, **named)

    monkeypatch.setattr(BookieClient, "begin", noted)

    compact_ledgers(ground.context)

    assert asked.count("compacting 0") == 3
    assert len(asked) <= 3 * 2


def test_a_limit_on_bytes_is_kept_between_ledgers(ground: Ground) -> None:
    written(ground), written(ground)
    runtime = ground.runtime
    assert isinstance(runtime, InlineRuntime)
    before = runtime.slept

    compact_ledgers(ground.context, wish=CompactionRequest(bytes_per_second=10))

    assert runtime.slept - before >= 3 * 2 * 30 / 10 - 3


def test_reads_open_fewer_files_after_compaction(ground: Ground) -> None:
    writer = written(ground, 40)

    def opened() -> int:
        ground.forget()
        payloads(ground, writer.ledger_id)
        return ground.count()["read_range"]

    before = opened()
    compact_ledgers(ground.context)
    after = opened()
    assert before >= 40
    assert after <= before / 5


# Scrubbing


def test_a_round_without_a_finding_says_what_was_looked_at(ground: Ground) -> None:
    for _ in range(3):
        written(ground)
    bookie = ground.bookie_ids[0]

    report = scrub(ground.context, bookie)

    assert repr(report) == "ScrubReport(scrub: nothing was found wrong in 3 ledgers)"
    assert (report.rows, report.is_complete) == ((), True)
    totals = report.totals()
    assert [totals[key] for key in ("ledgers", "ledgers_complete", "fragments")] == [3, 3, 3]
    assert (totals["entries"], totals["bytes"]) == (60, 3 * SIZE)


def test_of_a_round_with_findings_the_totals_are_of_all_that_was_looked_at(ground: Ground) -> None:
    first, *_ = [written(ground) for _ in range(3)]
    bookie = ground.bookie_ids[0]
    spoil(ground, bookie, first.ledger_id)

    totals = scrub(ground.context, bookie).totals()

    assert [totals[key] for key in ("ledgers", "ledgers_complete", "fragments")] == [3, 3, 3]
    assert totals["entries"] == 60


def test_what_is_damaged_is_published_and_made_again(ground: Ground) -> None:
    sound, bad = written(ground, 3), written(ground, 3)
    bookie = ground.bookie_ids[0]
    assert scrub(ground.context, bookie).rows == ()
    spoil(ground, bookie, bad.ledger_id)

    report = scrub(ground.context, bookie)

    assert [(row.ledger_id, row.status, row.source) for row in report.rows] == [
        (bad.ledger_id, Outcome.PUBLISHED, bookie)
    ]
    tree = ground.context.store.underreplication
    assert there(tree.read(bad.ledger_id)).value.missing == (bookie,)
    assert tree.read(sound.ledger_id) is None
    assert scrub_problems(ground.context, ground.bookie_ids) == [
        (bookie, f"bad replicas of 1 ledgers: {bad.ledger_id}")
    ]
    ground.add_bookie()
    worker = ReplicationWorker(
        ground.context, LocalRunner(ground.context), AutorecoveryConfig(), "test"
    )
    rereplicate(ground.context, worker)
    assert tree.read(bad.ledger_id) is None
    assert scrub(ground.context, bookie).rows == ()
    assert scrub_problems(ground.context, ground.bookie_ids) == []


def test_what_is_damaged_is_published_while_autorecovery_is_disabled_and_made_again_later(
    ground: Ground,
) -> None:
    """A round may take weeks, and nothing is copied before autorecovery is enabled."""
    bad = written(ground, 3)
    bookie = ground.bookie_ids[0]
    spoil(ground, bookie, bad.ledger_id)
    tree = ground.context.store.underreplication
    tree.disable()

    scrub(ground.context, bookie)

    assert tree.read(bad.ledger_id) is not None
    worker = ReplicationWorker(
        ground.context, LocalRunner(ground.context), AutorecoveryConfig(), "test"
    )
    with pytest.raises(DisabledError):
        rereplicate(ground.context, worker)
    tree.enable()
    rereplicate(ground.context, worker)
    assert tree.read(bad.ledger_id) is None


def test_a_missing_entry_is_published_and_one_on_its_way_is_not(ground: Ground) -> None:
    closed, open_ = written(ground, 3), written(ground, 3, close=False)
    bookie = ground.bookie_ids[0]
    for writer in (closed, open_):
        wait_for_every_copy(writer)
        paths = [p for p in ground.files(bookie) if f"/{writer.ledger_id}-" in str(p)]
        paths[-1].unlink()

    report = scrub(ground.context, bookie)

    assert [row.ledger_id for row in report.rows] == [closed.ledger_id]


def test_a_bookie_that_does_not_answer_is_not_published(ground: Ground) -> None:
    writer = written(ground, 3)
    bookie = ground.bookie_ids[0]
    client = ground.client(None, _silent)
    with pytest.raises(BookieUnavailableError):
        scrub(client, bookie)

    assert ground.context.store.underreplication.read(writer.ledger_id) is None


def _silent(place: str, operation: str, path: str) -> None:
    if place != "metadata":
        raise BookieUnavailableError("no answer", bookie_id=place)


def test_a_bookie_whose_agent_is_away_is_scrubbed_and_its_mark_stays(ground: Ground) -> None:
    sound, bad = written(ground), written(ground)
    bookie = ground.bookie_ids[0]
    spoil(ground, bookie, bad.ledger_id)
    scrub(ground.context, bookie)
    problems = scrub_problems(ground.context, [bookie])
    assert problems != []

    ground.end_agent(bookie)
    report = scrub(ground.client(), bookie)

    assert [row.ledger_id for row in report.rows] == [bad.ledger_id]
    assert report.totals()["ledgers"] == 2
    assert scrub_problems(ground.context, [bookie]) == problems
    assert read_mark(ground.context.store.registers, bookie).rounds == 2
    assert ground.context.store.underreplication.read(sound.ledger_id) is None


def test_of_a_bookie_that_nobody_knows_nothing_is_scrubbed_and_its_mark_stays(
    ground: Ground,
) -> None:
    written(ground)
    bookie = ground.bookie_ids[0]
    scrub(ground.context, bookie)
    mark = read_mark(ground.context.store.registers, bookie)
    ground.end_agent(bookie)
    ground.context.store.delete_cookie(bookie, there(ground.context.store.cookie_version(bookie)))

    with pytest.raises(CookieMismatchError):
        scrub(ground.client(), bookie)

    assert read_mark(ground.context.store.registers, bookie) == mark


@pytest.mark.parametrize(
    ("lost", "said"),
    [("all of it", "not mounted, or wiped"), ("its ledgers", "what it held was removed")],
)
def test_a_bookie_whose_disk_is_not_mounted_or_lost_its_ledgers_has_not_nothing_to_do(
    ground: Ground, lost: str, said: str
) -> None:
    written(ground)
    bookie = ground.bookie_ids[0]
    scrub(ground.context, bookie)
    mark = read_mark(ground.context.store.registers, bookie)
    if lost == "all of it":
        ground.root(bookie).rename(ground.directory / "elsewhere")
    else:
        shutil.rmtree(ground.root(bookie) / "ledgers")

    with pytest.raises(BookieUnavailableError, match=said):
        scrub(ground.context, bookie)

    assert read_mark(ground.context.store.registers, bookie).rounds == mark.rounds
    for report in (
        compact_ledgers(ground.context, None, [bookie]),
        collect_garbage(ground.context, [bookie]),
    ):
        assert [row.status for row in report.rows] == [Outcome.LEFT]


def test_a_disk_that_goes_away_in_the_middle_of_a_round_ends_it_there(ground: Ground) -> None:
    ids = [written(ground).ledger_id for _ in range(4)]
    bookie, elsewhere = ground.bookie_ids[0], ground.directory / "elsewhere"
    spoil(ground, bookie, ids[3])

    with pytest.raises(CookieMismatchError, match="mounted wrongly"):
        scrubbed_while(ground, ids[2], lambda: ground.root(bookie).rename(elsewhere))

    assert read_mark(ground.context.store.registers, bookie).rounds == 0
    elsewhere.rename(ground.root(bookie))
    assert [row.ledger_id for row in scrub(ground.context, bookie).rows] == [ids[3]]
    assert read_mark(ground.context.store.registers, bookie).rounds == 1


def test_it_goes_on_where_it_was_stopped(ground: Ground) -> None:
    ids = [written(ground, 2).ledger_id for _ in range(5)]
    bookie = ground.bookie_ids[0]
    seen: list[str] = []

    def look(place: str, operation: str, path: str) -> None:
        if place == bookie and "/slots/" in path and operation == "read_range":
            seen.append(path.split("/")[1].split("-")[0])

    client = ground.client(None, look)
    scrub(client, bookie, Scrubbing(is_stopping=lambda: str(ids[2]) in seen))
    mark = read_mark(ground.context.store.registers, bookie)
    assert mark.next_ledger_id == ids[2]
    assert mark.rounds == 0
    seen.clear()

    scrub(client, bookie)

    assert set(seen) == {str(i) for i in ids[2:]}
    mark = read_mark(ground.context.store.registers, bookie)
    assert (mark.next_ledger_id, mark.rounds) == (0, 1)
    assert not is_due(mark, mark.began_at_ms + 1, 1000)
    assert is_due(mark, mark.began_at_ms + 1000, 1000)


def test_killed_in_a_long_round_it_goes_on_near_where_it_was(ground: Ground) -> None:
    ids = [written(ground).ledger_id for _ in range(5)]
    bookie = ground.bookie_ids[0]

    def kill(place: str, operation: str, path: str) -> None:
        if place == bookie and f"/{ids[3]}-" in path:
            raise Killed

    with pytest.raises(Killed):
        scrub(ground.client(None, kill), bookie, Scrubbing(bytes_per_second=1))

    mark = read_mark(ground.context.store.registers, bookie)
    assert (mark.next_ledger_id, mark.rounds) == (ids[3], 0)


def test_it_tells_how_far_it_is_after_each_ledger(ground: Ground) -> None:
    for _ in range(3):
        written(ground)
    told: list[tuple[str, int, int, int]] = []

    scrub(ground.context, ground.bookie_ids[0], progress=lambda *so_far: told.append(so_far))

    assert {each[:3] for each in told} == {("scrubbing", done, 3) for done in range(4)}
    assert {each[3] for each in told} == {0, SIZE, 2 * SIZE, 3 * SIZE}


def scrubbed_while(ground: Ground, ledger_id: int, happens: Callable[[], object]) -> ScrubReport:
    """A scrub of the first bookie; something happens when it begins to look at a ledger there."""
    bookie = ground.bookie_ids[0]
    left = [happens]

    def meet(place: str, operation: str, path: str) -> None:
        if left and place == bookie and f"/{ledger_id}-" in path:
            left.pop()()

    return scrub(ground.client(None, meet), bookie)


def test_a_ledger_that_is_deleted_and_collected_meanwhile_is_not_damaged(ground: Ground) -> None:
    sound, gone = written(ground), LedgerId(written(ground).ledger_id)

    def delete() -> None:
        delete_ledger(ground.context, gone)
        collect_garbage(ground.context)

    report = scrubbed_while(ground, gone, delete)

    assert report.rows == ()
    assert report.totals()["ledgers"] == 1
    assert ground.context.store.underreplication.read(gone) is None
    assert scrub_problems(ground.context, ground.bookie_ids) == []
    assert payloads(ground, sound.ledger_id) == TWENTY


def test_a_share_that_is_moved_and_collected_meanwhile_is_not_damaged(ground: Ground) -> None:
    ledger_id = LedgerId(written(ground).ledger_id)
    bookie = ground.bookie_ids[0]
    ground.add_bookie()

    def move() -> None:
        wish = BookieRecovery((bookie,), even_if_alive=True)
        recover_bookie(ground.context, LocalRunner(ground.context), wish)
        collect_garbage(ground.context)

    report = scrubbed_while(ground, ledger_id, move)

    assert len(ground.files(bookie)) == 1  # its fence stays
    assert report.rows == ()
    assert ground.context.store.underreplication.read(ledger_id) is None
    assert scrub_problems(ground.context, ground.bookie_ids) == []


def test_what_is_damaged_is_published_also_where_the_ledger_changes_meanwhile(
    ground: Ground,
) -> None:
    ledger_id = LedgerId(written(ground).ledger_id)
    bookie, other, _ = ground.bookie_ids
    ground.add_bookie()
    spoil(ground, bookie, ledger_id)

    def move_another() -> None:
        wish = BookieRecovery((other,), even_if_alive=True)
        recover_bookie(ground.context, LocalRunner(ground.context), wish)

    report = scrubbed_while(ground, ledger_id, move_another)

    assert [(row.ledger_id, row.status) for row in report.rows] == [(ledger_id, Outcome.PUBLISHED)]
    assert report.totals()["ledgers"] == 1
    assert ground.context.store.underreplication.read(ledger_id) is not None


def test_scrubbing_keeps_its_limit(ground: Ground) -> None:
    written(ground, 10)
    runtime = ground.runtime
    assert isinstance(runtime, InlineRuntime)
    before = runtime.slept

    scrub(ground.context, ground.bookie_ids[0], Scrubbing(bytes_per_second=1))

    assert runtime.slept - before >= 8


# Duties

TURN = Turn(lambda: False, lambda: None)


def do(ground: Ground, duty: str, config: BookieConfig, number: int = 0) -> float:
    """One step of a duty of one bookie, as its agent is configured; the seconds that it waited."""
    runtime = ground.runtime
    assert isinstance(runtime, InlineRuntime)
    before = runtime.slept
    duties = upkeep_duties(ground.context, ground.bookie_ids[number], config, BookieMetrics())
    (step,) = [each.step for each in duties if each.name == duty]
    step(TURN)
    return runtime.slept - before


def test_the_duties_do_it_and_count(ground: Ground) -> None:
    gone, many, few = written(ground), written(ground), written(ground, 5, close=False).ledger_id
    most = written(ground, 15, close=False).ledger_id
    delete_ledger(ground.context, gone.ledger_id)
    bookie, metrics = ground.bookie_ids[0], BookieMetrics()
    duties = {
        duty.name: duty for duty in upkeep_duties(ground.context, bookie, BookieConfig(), metrics)
    }
    assert list(duties) == ["collect", "collect-copies", "compact", "scrub"]

    for duty in duties.values():
        duty.step(TURN)

    counted = metrics.as_dict()
    assert counted["bookie_DELETED_LEDGER_total"] == 1
    assert counted["bookie_RECLAIMED_DELETION_SPACE_BYTES_total"] > 0
    assert counted["bookie_compacted_ledgers_total"] == 1
    named = {name: n for name, n in counted.items() if "open_ledger_files" in name}
    assert named == {f'bookie_open_ledger_files{{ledger="{most}"}}': 15}
    assert counted["bookie_corrupt_replicas_total"] == 0
    assert payloads(ground, many.ledger_id) == TWENTY
    mark = read_mark(ground.context.store.registers, bookie)
    assert mark.rounds == 1
    assert counted["bookie_scrubbed_timestamp_seconds"] == mark.ended_at_ms / 1000 > 0
    ground.before.append(silent(bookie, "list"))
    with pytest.raises(BookKeeperError, match="does not answer"):
        duties["compact"].step(TURN)
    assert named.items() <= metrics.as_dict().items(), "who saw nothing says nothing new"
    ground.before.clear()
    for ledger_id, left in ((most, {f'bookie_open_ledger_files{{ledger="{few}"}}': 5}), (few, {})):
        delete_ledger(ground.context, ledger_id, even_if_alive=True)
        duties["compact"].step(TURN)
        named = {name: n for name, n in metrics.as_dict().items() if "open_ledger_files" in name}
        assert named == left, "what is gone is not named"
    later = BookieMetrics()  # of an agent that was started again, when no round is due
    upkeep_duties(ground.context, bookie, BookieConfig(), later)[-1].step(TURN)
    assert later.as_dict()["bookie_scrubbed_timestamp_seconds"] == mark.ended_at_ms / 1000


@pytest.mark.parametrize("causes", [{SHORT_OF_SPACE}, {BY_HAND}, set()])
def test_while_space_is_short_copies_are_collected_as_often_as_the_rest(
    ground: Ground, causes: set[str]
) -> None:
    bookie = ground.bookie_ids[0]
    registration = ground.context.bookies.registrations()[bookie]
    properties = {READONLY_CAUSES: ",".join(causes)}
    ground.end_agent(bookie)
    ground.context.store.register(
        replace(registration, is_readonly=bool(causes), properties=properties)
    )
    woken: list[str] = []
    collect, copies, *_ = upkeep_duties(ground.context, bookie, BookieConfig(), BookieMetrics())
    assert collect.makes_room

    collect.step(TURN)  # nobody has begun with copies yet
    copies.step(Turn(lambda: False, lambda: woken.append("copies")))
    collect.step(TURN)

    assert woken == (["copies"] if SHORT_OF_SPACE in causes else [])


def test_a_full_bookie_is_not_compacted_and_the_report_says_so(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [written(ground).ledger_id, (last := written(ground)).ledger_id]
    bookie = ground.bookie_ids[0]
    before = ground.files(bookie)
    monkeypatch.setattr(LocalStorage, "space", lambda _: (10_000, 1_000_000))

    report = compact_ledgers(ground.context, None, [bookie])

    left = [(ledger_id, Outcome.LEFT) for ledger_id in ids]  # there may be room for a small one
    assert [(row.ledger_id, row.status) for row in report.rows] == left
    assert all("full: " in str(row.reason) for row in report.rows)
    assert ground.files(bookie) == before, "not even fences are put"
    monkeypatch.undo()
    assert len(compact_ledgers(ground.context, None, [bookie]).rows) == 2
    assert payloads(ground, last.ledger_id) == TWENTY


def test_a_duty_that_found_damage_says_so(ground: Ground) -> None:
    writer = written(ground, 3)
    bookie, metrics = ground.bookie_ids[0], BookieMetrics()
    spoil(ground, bookie, writer.ledger_id)
    config = BookieConfig(gc_interval_s=0, gc_copies_interval_s=0, compact_interval_s=0)
    (duty,) = upkeep_duties(ground.context, bookie, config, metrics)

    with pytest.raises(CorruptEntryError, match="published to autorecovery"):
        duty.step(TURN)

    assert metrics.as_dict()["bookie_corrupt_replicas_total"] == 1
    duty.step(TURN)  # the round is over, and the next one is not due


@pytest.mark.parametrize("duty", ["scrub", "compact"])
def test_an_agent_scrubs_and_compacts_as_slowly_as_is_configured(ground: Ground, duty: str) -> None:
    written(ground, 20)  # thirty bytes
    limits = {f"{duty}_bytes_per_second": 1}, {f"{duty}_bytes_per_second": 0}
    slow, unlimited = (BookieConfig(**limit) for limit in limits)  # type: ignore[arg-type]  # numbers

    assert do(ground, duty, slow) >= 28
    assert do(ground, duty, unlimited, number=1) == 0


def test_an_agent_reads_for_copies_that_nothing_names_as_slowly_as_is_configured(
    ground: Ground,
) -> None:
    written(ground, 20)
    source = ground.bookie_ids[0]
    ground.add_bookie()
    recovery = BookieRecovery((source,), even_if_alive=True)
    recover_bookie(ground.context, LocalRunner(ground.context), recovery)

    assert do(ground, "collect-copies", BookieConfig(scrub_bytes_per_second=1)) >= 28
    assert len(ground.files(source)) == 1, "the fence"


def test_an_agent_compacts_ledgers_of_as_many_files_as_are_configured(ground: Ground) -> None:
    written(ground, 20)
    before = len(ground.files(ground.bookie_ids[0]))

    do(ground, "compact", BookieConfig(compact_files_least=before + 1))
    assert len(ground.files(ground.bookie_ids[0])) == before
    do(ground, "compact", BookieConfig(compact_files_least=2))
    assert len(ground.files(ground.bookie_ids[0])) < before


def test_an_agent_collects_leftovers_that_are_as_old_as_is_configured(ground: Ground) -> None:
    written(ground)
    (slot, *_) = ground.files(ground.bookie_ids[0])
    leftover = slot.with_name(".x.1-2.tmp")
    leftover.write_bytes(b"left")
    an_hour_ago = time.time() - 3_600
    os.utime(leftover, (an_hour_ago, an_hour_ago))

    do(ground, "collect", BookieConfig(gc_leftovers_after_s=7_200))
    assert leftover.exists()
    do(ground, "collect", BookieConfig(gc_leftovers_after_s=1_800))
    assert not leftover.exists()
