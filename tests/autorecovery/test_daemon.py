"""Real processes of a cluster: a bookie is destroyed, and the cluster is whole again by itself."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from spark_bookkeeper.autorecovery.daemon import Autorecovery
from spark_bookkeeper.cli.main import run
from spark_bookkeeper.config import AutorecoveryConfig
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.session import BookKeeper
from tests.support.rows import numbered, wait_for_every_copy
from tests.support.sessions import connect_without_spark

pytestmark = pytest.mark.integration

CONFIG = AutorecoveryConfig(open_ledger_grace_ms=500, retry_first_ms=200, retry_most_ms=500)


@pytest.fixture
def cluster(tmp_path: Path, guests: None) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "c", bookies=5) as running:
        yield running


def until(holds: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"after {seconds} s still not: {what}"
        time.sleep(0.02)


def is_whole(bk: BookKeeper, lost: str) -> bool:
    if bk.underreplicated_arrow().num_rows:
        return False
    return not any(lost in row["bookies"] for row in bk.ledgers_arrow().to_pylist())


def has_looked(bk: BookKeeper) -> bool:
    """Whether its auditor has seen all bookies: one that is away before has time to come back."""
    return bk.metrics()["auditor_AUDIT_BOOKIES_TIME_count"] > 0


def test_a_destroyed_bookie_is_noticed_and_its_data_made_again(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="spark_bookkeeper")
    with ExitStack() as opened:
        bk, first, second = (
            opened.enter_context(connect_without_spark(cluster.metadata_uri)) for _ in range(3)
        )
        closed = bk.create_ledger()
        for number in range(20):
            closed.append(numbered(number))
        closed.close()
        left = bk.create_ledger()  # its writer says nothing more
        left.append(numbered(0))
        wait_for_every_copy(left)  # so that it does not replace the bookie itself
        lost = left.metadata.last_fragment.ensemble[0]

        one = first.autorecovery.start(config=CONFIG)
        until(lambda: one.is_auditor and has_looked(first), "elected")
        two: Autorecovery = second.autorecovery.start(config=CONFIG)
        cluster.stop_bookie(lost, destroy=True)
        until(lambda: is_whole(bk, lost), "whole")

        assert bk.ledger(left.ledger_id).state == "CLOSED"
        assert bk.check_ledgers(percentage=100).is_complete
        assert "fully replicated" in caplog.text
        assert one.fully_replicated + two.fully_replicated >= 1
        assert bk.autorecovery.status().warning is None

        assert bk.decommission_bookie(lost).is_complete  # who is new does not wait for it
        first.context.store.close()  # as when its process dies: votes and locks go
        until(lambda: two.is_auditor and has_looked(second), "the next one took over")
        again = next(b for b in cluster.running_bookie_ids if b in closed.metadata.bookies())
        cluster.stop_bookie(again, destroy=True)
        until(lambda: is_whole(bk, again), "whole again")

        assert bk.check_ledgers(percentage=100).is_complete
        with bk.open_ledger(closed.ledger_id) as reader:
            assert len(list(reader.entries())) == 20
        one.stop()
        two.stop()
        assert bk.autorecovery.who_is_auditor() is None
        assert bk.context.store.underreplication.locks() == {}


def test_the_commands_show_and_set_what_the_cluster_does(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*arguments: str, code: int = 0) -> dict[str, object]:
        capsys.readouterr()
        uri = ["--metadata-uri", cluster.metadata_uri]
        assert run([*arguments, *uri, "--json"]) == code, capsys.readouterr().err
        shown = capsys.readouterr().out
        return dict(json.loads(shown)) if shown else {}

    with connect_without_spark(cluster.metadata_uri) as bk:
        writer = bk.create_ledger()
        writer.append(numbered(0))
        writer.close()
        lost, *others = writer.metadata.last_fragment.ensemble
        assert said("cluster", "safe-to-lose", lost)["is_safe"] is True
        assert said("cluster", "safe-to-lose", lost, others[0], code=1)["is_safe"] is False
        assert said("autorecovery", "delay", "600") == {"lost_bookie_recovery_delay": 600}
        assert said("autorecovery", "limit", "1000000") == {"bytes_per_second": 1_000_000}
        assert said("autorecovery", "disable") == {"is_enabled": False, "changed": True}
        assert list(said("autorecovery", "audit", code=2)) == ["error"]
        assert said("autorecovery", "enable")["changed"] is True
        without_auditor = said("autorecovery", "trigger-audit", code=2)
        assert list(without_auditor) == ["error"]
        status = said("autorecovery", "status")
        assert (status["is_enabled"], status["auditor"]) == (True, None)
        assert "nobody notices" in str(status["warning"])

        cluster.stop_bookie(lost, destroy=True)
        assert said("autorecovery", "audit", "--dry-run")["ledgers"] == 1
        assert bk.underreplicated_arrow().num_rows == 0
        assert said("autorecovery", "audit")["complete"] is True
        planned = said("autorecovery", "rereplicate", "--dry-run")
        assert [row["status"] for row in planned["rows"]] == ["planned"]  # type: ignore[attr-defined]
        (row,) = bk.underreplicated_arrow().to_pylist()
        assert row["missing_replicas"] == [lost]
        shown = said("autorecovery", "underreplicated")["underreplicated"]
        assert [each["ledger_id"] for each in shown] == [writer.ledger_id]  # type: ignore[attr-defined]
        assert "no replication worker runs: `spark-bookkeeper" in shown[0]["blocker"]  # type: ignore[index]
        assert run(["autorecovery", "underreplicated", "--metadata-uri", cluster.metadata_uri]) == 0
        done = said("autorecovery", "start", "--once", "--engine", "local")
        assert done["complete"] is True
        assert is_whole(bk, lost)
        ended = said("bookie", "decommission", lost, "--yes", "--no-spark")
        assert (ended["remaining"], ended["blocked_by"]) == ([], None)
        assert bk.context.store.cookie_version(lost) is None
        alive = cluster.running_bookie_ids[0]
        assert list(said("bookie", "decommission", alive, "--yes", "--no-spark", code=2)) == [
            "error"
        ]
        drained = said("bookie", "decommission", alive, "--drain", "--yes", "--no-spark", code=1)
        assert drained["remaining"] == []
        assert "alive" in str(drained["blocked_by"])


def test_the_commands_show_what_the_auditors_checks_found_and_ask_for_them(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*arguments: str) -> str:
        capsys.readouterr()
        assert run([*arguments, "--metadata-uri", cluster.metadata_uri]) == 0
        return capsys.readouterr().out

    assert "no check has come to its end yet" in said("autorecovery", "checks")
    with connect_without_spark(cluster.metadata_uri) as bk:
        bk.create_ledger().close()
        config = replace(CONFIG, ledger_check_interval_s=0, replicas_check_interval_s=86_400)
        running = bk.autorecovery.start(config=config)
        until(lambda: len(bk.autorecovery.checks()) == 2, "counted")
        bookies, found = json.loads(said("autorecovery", "checks", "--json"))["checks"]
        assert (bookies["check"], bookies["ledgers"], bookies["found"]) == ("bookies", 1, {})
        assert (found["check"], found["ledgers"], found["found"]) == ("replicas", 1, {})
        assert "nothing" in said("autorecovery", "checks")

        assert "they begin at once, or when" in said("autorecovery", "trigger-checks")

        until(lambda: bk.autorecovery.checks()[1].ended_at_ms > found["ended_at_ms"], "counted")
        running.stop()
