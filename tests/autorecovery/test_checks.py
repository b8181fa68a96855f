"""The auditor's checks of all ledgers: when they are done, when they end, what is kept of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from spark_bookkeeper.agent.scrubbing import scrub
from spark_bookkeeper.autorecovery import auditor, checks, replica_count, scan
from spark_bookkeeper.autorecovery import scan_batches as batches
from spark_bookkeeper.autorecovery.auditor import Auditor, UnfinishedScanError
from spark_bookkeeper.autorecovery.checks import (
    ABSENT_BOOKIE,
    BELOW_ACK_QUORUM,
    BELOW_WRITE_QUORUM,
    BOOKIES,
    MOST_NAMED,
    NO_REPLICA,
    CheckResult,
    Found,
    check_all_ledgers,
    check_placement,
    read_results,
)
from spark_bookkeeper.autorecovery.notes import Notes
from spark_bookkeeper.autorecovery.publishing import DisabledError
from spark_bookkeeper.autorecovery.replica_count import check_replicas
from spark_bookkeeper.autorecovery.scan_batches import BATCH_SECONDS
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.doctor.examination import cluster_diagnoses
from spark_bookkeeper.errors import (
    InvalidArgumentError,
    MetadataFormatError,
    MetadataUnavailableError,
)
from spark_bookkeeper.metadata.store import Registration
from spark_bookkeeper.metadata.underreplication import Check
from spark_bookkeeper.metadata.update import delete_ledger
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication import check_ledgers
from spark_bookkeeper.replication.report import Outcome
from spark_bookkeeper.replication.runner import LocalRunner, Progress, Step
from spark_bookkeeper.testing.ground import (
    METADATA,
    Ground,
    Hook,
    InlineRuntime,
    Killed,
    StandingStill,
)
from tests.autorecovery.checking import (
    DAILY,
    NEVER,
    Tasks,
    forget_entries,
    is_done,
    lose_office,
    of_ledgers,
    only,
)
from tests.autorecovery.seen import audited, damage, task_ids
from tests.autorecovery.test_auditor import control
from tests.support.autorecovery import Process, written
from tests.whole import assert_whole
from tests.worlds import failing, there

# When


@pytest.mark.parametrize("check", Check)
def test_a_check_is_done_after_its_interval_whoever_is_auditor_by_then(
    ground: Ground, check: Check
) -> None:
    written(ground)
    tree = ground.context.store.underreplication
    config = only(check, 100)
    one = audited(ground, config=config)
    first = there(tree.checked_at_ms(check))
    assert all(tree.checked_at_ms(other) is None for other in Check if other is not check)

    one.runtime.sleep(50)
    one.die()
    two = Process(ground, "two", config=config, runtime=one.runtime)
    assert two.audit() <= 51, "it knows when the check is due, and looks again then"
    assert two.daemon.is_auditor
    assert tree.checked_at_ms(check) == first
    two.runtime.sleep(51)
    two.audit()
    assert there(tree.checked_at_ms(check)).value >= first.value + 100_000


def test_a_ledger_whose_directory_is_gone_is_found_by_the_check_of_all_ledgers_and_no_scrubbing(
    ground: Ground,
) -> None:
    kept, gone = written(ground), written(ground)
    bookie = gone.metadata.last_fragment.ensemble[0]
    (slot, *_) = [p for p in ground.files(bookie) if f"/{gone.ledger_id}-" in str(p)]
    shutil.rmtree(slot.parents[1])
    process = Process(ground, config=only(Check.ALL_LEDGERS, 100))

    assert scrub(ground.context, bookie).rows == ()
    assert task_ids(ground) == []
    process.audit()

    assert task_ids(ground) == [gone.ledger_id]
    process.work()
    assert_whole(ground, kept, gone)


def test_all_bookies_are_looked_for_again_after_the_interval_and_by_each_new_auditor(
    ground: Ground,
) -> None:
    """A ledger that came to name a lost bookie by another way than its loss."""
    writer = written(ground)
    one = audited(ground, config=replace(NEVER, bookie_check_interval_s=100))
    ground.stop(writer.metadata.last_fragment.ensemble[0])
    one.audit()
    tree = ground.context.store.underreplication

    def lose_the_task() -> None:
        assert tree.remove(there(tree.read(LedgerId(writer.ledger_id))))

    one.runtime.sleep(61)  # behind a loss there is a second look
    one.audit()
    lose_the_task()
    one.runtime.sleep(90)
    one.audit()
    assert task_ids(ground) == []
    one.runtime.sleep(11)
    one.audit()
    assert task_ids(ground) == [writer.ledger_id]

    lose_the_task()
    one.die()
    Process(ground, "two", config=replace(NEVER, bookie_check_interval_s=0)).audit()
    assert task_ids(ground) == [writer.ledger_id]


def test_a_time_that_cannot_be_read_has_its_check_done_and_keeps_no_other_back(
    ground: Ground,
) -> None:
    written(ground)
    note_of_nobody = LedgerId(1 << 40)
    notes = Notes(ground.context.store.registers)
    notes.change(note_of_nobody, lambda note: replace(note, attempts=1))
    tree = ground.context.store.underreplication
    tree.set_checked_at_ms(Check.ALL_LEDGERS, 1, None)
    is_junk = [True]

    def junk(_place: str, operation: str, path: str) -> None:
        if path == Check.ALL_LEDGERS.value and operation == "forget_checked":
            is_junk.clear()
        if path == Check.ALL_LEDGERS.value and operation == "read_checked" and is_junk:
            raise MetadataFormatError("holds no time", path=path)

    audited(ground, "one", junk, config=DAILY)

    assert all(is_done(ground, check) for check in Check)
    assert list(notes.ledger_ids()) == []


def test_checks_that_are_asked_for_are_done_before_their_time(ground: Ground) -> None:
    written(ground)
    asked = control(ground)
    with pytest.raises(InvalidArgumentError, match="no auditor to ask"):
        asked.trigger_checks()
    process = audited(ground, config=only(Check.REPLICAS, 1000))
    tree = ground.context.store.underreplication
    first = there(tree.checked_at_ms(Check.REPLICAS))
    process.runtime.sleep(5)
    wake_up = process.daemon._check_event
    wake_up.wait(0)  # it heard of its own check
    process.audit()
    assert not wake_up.wait(0)

    asked.trigger_checks()
    assert wake_up.wait(0), "it is told at once"
    process.audit()

    assert there(tree.checked_at_ms(Check.REPLICAS)).value >= first.value + 5000
    assert tree.checked_at_ms(Check.PLACEMENT) is None, "it is never done here"


def test_nobody_is_asked_for_checks_while_autorecovery_is_disabled(ground: Ground) -> None:
    Process(ground).audit()
    control(ground).disable()

    with pytest.raises(InvalidArgumentError, match="disabled"):
        control(ground).trigger_checks()


# How much


@pytest.mark.parametrize("check", [Check.ALL_LEDGERS, Check.REPLICAS])
def test_a_check_is_limited_in_bytes_by_the_configuration(ground: Ground, check: Check) -> None:
    for _ in range(3):
        written(ground, count=20)

    def slept(limit: int) -> float:
        config = only(check, 100, check_bytes_per_second=limit, ledger_check_percentage=100)
        process = audited(ground, f"limit-{limit}", config=config)
        assert is_done(ground, check)
        slept = process.runtime.slept
        ground.context.store.underreplication.forget_checked(check)
        process.die()
        return slept

    assert slept(0) == 0
    assert slept(10) > 5


def test_what_a_limit_lets_read_in_half_a_minute_is_given_out_at_once(ground: Ground) -> None:
    """So a Spark job of a check ends soon, and whether to go on is asked before the next."""
    for _ in range(6):
        written(ground, count=20)
    given: list[int] = []

    class Counting(LocalRunner):
        def run(
            self, step: Step[Any, Any], items: Sequence[Any], progress: Progress
        ) -> Iterator[Any]:
            given.append(sum(item.size_bytes for item in items))
            return super().run(step, items, progress)

    client = ground.client(InlineRuntime())
    limit = 6  # bytes per second; a ledger has 90 in its replicas
    check_all_ledgers(client, Counting(client), 100, bytes_per_second=limit)

    assert sum(given) == 6 * 90
    assert len(given) == 3
    assert all(batch <= limit * BATCH_SECONDS for batch in given)


def test_without_a_limit_too_no_more_than_a_bounded_part_is_given_out_at_once(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(6):
        written(ground, count=20)
    client = ground.client(InlineRuntime())
    tasks = Tasks(client)
    monkeypatch.setattr(batches, "BATCH_BYTES", 200)

    check_all_ledgers(client, tasks, 100)

    assert tasks.batches == [2, 2, 2], "a ledger has 90 bytes in its replicas"


# What Spark does not do


BY_SPARK = {Check.ALL_LEDGERS: "missing", Check.REPLICAS: NO_REPLICA}
"""What the checks that are Spark jobs find where no bookie has a ledger any more."""


def checking(ground: Ground, check: Check, tasks: Tasks, *hooks: Hook) -> Auditor:
    config = only(check, 100, ledger_check_percentage=100)
    found = Auditor(ground.client(InlineRuntime(), *hooks), tasks, config)
    found.step(lambda: None)
    return found


@pytest.mark.parametrize("how", ["fails", "is gone", "has no metadata", "fails in part"])
@pytest.mark.parametrize("check", BY_SPARK)
def test_what_spark_does_not_do_of_a_check_the_auditor_does_itself(
    ground: Ground, check: Check, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    writers = [written(ground) for _ in range(3)]
    for bookie in writers[1].metadata.last_fragment.ensemble:
        forget_entries(ground, bookie, writers[1])
    ids = [writer.ledger_id for writer in writers]
    away = failing("read_ledger", lambda _: MetadataUnavailableError("no answer"))
    client = ground.client(InlineRuntime(), *([away] if how == "has no metadata" else []))
    fails = {"fails": ids, "fails in part": ids[1:2]}.get(how, [])
    tasks = Tasks(client, lambda item: item.ledger_id in fails, is_gone=how == "is gone")

    checking(ground, check, tasks).check(lambda: None)

    assert tasks.batches
    assert is_done(ground, check)
    (result,) = of_ledgers(ground.context.store.registers)
    assert (result.ledgers, dict(result.found)) == (3, {BY_SPARK[check]: 1})
    assert task_ids(ground) == (ids[1:2] if check is Check.ALL_LEDGERS else [])
    left = 1 if how == "fails in part" else 3
    assert f"{left} of 3 were not done by Spark, and are done here" in caplog.text


def refuse(monkeypatch: pytest.MonkeyPatch, ledger_ids: Sequence[int]) -> None:
    """What is to be read of these cannot be, by any process, and that is not for the bookies."""
    for module, name in ((check_ledgers, "check_one"), (replica_count, "count_replicas")):
        real = getattr(module, name)

        def refusing(
            context: ClientContext, work: Any, *more: Any, real: Any = real, **named: Any
        ) -> Any:
            if work.ledger_id in ledger_ids:
                raise OSError("Too many open files")
            return real(context, work, *more, **named)

        monkeypatch.setattr(module, name, refusing)


@pytest.mark.parametrize("is_elsewhere", [True, False])
@pytest.mark.parametrize("check", BY_SPARK)
def test_a_check_of_which_nothing_could_be_done_here_either_is_to_be_repeated(
    ground: Ground, check: Check, is_elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, [written(ground).ledger_id for _ in range(3)])
    client = ground.client(InlineRuntime())
    runner: Any = Tasks(client, lambda _: True) if is_elsewhere else LocalRunner(client)

    with pytest.raises(UnfinishedScanError, match="Too many open files"):
        checking(ground, check, runner).check(lambda: None)

    assert not is_done(ground, check)
    assert of_ledgers(ground.context.store.registers) == ()


@pytest.mark.parametrize("is_elsewhere", [True, False])
@pytest.mark.parametrize("check", BY_SPARK)
def test_a_ledger_that_nobody_can_look_at_is_not_counted_and_keeps_no_check_from_its_end(
    ground: Ground, check: Check, is_elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [written(ground).ledger_id for _ in range(3)]
    refuse(monkeypatch, ids[1:2])
    client = ground.client(InlineRuntime())
    runner: Any = Tasks(client) if is_elsewhere else LocalRunner(client)

    checking(ground, check, runner).check(lambda: None)

    assert is_done(ground, check)
    (result,) = of_ledgers(ground.context.store.registers)
    assert (result.ledgers, result.found) == (2, {"left": 1})
    assert result.named == {"left": (ids[1],)}


# Its end


def stop(process: Process, _: Process) -> None:
    process.daemon._is_stopping = True


@pytest.mark.parametrize("happens", [stop, lose_office])
@pytest.mark.parametrize("check", Check)
def test_a_check_ends_soon_when_its_auditor_is_to_end(
    ground: Ground,
    monkeypatch: pytest.MonkeyPatch,
    check: Check,
    happens: Callable[[Process, Process], None],
) -> None:
    """Then it is not remembered as done, and what it had found is published."""
    monkeypatch.setattr(checks, "LEDGERS_AT_ONCE", 1)
    monkeypatch.setattr(scan, "BATCH_LEDGERS", 1)
    ledgers = [written(ground, count=8).ledger_id for _ in range(5)]
    for bookie in ground.bookie_ids:
        damage(ground, bookie)
    other = Process(ground, "other", config=NEVER)
    looked_at: list[int] = []
    is_armed = False

    def tell(place: str, operation: str, path: str) -> None:
        if operation != "read_ledger" or not is_armed:
            return
        looked_at.append(int(path))
        if int(path) == ledgers[1] and looked_at.count(ledgers[1]) == 1:
            happens(process, other)

    process = Process(ground, "one", tell, config=only(check, 100, ledger_check_percentage=100))
    process.daemon.audit_once()
    other.audit()
    is_armed = True

    process.daemon.check_once()

    assert not is_done(ground, check)
    assert of_ledgers(ground.context.store.registers) == ()
    assert set(looked_at) == set(ledgers[:2])
    assert task_ids(ground) == (ledgers[:1] if check is Check.ALL_LEDGERS else [])


def test_an_audit_ends_soon_too_and_the_lost_bookie_is_not_forgotten(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "BATCH_LEDGERS", 1)
    writers = [written(ground, Quorum(4, 4, 2)) for _ in range(5)]
    lost = ground.bookie_ids[0]
    is_armed = False

    def stop_it(place: str, operation: str, path: str) -> None:
        process.daemon._is_stopping |= is_armed and operation == "mark"

    process = Process(ground, "one", stop_it, config=NEVER)
    process.audit()
    ground.stop(lost)
    is_armed = True
    process.audit()
    assert task_ids(ground) == [writers[0].ledger_id]

    process.daemon._is_stopping = is_armed = False
    process.audit()

    assert task_ids(ground) == [writer.ledger_id for writer in writers]


def test_a_check_that_is_disabled_in_the_middle_publishes_nothing_more(ground: Ground) -> None:
    written(ground, count=8)
    for bookie in ground.bookie_ids:
        damage(ground, bookie)
    is_armed = False

    def disable(place: str, operation: str, path: str) -> None:
        if is_armed and place != METADATA and control(ground).disable():
            process.runtime.sleep(10)  # the switch is looked at every few seconds

    config = only(Check.ALL_LEDGERS, 100, ledger_check_percentage=100)
    process = Process(ground, "one", disable, config=config)
    process.daemon.audit_once()
    is_armed = True

    process.daemon.check_once()

    assert not is_done(ground, Check.ALL_LEDGERS)
    assert task_ids(ground) == []


# What they find


def test_replicas_are_counted_and_nothing_is_marked(ground: Ground) -> None:
    whole, lacking = written(ground), written(ground)
    lost = lacking.metadata.last_fragment.ensemble[0]
    client = ground.client(InlineRuntime())
    assert check_replicas(client, LocalRunner(client)).rows == ()
    ground.stop(lost)

    rows = check_replicas(client, LocalRunner(client)).rows

    affected = [w.ledger_id for w in (whole, lacking) if lost in w.metadata.bookies()]
    assert [row.ledger_id for row in rows] == affected
    assert all("2 replicas, fewer than Qw" in (row.reason or "") for row in rows)
    assert task_ids(ground) == []


def test_copies_in_one_rack_are_told(ground: Ground) -> None:
    writer = written(ground)
    outside = [b for b in ground.bookie_ids if b not in writer.metadata.bookies()]
    registered = {r.bookie_id: r for r in ground.context.store.registrations()}
    assert check_placement(ground.context).rows == ()

    def move(bookie: BookieId, rack: str) -> Registration:
        return replace(registered[bookie], rack=rack)

    ground._agent.register(move(outside[0], "/other"))
    (row,) = check_placement(ground.context).rows

    assert row.status is Outcome.MISPLACED
    assert "copies on 1 racks, and 2 could be used" in (row.reason or "")
    assert task_ids(ground) == []


def uncountable(ground: Ground, count: int) -> list[LedgerId]:
    """Ledgers of which somebody wrote that they have more entries than can be counted."""
    metadata = replace(written(ground).metadata, last_entry_id=EntryId(1 << 40))
    ids = [LedgerId(1_000 + number) for number in range(count)]
    for ledger_id in ids:
        ground.cluster.recreate_by_another_tool(ledger_id, metadata)
    return ids


@pytest.mark.parametrize("percentage", [0, 100])
def test_ledgers_that_cannot_be_counted_are_left_and_keep_no_check_from_its_end(
    ground: Ground, percentage: int
) -> None:
    bad = uncountable(ground, 2)
    delete_ledger(ground.context.store, next(iter(ground.context.store.ledger_ids())))
    assert list(ground.context.store.ledger_ids()) == bad
    config = replace(DAILY, ledger_check_percentage=percentage)

    Process(ground, config=config).audit()

    assert all(is_done(ground, check) for check in Check)
    results = {each.check: each for each in read_results(ground.context.store.registers)}
    assert results["all_ledgers"].ledgers == results["replicas"].ledgers == 0
    assert task_ids(ground) == []


def test_a_check_that_fails_keeps_no_other_from_being_done_and_is_tried_later_each_time(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(ground)
    begun: list[float] = []
    process = Process(ground, config=DAILY, runtime=StandingStill())

    def failing(*_args: Any, **_more: Any) -> None:
        begun.append(process.runtime.now())
        raise InvalidArgumentError("it cannot be done")

    with monkeypatch.context() as patched:
        patched.setattr(auditor, "check_all_ledgers", failing)
        for _ in range(200):
            with suppress(InvalidArgumentError):
                assert process.audit() <= 60
            process.runtime.sleep(5)

    assert is_done(ground, Check.PLACEMENT)
    assert is_done(ground, Check.REPLICAS)
    assert not is_done(ground, Check.ALL_LEDGERS)
    waits = [round(after - before) for before, after in pairwise(begun)]
    assert waits == [10, 20, 40, 80, 160, 300, 300]
    control(ground).trigger_checks()
    process.audit()
    assert is_done(ground, Check.ALL_LEDGERS), "somebody asked for it"


def test_a_moment_without_an_answer_leaves_no_ledger_unchecked(ground: Ground) -> None:
    writer = written(ground, count=6)
    damage(ground, writer.metadata.last_fragment.ensemble[-1])
    armed: list[int] = []
    failed: list[int] = []

    def blip(place: str, operation: str, _path: str) -> None:
        if place != METADATA and not armed:
            armed.append(1)
            client.runtime.sleep(10)  # so long the first replica took
        elif operation == "is_enabled" and armed and len(failed) < 2:
            failed.append(1)
            raise MetadataUnavailableError("no answer")

    client = ground.client(InlineRuntime(), blip)
    config = only(Check.ALL_LEDGERS, 100, ledger_check_percentage=100)
    found = Auditor(client, LocalRunner(client), config)
    found.step(lambda: None)
    found.check(lambda: None)

    assert failed
    assert is_done(ground, Check.ALL_LEDGERS)
    assert task_ids(ground) == [writer.ledger_id]


def test_a_check_that_was_disabled_for_a_moment_is_not_done(ground: Ground) -> None:
    """It has left what it was at, and nobody else looks at that."""
    writer = written(ground, count=6)
    answers = iter([None, DisabledError("for a moment"), None, None])

    def heed() -> None:
        answer = next(answers, None)
        if answer is not None:
            raise answer

    client = ground.client(InlineRuntime())
    with pytest.raises(DisabledError):
        check_all_ledgers(client, LocalRunner(client), heed=heed)

    assert writer.ledger_id not in task_ids(ground)


def test_what_a_check_found_is_kept_and_shown_also_by_the_next_auditor(ground: Ground) -> None:
    """Of the replicas of one entry all are gone, of another's two, of a third's one."""
    quorum = Quorum(3, 3, 2)
    writers = [written(ground, quorum) for _ in range(4)]
    for lost, writer in enumerate(writers):
        for bookie in writer.metadata.last_fragment.ensemble[:lost]:
            forget_entries(ground, bookie, writer)
    one = audited(ground, config=only(Check.REPLICAS, 1000))

    _, kept = control(ground).checks()

    assert kept == CheckResult(
        "replicas",
        kept.ended_at_ms,
        kept.duration_ms,
        4,
        {BELOW_WRITE_QUORUM: 1, BELOW_ACK_QUORUM: 1, NO_REPLICA: 1},
        {
            BELOW_WRITE_QUORUM: (writers[1].ledger_id,),
            BELOW_ACK_QUORUM: (writers[2].ledger_id,),
            NO_REPLICA: (writers[3].ledger_id,),
        },
    )
    two = audited(ground, "two", config=NEVER)
    lose_office(one, two)
    two.audit()
    for few in ("NO_REPLICA", "LESS_THAN_AQ_REPLICAS", "LESS_THAN_WQ_REPLICAS"):
        name = f"auditor_NUM_LEDGERS_HAVING_{few}_OF_AN_ENTRY"
        shown = [each.context.metrics.as_dict()[name] for each in (one, two)]
        assert shown == [0, 1], "whoever is the auditor shows it"
    told = {d.detail: d for d in cluster_diagnoses(ground.context) if "checks" in d.check}
    assert [d.verdict for d in told.values()] == ["problem", "warning", "problem"]
    worst = next(d for d in told.values() if "without any replica" in d.detail)
    assert f": {writers[3].ledger_id}" in worst.detail
    assert f"spark-bookkeeper ledger check {writers[3].ledger_id} " in (worst.remedy or "")


def test_when_all_bookies_were_looked_for_is_kept_and_what_was_found(ground: Ground) -> None:
    writers = [written(ground) for _ in range(2)]
    lost = writers[0].metadata.last_fragment.ensemble[0]
    named = [writer.ledger_id for writer in writers if lost in writer.metadata.bookies()]
    ground.stop(lost)
    one = Process(ground, config=replace(NEVER, bookie_check_interval_s=3_600))

    one.audit()

    (kept,) = control(ground).checks()
    assert kept == CheckResult(
        BOOKIES,
        kept.ended_at_ms,
        kept.duration_ms,
        2,
        {ABSENT_BOOKIE: len(named)},
        {ABSENT_BOOKIE: tuple(named)},
    )
    one.runtime.sleep(3_601)
    one.audit()
    (again,) = control(ground).checks()
    assert again.ended_at_ms - kept.ended_at_ms >= 3_600_000
    assert (again.ledgers, again.found) == (2, kept.found), "they wait for another bookie"


def test_what_is_kept_of_a_check_is_bounded(ground: Ground) -> None:
    found = Found()
    for ledger_id in range(100):
        for _ in range(3):
            found.add("missing", LedgerId(ledger_id))
    result = found.result(Check.ALL_LEDGERS, 1, 2)

    assert result.found == {"missing": 100}
    assert result.named == {"missing": tuple(range(MOST_NAMED))}


def kept(**changed: str) -> bytes:
    """A result of the placement check as it lies in its register, in which something is changed."""
    numbers = {"ended_at_ms": "1", "duration_ms": "1", "ledgers": "1", "found": "7", "named": "5"}
    numbers |= changed
    found, named = numbers.pop("found"), numbers.pop("named")
    fields = ", ".join(f'"{name}": {value}' for name, value in numbers.items())
    text = (
        f'{{"check": "placement", {fields}, '
        f'"found": {{"misplaced": {found}}}, "named": {{"misplaced": [{named}]}}}}'
    )
    return text.encode()


def test_a_result_that_can_be_read_is(ground: Ground) -> None:
    """As ``kept`` has it, so that what is changed in it is what makes it junk."""
    registers = ground.context.store.registers
    registers.create("autorecovery/checks/placement", kept(ended_at_ms=str(2**63 - 1)))

    (result,) = of_ledgers(registers)

    assert result == CheckResult(
        "placement", 2**63 - 1, 1, 1, {"misplaced": 7}, {"misplaced": (5,)}
    )


JUNK = {
    "no JSON": b"[junk",
    "a list": b"[]",
    "too deep": b"[" * 100_000,
    "infinite": kept(found="1e999"),
    "of 400 digits": kept(found="9" * 400),
    "too large": kept(ended_at_ms=str(2**63)),
    "below 0": kept(ledgers="-1"),
    "a ledger of 400 digits": kept(named="9" * 400),
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
def test_a_result_that_cannot_be_read_is_as_none(ground: Ground, junk: bytes) -> None:
    registers = ground.context.store.registers
    registers.create("autorecovery/checks/placement", junk)

    assert of_ledgers(registers) == ()


def test_a_result_that_cannot_be_read_is_not_told_and_written_again(ground: Ground) -> None:
    registers = ground.context.store.registers
    registers.create("autorecovery/checks/placement", JUNK["of 400 digits"])
    assert [d for d in cluster_diagnoses(ground.context) if "checks" in d.check] == []

    Process(ground, config=only(Check.PLACEMENT, 10)).audit()

    assert [result.check for result in of_ledgers(registers)] == ["placement"]


def test_what_cannot_be_shown_stops_no_check(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OverflowError("int too large to convert to float")

    monkeypatch.setattr(auditor, "show_results", fail)

    Process(ground, config=only(Check.PLACEMENT, 100)).audit()

    assert is_done(ground, Check.PLACEMENT)
    assert "int too large" in caplog.text


def test_a_check_that_is_killed_when_it_has_ended_is_repeated_and_has_lost_nothing(
    ground: Ground,
) -> None:
    written(ground)

    def kill(place: str, operation: str, path: str) -> None:
        if operation == "set_checked" and of_ledgers(ground.context.store.registers):
            raise MetadataUnavailableError("the session was lost")

    process = Process(ground, "one", kill, config=only(Check.REPLICAS, 100))
    with pytest.raises(MetadataUnavailableError):
        process.audit()

    assert not is_done(ground, Check.REPLICAS)
    assert [result.ledgers for result in of_ledgers(ground.context.store.registers)] == [1]
    process.die()
    Process(ground, "two", config=only(Check.REPLICAS, 100)).audit()
    assert is_done(ground, Check.REPLICAS)


@pytest.mark.parametrize("before", ["never", "done", "asked for", "ended by a kill"])
def test_checks_that_are_asked_for_during_a_check_are_done_after_it(
    ground: Ground, before: str
) -> None:
    """Whatever there was before: also during the very first one."""
    ledger_id = written(ground).ledger_id
    is_armed = False
    looks = 0

    def ask(place: str, operation: str, path: str) -> None:
        nonlocal looks
        if is_armed and operation == "read_ledger" and path == str(ledger_id):
            looks += 1
            if looks == 1:
                control(ground).trigger_checks()

    process = Process(ground, "one", ask, config=only(Check.REPLICAS, 100))
    process.daemon.audit_once()
    if before == "ended by a kill":
        ground.before.append(failing("ledger_ids", Killed))  # as it counts
        with pytest.raises(Killed):
            process.daemon.check_once()
        ground.before.clear()
    elif before != "never":
        process.daemon.check_once()
        process.runtime.sleep(101)
    if before == "asked for":
        control(ground).trigger_checks()
    is_armed = True
    process.audit()
    assert looks == 1

    process.audit()

    assert looks == 2
    assert is_done(ground, Check.REPLICAS)
    process.audit()
    assert looks == 2


@pytest.mark.parametrize("before", ["never", "done", "ahead of the clock"])
def test_checks_that_are_asked_for_as_one_is_remembered_are_done_after_it(
    ground: Ground, before: str
) -> None:
    """Between its look at when that was done last, and the write."""
    written(ground)
    tree = ground.context.store.underreplication
    asked: list[bool] = []

    def ask(place: str, operation: str, path: str) -> None:
        if asked == [False] and operation == "set_checked" and tree.checked_at_ms(Check.REPLICAS):
            asked.append(True)
            control(ground).trigger_checks()

    process = Process(ground, "one", ask, config=only(Check.REPLICAS, 100))
    process.daemon.audit_once()
    if before == "done":
        process.daemon.check_once()
        process.runtime.sleep(101)
    if before == "ahead of the clock":
        tree.set_checked_at_ms(Check.REPLICAS, process.context.cluster_ms() + 10**9, None)
    asked.append(False)

    process.audit()
    assert asked == [False, True]
    assert not is_done(ground, Check.REPLICAS)
    process.audit()

    assert is_done(ground, Check.REPLICAS)


def gauges(process: Process) -> set[float]:
    """The values of those that an auditor sets."""
    shown = process.context.metrics.as_dict()
    names = [name for name in shown if name.startswith("auditor_NUM") and "LEDGERS" in name]
    assert len(names) >= 5
    return {shown[name] for name in names}


def test_who_has_stopped_shows_nothing_any_more(ground: Ground) -> None:
    ground.context.store.underreplication.mark(LedgerId(7), list(ground.bookie_ids[:1]), 1)
    process = audited(ground, config=NEVER)
    assert gauges(process) == {0, 1}

    process.daemon.stop()

    assert gauges(process) == {0}


def test_who_loses_its_office_shows_nothing_any_more(ground: Ground) -> None:
    ground.context.store.registers.create("autorecovery/checks/placement", kept())
    one = Process(ground, "one", config=NEVER)
    two = Process(ground, "two", config=NEVER)
    one.audit()
    assert gauges(one) == {0, 7}

    lose_office(one, two)

    assert gauges(one) == {0}
    assert gauges(two) == {0, 7}


def test_the_gauges_do_not_stand_still_while_a_check_runs(ground: Ground) -> None:
    written(ground)
    shown: list[set[float]] = []

    def lose(place: str, operation: str, path: str) -> None:
        if place != METADATA and not shown:
            shown.append(gauges(process))
            ground.context.store.underreplication.mark(LedgerId(7), [], 1)
            process.runtime.sleep(60)
            process.daemon.audit_once()
            shown.append(gauges(process))

    process = Process(ground, "one", lose, config=only(Check.ALL_LEDGERS, 100))
    process.audit()

    assert is_done(ground, Check.ALL_LEDGERS)
    assert shown == [{0}, {0, 1}]


def test_tasks_are_listed_for_the_gauges_once_a_minute_however_often_it_is_rung(
    ground: Ground,
) -> None:
    listed = 0

    def count(place: str, operation: str, path: str) -> None:
        nonlocal listed
        listed += operation == "task_ids"

    process = Process(ground, "one", count, config=NEVER)
    for _ in range(20):
        process.audit()
        process.runtime.sleep(2)
    assert listed == 1
    process.runtime.sleep(25)
    process.audit()

    assert listed == 2
