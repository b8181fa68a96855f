"""What auditor and worker count of their work, and for how long each part took."""

from __future__ import annotations

from dataclasses import replace

from spark_bookkeeper.autorecovery.control import AutorecoveryControl
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.autorecovery import CONFIG, Process, written
from spark_bookkeeper.testing.ground import Ground, StandingStill


def counted(process: Process, *names: str) -> list[float]:
    shown = process.context.metrics.as_dict()
    return [shown[name] for name in names]


def test_a_loss_is_counted_from_its_being_published_to_ledgers_that_are_whole(
    ground: Ground,
) -> None:
    writers = [written(ground) for _ in range(3)]
    process = Process(ground, runtime=StandingStill())
    process.audit()
    lost = writers[0].metadata.last_fragment.ensemble[0]
    named = sum(lost in writer.metadata.bookies() for writer in writers)
    ground.stop(lost)
    audits = counted(process, "auditor_AUDIT_BOOKIES_TIME_count")[0]

    process.audit()

    assert counted(process, "auditor_ledgers_published_total") == [named]
    AutorecoveryControl(ground.context, lambda _: LocalRunner(ground.context)).trigger_audit()
    process.audit()
    assert counted(process, "auditor_ledgers_published_total") == [named], "each ledger once"
    audits += 1
    assert counted(process, "auditor_AUDIT_BOOKIES_TIME_count") == [audits + 1]
    process.runtime.sleep(30)
    process.work()
    done, timed, seconds = counted(
        process,
        "replication_worker_ledgers_replicated_total",
        "replication_worker_underreplicated_seconds_count",
        "replication_worker_underreplicated_seconds_sum",
    )
    assert (done, timed) == (named, named)
    assert 30 * named <= seconds < 31 * named


def test_who_is_waited_for_and_who_came_back_are_counted(ground: Ground) -> None:
    lost = written(ground).metadata.last_fragment.ensemble[0]
    ground.context.store.underreplication.set_delay_seconds(600)
    process = Process(ground)
    names = (
        "auditor_NUM_BOOKIE_AUDITS_DELAYED_total",
        "auditor_NUM_DELAYED_BOOKIE_AUDITS_CANCELLED_total",
    )
    process.audit()
    assert counted(process, *names) == [0, 0]

    ground.stop(lost)
    process.audit()
    assert counted(process, *names) == [1, 0]

    ground.start(lost)
    process.audit()
    assert counted(process, *names) == [1, 1]


def test_each_check_of_all_ledgers_is_timed(ground: Ground) -> None:
    written(ground)
    process = Process(ground, config=replace(CONFIG, ledger_check_interval_s=3_600))

    process.audit()
    process.runtime.sleep(3_601)
    process.audit()

    assert counted(process, "auditor_CHECK_ALL_LEDGERS_TIME_count") == [2]
