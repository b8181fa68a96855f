"""``spark-bookkeeper doctor`` finds what is wrong and says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_bookkeeper.autorecovery.names import process_name
from spark_bookkeeper.cli import doctor
from spark_bookkeeper.cli.main import run
from spark_bookkeeper.cli.shell.remedies import pasteable
from spark_bookkeeper.cli.shell.settings import METADATA_URI_VARIABLE
from spark_bookkeeper.connection import Connection
from spark_bookkeeper.doctor import examination
from spark_bookkeeper.doctor import failure_domains as sharing
from spark_bookkeeper.doctor.diagnosis import Diagnoses, Diagnosis
from spark_bookkeeper.errors import MetadataError, MetadataUnavailableError
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from tests.cli.conftest import Call
from tests.support.sessions import connect_without_spark
from tests.worlds import there


def findings(call: Call) -> dict[str, dict[str, Any]]:
    told = call("doctor", "--json").json["findings"]
    return {finding["check"]: finding for finding in told}


@pytest.mark.integration
def test_a_healthy_cluster_has_nothing_to_be_done(
    own_cluster: LocalCluster, call_own: Call
) -> None:
    done = call_own("doctor", "--json")

    assert (done.code, done.json["healthy"]) == (0, True)
    checks = {finding["check"] for finding in done.json["findings"]}
    assert checks >= {"python", "pyspark", "pyarrow", "java", "zookeeper"}
    assert checks >= {f"bookie {bookie}" for bookie in own_cluster.bookie_ids}


def test_bookies_on_one_disk_are_a_warning_where_data_matters(
    cluster: LocalCluster, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = findings(call)["bookies on one disk"]
    assert told["verdict"] == "ok", "it is a cluster to try"
    assert all(bookie in told["detail"] for bookie in cluster.bookie_ids)

    monkeypatch.setattr(sharing, "_LOOPBACK", frozenset())
    with connect_without_spark(cluster.metadata_uri) as bk:
        roots = examination._roots(bk.context.bookies.registrations())
        (found,) = examination._shared(bk.context, roots)

    assert (found.verdict, found.check) == ("warning", "bookies on one disk")
    assert found.remedy is not None


def test_a_lost_bookie_is_a_problem_for_the_ledgers_on_it(
    own_cluster: LocalCluster, call_own: Call, numbers: Path
) -> None:
    call_own("ledger", "append", numbers, "-e", 5)
    opened = call_own("ledger", "append", numbers, "-e", 5, "--leave-open", "--json").json
    lost = own_cluster.bookie_ids[0]
    own_cluster.stop_bookie(lost, destroy=True)
    own_cluster.stop_bookie(own_cluster.add_bookie(), destroy=True)  # nothing was on this one

    done = call_own("doctor")
    found = findings(call_own)

    assert done.code == 1
    uri = own_cluster.metadata_uri
    remedy = found["fragments on lost bookies"]["remedy"]
    assert remedy == f"spark-bookkeeper bookie recover {lost} --skip-open-ledgers"
    assert pasteable(remedy, ("--metadata-uri", uri)) in done.out
    assert found[f"bookie {lost}"]["verdict"] == "problem"
    assert found["fragments on lost bookies"]["detail"].startswith("2 of 2 ledgers")
    assert str(opened["ledger_id"]) in found["open ledgers on lost bookies"]["detail"]
    assert found["entries below their ack quorum"]["verdict"] == "ok"


def test_what_is_advised_about_a_lost_bookie_is_the_same_wherever_one_looks(
    own_cluster: LocalCluster, call_own: Call, numbers: Path
) -> None:
    unused = own_cluster.bookie_ids[0]
    own_cluster.stop_bookie(unused, destroy=True)

    before, doctor = call_own("cluster", "info").out, call_own("doctor")
    assert (doctor.code, f"bookie cookie delete {unused}" in doctor.out) == (0, True)
    made = call_own("ledger", "append", numbers, "-e", 4, "--json").json["ledger_id"]
    named = call_own("ledger", "show", made, "--json").json["bookies"][0]
    own_cluster.stop_bookie(named)
    after = call_own("cluster", "info").out
    health = {f["check"]: f for f in call_own("cluster", "health", "--json").json["findings"]}

    uri = own_cluster.metadata_uri
    assert pasteable(health[f"bookie {unused}"]["remedy"], ("--metadata-uri", uri)) in before
    assert f"bookie cookie delete {unused}" in before
    assert "bookie recover" not in before
    for bookie in (unused, named):
        assert pasteable(health[f"bookie {bookie}"]["remedy"], ("--metadata-uri", uri)) in after
    assert f"bookie recover {named} --skip-open-ledgers --delete-cookie" in after
    assert call_own("bookie", "cookie", "delete", unused, "--yes").code == 0
    assert f"bookie {unused}" not in findings(call_own)


def test_a_ledger_that_autorecovery_is_at_work_on_is_not_shown_as_for_a_person_to_recover(
    own_cluster: LocalCluster, call_own: Call, numbers: Path
) -> None:
    """On all five bookies, so that no other one could take the copies."""
    made = call_own("ledger", "append", numbers, "-e", 5, "-w", 3, "-a", 2, "--json").json
    lost = own_cluster.bookie_ids[0]
    own_cluster.stop_bookie(lost)
    by_hand = call_own("ledger", "show", made["ledger_id"]).out
    with connect_without_spark(own_cluster.metadata_uri) as bk:
        bk.context.store.underreplication.stand(process_name(), changed=lambda: None)
        before = call_own("ledger", "show", made["ledger_id"]).out
        bk.audit()
        after = call_own("ledger", "show", made["ledger_id"]).out
        remedy = findings(call_own)["fragments on lost bookies"]["remedy"]

    assert f" bookie recover {lost} --skip-open-ledgers\n" in by_hand
    assert "autorecovery takes it up when its auditor looks next" in before
    assert "autorecovery is at work on it" in remedy
    assert pasteable(remedy, ("--metadata-uri", own_cluster.metadata_uri)) in after
    assert "cannot be repaired now: a writable bookie outside its ensemble" in after
    assert "bookie recover" not in before + after


def test_a_partition_that_was_exchanged_is_noticed(
    own_cluster: LocalCluster, call_own: Call
) -> None:
    first, second = own_cluster.bookie_ids[:2]
    marker = own_cluster.root_of(first) / "BOOKIE"
    own_cluster.agent(first).pause()
    marker.chmod(0o644)
    marker.write_bytes((own_cluster.root_of(second) / "BOOKIE").read_bytes())

    found = findings(call_own)[f"bookie {first}"]
    marker.unlink()
    shown = call_own("bookie", "show", first, "--json").json

    assert found["verdict"] == "problem"
    assert "wiped, replaced or mounted wrongly" in found["detail"]
    assert "holds no BOOKIE marker" in shown["storage"]
    assert call_own("bookie", "show", second, "--json").json["storage"] == "answers"


def test_a_bookie_whose_cookie_is_gone_gets_it_back(
    own_cluster: LocalCluster, call_own: Call
) -> None:
    bookie = own_cluster.bookie_ids[0]
    with connect_without_spark(own_cluster.metadata_uri) as bk:
        cookie = bk.context.store.read_cookie(bookie)
        assert cookie is not None
        bk.context.store.delete_cookie(bookie, cookie.version)

    found = findings(call_own)[f"bookie {bookie}"]
    command = found["remedy"].split("spark-bookkeeper ")[1].split()
    done = call_own(*command, "--yes")

    assert (found["verdict"], done.code) == ("problem", 0)
    with connect_without_spark(own_cluster.metadata_uri) as bk:
        again = bk.context.store.read_cookie(bookie)
    assert there(again).value == cookie.value
    # Its agent may have seen that it was gone, and takes new data again after its next look.
    assert findings(call_own)[f"bookie {bookie}"]["verdict"] != "problem"


def test_a_cluster_that_cannot_be_reached_is_exit_code_2(
    cluster: LocalCluster, call_at: Callable[[str], Call]
) -> None:
    call = call_at(cluster.metadata_uri.replace("/ledgers", "/nothing-here"))

    done = call("doctor")

    assert (done.code, "cluster init" in done.out) == (2, True)


def test_a_zookeeper_that_refuses_who_asks_is_a_row_of_the_table(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_store(*_: object, **__: object) -> None:
        raise MetadataError("127.0.0.1:2181 refused who this is")

    monkeypatch.setattr(Connection, "open_store", open_store)

    done = call("doctor")

    assert done.code == 2
    assert "refused who this is" in done.out
    assert "--zk-option" in done.out


@pytest.mark.parametrize(
    ("uri", "remedy"),
    [
        ("zk+hierarchical://127.0.0.1:21181/ledgers", "local start --directory DIR"),
        ("zk://zk1.example.com:2181/ledgers", "is ZooKeeper running"),
    ],
)
def test_where_nobody_answers_the_remedy_fits_the_address(uri: str, remedy: str) -> None:
    finding = doctor._unreachable(MetadataUnavailableError("ZooKeeper did not answer"), uri)

    assert finding.verdict == "problem"
    assert remedy in there(finding.remedy)


def test_without_a_cluster_this_machine_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(METADATA_URI_VARIABLE, raising=False)

    assert run(["doctor"]) == 0
    assert "local start" in capsys.readouterr().out


def test_a_machine_without_java_is_told_what_brings_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from spark_bookkeeper.doctor import machine as module
    from spark_bookkeeper.errors import MissingRequirementError

    def none() -> Path:
        raise MissingRequirementError("no Java 17 or newer on this machine")

    monkeypatch.setattr(module, "java_home", none)
    monkeypatch.delenv(METADATA_URI_VARIABLE, raising=False)

    assert run(["doctor"]) == 1
    assert "spark-bookkeeper[local]" in capsys.readouterr().out


def test_python_is_told_the_same_as_the_command_line(cluster: LocalCluster, call: Call) -> None:
    with connect_without_spark(cluster.metadata_uri) as bk:
        told = bk.doctor()

    assert told
    assert told.is_healthy
    assert {each.check for each in told.findings} == set(findings(call))
    assert told.to_arrow().column_names == ["check", "verdict", "detail", "remedy"]
    assert told.to_dict()["healthy"] is True
    assert "<table>" in told._repr_html_()


def test_what_needs_care_is_what_a_person_reads_first() -> None:
    lost = Diagnosis("bookie a:1", "problem", "lost: not registered", "start its agent again")
    told = Diagnoses((Diagnosis("python", "ok", "3.12"), lost))

    assert not told
    assert str(told) == (
        "problem: bookie a:1: lost: not registered\n  to do: start its agent again"
    )
    assert told.remedies == ["bookie a:1: start its agent again"]
    assert "&lt;" in Diagnoses((Diagnosis("x", "ok", "<b>"),))._repr_html_()
