"""What is kept of an auditor's checks, shown of them, and asked of them meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_bookkeeper.autorecovery import auditor
from spark_bookkeeper.autorecovery.check_results import (
    ABSENT_BOOKIE,
    BELOW_ACK_QUORUM,
    BELOW_WRITE_QUORUM,
    BOOKIES,
    MOST_NAMED,
    NO_REPLICA,
    CheckResult,
    Found,
)
from spark_bookkeeper.cluster.examination import cluster_diagnoses
from spark_bookkeeper.errors import MetadataUnavailableError
from spark_bookkeeper.metadata.underreplication import Check
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.autorecovery import Process, written
from spark_bookkeeper.testing.ground import METADATA, Ground, Killed
from tests.autorecovery.checking import (
    NEVER,
    forget_entries,
    is_done,
    lose_office,
    of_ledgers,
    only,
)
from tests.autorecovery.seen import audited
from tests.autorecovery.test_auditor import control
from tests.worlds import failing


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
