"""Apache BookKeeper's own shell and auditor, and our autorecovery, on one tree."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from spark_bookkeeper.agent.agent import BookieAgent
from spark_bookkeeper.agent.readonly import set_readonly
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.config import AutorecoveryConfig
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.local_cluster.embedded_zookeeper import EmbeddedZooKeeper
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.metadata.underreplication import Changed, Holder
from spark_bookkeeper.metadata.zookeeper.underreplication_nodes import ZooKeeperUnderreplication
from spark_bookkeeper.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.replication.report import Outcome
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.session import BookKeeper
from spark_bookkeeper.storage.local import LocalStorage
from tests.peer import peer
from tests.peer.shell import Shell
from tests.support.rows import check_numbered_ledger, numbered
from tests.support.sessions import connect_without_spark

pytestmark = [pytest.mark.peer, pytest.mark.integration, pytest.mark.timeout(900)]

CONFIG = AutorecoveryConfig(open_ledger_grace_ms=500, retry_first_ms=200, retry_most_ms=500)


@pytest.fixture
def cluster(tmp_path: Path, guests: None) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "c", bookies=4) as running:
        yield running


@pytest.fixture
def bk(cluster: LocalCluster) -> Iterator[BookKeeper]:
    with connect_without_spark(cluster.metadata_uri) as connected:
        yield connected


@pytest.fixture
def shell(bk: BookKeeper, tmp_path: Path) -> Shell:
    return Shell(bk.metadata_uri, tmp_path)


def until(holds: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"after {seconds} s still not: {what}"
        time.sleep(0.05)


def closed_ledger(bk: BookKeeper) -> tuple[LedgerId, list[str]]:
    writer = bk.create_ledger()
    for number in range(5):
        writer.append(numbered(number))
    writer.close()
    return LedgerId(writer.ledger_id), list(writer.metadata.last_fragment.ensemble)


def test_the_peers_shell_reads_what_autorecovery_wrote(
    cluster: LocalCluster, bk: BookKeeper, shell: Shell
) -> None:
    ledger_id, (lost, *_) = closed_ledger(bk)
    assert shell.refuses("whoisauditor"), "there is none"
    bk.autorecovery.lost_bookie_recovery_delay = 0
    cluster.stop_bookie(lost, destroy=True)
    bk.audit()
    holder = Holder("spark-bookkeeper@here")
    bk.context.store.underreplication.lock(ledger_id, holder)

    said = shell.says("listunderreplicated", "-printmissingreplica", "-printreplicationworkerid")
    assert str(ledger_id) in said
    assert lost in said
    assert "spark-bookkeeper@here" in said
    lines, complaints = peer.judge(shell.address, shell.root)
    assert complaints == ""
    (task,) = [line for line in lines if line["kind"] == "task"]
    assert (task["ledger"], task["replicas"]) == (ledger_id, [lost])
    assert task["worker"] == "spark-bookkeeper@here"
    assert abs(task["ctime"] / 1000 - time.time()) < 600
    (said_of,) = [line for line in lines if line["kind"] == "autorecovery"]
    assert (said_of["enabled"], said_of["delay"]) == (True, 0)

    bk.context.store.underreplication.unlock(holder)
    running = bk.autorecovery.start(config=CONFIG)
    until(lambda: bk.underreplicated_arrow().num_rows == 0, "made good")
    assert "spark-bookkeeper@" in shell.says("whoisauditor")
    assert "ledger count: 0" in shell.says("listunderreplicated")
    lines, complaints = peer.judge(shell.address, shell.root)
    assert complaints == ""
    assert [line["name"] for line in lines if line["kind"] == "auditor"] == [
        bk.autorecovery.who_is_auditor()
    ]
    running.stop()


def test_nothing_is_done_while_the_peers_shell_has_disabled_it(
    cluster: LocalCluster, bk: BookKeeper, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No delay keeps the loss from being published: the switch alone does."""
    ledger_id, (lost, *_) = closed_ledger(bk)
    looks: list[str] = []
    is_enabled = ZooKeeperUnderreplication.is_enabled

    def looked(self: ZooKeeperUnderreplication, changed: Changed | None = None) -> bool:
        looks.append(threading.current_thread().name)
        return is_enabled(self, changed)

    monkeypatch.setattr(ZooKeeperUnderreplication, "is_enabled", looked)
    shell.says("autorecovery", "-disable")
    assert not bk.autorecovery.status().is_enabled
    assert "disabled" in shell.says("autorecovery").lower()
    cluster.stop_bookie(lost, destroy=True)
    running = bk.autorecovery.start(config=CONFIG)
    until(lambda: "auditor" in looks, "the auditor has begun to look")
    cluster.add_bookie()
    until(lambda: looks.count("auditor") >= 2, "it has looked, and looks again")

    assert bk.underreplicated_arrow().num_rows == 0, "nothing is published"
    for work in (bk.audit, bk.rereplicate):
        with pytest.raises(InvalidArgumentError, match="autorecovery is disabled"):
            work()
    assert lost in bk.ledger(ledger_id).fragments[0].ensemble, "nothing was copied"
    shell.says("autorecovery", "-enable")
    assert bk.autorecovery.status().is_enabled
    until(
        lambda: lost not in bk.ledger(ledger_id).fragments[0].ensemble,
        "enabled by the peer, it is made good",
    )
    running.stop()


def test_we_obey_the_peers_shell(cluster: LocalCluster, bk: BookKeeper, shell: Shell) -> None:
    ledger_id, (lost, *_) = closed_ledger(bk)
    running = bk.autorecovery.start(config=CONFIG)
    until(lambda: running.is_auditor, "elected")
    shell.says("lostbookierecoverydelay", "-set", "3600")
    assert bk.autorecovery.lost_bookie_recovery_delay == 3600
    assert "3600" in shell.says("lostbookierecoverydelay", "-get")

    cluster.stop_bookie(lost, destroy=True)
    delayed = "auditor_NUM_BOOKIE_AUDITS_DELAYED_total"
    until(lambda: bk.metrics()[delayed] == 1, "the auditor has seen that the bookie is away")
    assert bk.underreplicated_arrow().num_rows == 0, "it has an hour to come back"
    assert lost in bk.ledger(ledger_id).fragments[0].ensemble, "nothing was copied"
    shell.says("triggeraudit")

    until(
        lambda: (
            bk.underreplicated_arrow().num_rows == 0
            and not any(lost in row["bookies"] for row in bk.ledgers_arrow().to_pylist())
        ),
        "the audit that the peer asked for led to copies",
    )
    assert bk.check_ledgers(percentage=100).is_complete
    running.stop()


def test_a_foreign_auditor_is_recognised_and_what_it_marks_is_done_here(
    cluster: LocalCluster, bk: BookKeeper, shell: Shell
) -> None:
    _, (lost, *_) = closed_ledger(bk)
    foreign = shell.start_autorecovery()
    try:
        until(lambda: bk.autorecovery.who_is_auditor() is not None, "the peer is auditor", 180)
        status = bk.autorecovery.status()
        assert status.auditor is not None
        assert "Apache BookKeeper" in (status.warning or "")
        cluster.stop_bookie(lost, destroy=True)
        until(lambda: bk.underreplicated_arrow().num_rows > 0, "the peer's auditor marks it")
        foreign.terminate()  # its worker cannot read our bookies, and holds locks in vain
        foreign.wait(60)
        running = bk.autorecovery.start(config=CONFIG)
        until(lambda: bk.underreplicated_arrow().num_rows == 0, "made good here")
        assert bk.check_ledgers(percentage=100).is_complete
        running.stop()
    finally:
        foreign.kill()
        foreign.wait()


def judged(bk: BookKeeper, shell: Shell) -> dict[str, list[dict[str, Any]]]:
    """What BookKeeper's classes read of the tree, by kind: everything, and as we mean it."""
    lines, complaints = peer.judge(shell.address, shell.root)
    assert complaints == ""
    seen: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        seen[line["kind"]].append(line)
    store = bk.context.store
    assert [line["id"] for line in seen["ledger"]] == list(store.ledger_ids())
    for line in seen["ledger"]:
        ours = store.read_ledger(LedgerId(line["id"])).value
        ensembles = {str(f.first_entry_id): list(f.ensemble) for f in ours.fragments}
        last = -1 if ours.last_entry_id is None else ours.last_entry_id
        assert (line["state"], line["last_entry_id"]) == (ours.state.name, last)
        assert line["fragments"] == ensembles
    assert {line["bookie"] for line in seen["cookie"]} == {
        cookie.value.bookie_id for cookie in store.cookies()
    }
    assert {line["id"] for line in seen["bookie"]} == {
        live.bookie_id for live in store.registrations()
    }
    return seen


def test_the_peers_classes_read_everything_after_each_of_its_occasions(
    tmp_path: Path, guests: None
) -> None:
    with (
        LocalCluster(tmp_path / "c", bookies=6) as cluster,
        connect_without_spark(cluster.metadata_uri) as bk,
    ):
        shell = Shell(bk.metadata_uri, tmp_path)

        def read_of(ledger_id: int) -> dict[str, Any]:
            (line,) = [x for x in judged(bk, shell)["ledger"] if x["id"] == ledger_id]
            return line

        kept, _ = closed_ledger(bk)
        writer = bk.create_ledger()
        ledger_id = int(writer.ledger_id)
        assert read_of(ledger_id)["state"] == "OPEN", "creation"

        writer.append(numbered(0))
        assert read_of(ledger_id)["fragments"].keys() == {"0"}, "appends"

        lost = writer.metadata.last_fragment.ensemble[0]
        cluster.stop_bookie(lost, destroy=True)
        until(
            lambda: writer.append(numbered(1)) > 0 and len(writer.metadata.fragments) > 1,
            "the writer has replaced it",
        )
        assert len(read_of(ledger_id)["fragments"]) > 1, "ensemble change"

        writer.abandon()
        end = bk.open_ledger(ledger_id).last_add_confirmed
        assert read_of(ledger_id)["last_entry_id"] == end, "recovery"

        bk.audit()
        tasks = judged(bk, shell)["task"]
        assert {task["ledger"] for task in tasks} >= {ledger_id}, "published"
        assert bk.rereplicate().is_complete
        again = judged(bk, shell)
        assert not again["task"], "re-replication"
        assert lost not in str([line["fragments"] for line in again["ledger"]])

        leaving = bk.ledger(ledger_id).fragments[0].ensemble[0]
        cluster.stop_bookie(leaving)
        assert bk.decommission_bookie(leaving).is_complete
        gone = judged(bk, shell)
        assert leaving not in {line["bookie"] for line in gone["cookie"]}, "decommission"
        assert leaving not in str([line["fragments"] for line in gone["ledger"]])

        bk.delete_ledger(ledger_id)
        assert [line["id"] for line in judged(bk, shell)["ledger"]] == [kept], "deletion"

        bk.autorecovery.disable()
        (said,) = judged(bk, shell)["autorecovery"]
        assert not said["enabled"], "autorecovery disabled"


def test_the_peers_shell_lists_ledgers_bookies_and_cookies_and_deletes(
    cluster: LocalCluster, bk: BookKeeper, shell: Shell
) -> None:
    ledger_id, _ = closed_ledger(bk)
    first, *others = cluster.bookie_ids
    set_readonly(bk.context.store, first, "for the judge", 0)
    until(
        lambda: any(live.is_readonly for live in bk.context.store.registrations()),
        "its agent has obeyed",
    )

    assert f"ledgerID: {ledger_id}" in shell.says("listledgers")
    writable, readonly = shell.says("listbookies", "-rw"), shell.says("listbookies", "-ro")
    assert [first in writable, first in readonly] == [False, True]
    assert all(each in writable and each not in readonly for each in others)
    assert str(cluster.root_of(first)) in shell.says("cookie_get", first)

    shell.says("deleteledger", "-ledgerid", str(ledger_id), "-force")

    assert bk.ledgers_arrow().num_rows == 0
    assert {row.status for row in bk.collect_garbage(False).rows} == {Outcome.DELETED}


def test_a_cluster_that_the_peers_shell_began_holds_our_ledgers(
    tmp_path: Path, host: EmbeddedZooKeeper
) -> None:
    with ExitStack() as ending:
        uri = f"zk://{host.address}/begun"
        shell = Shell(uri, tmp_path)
        shell.says("initnewcluster")
        runtime = ThreadRuntime()
        store = ending.enter_context(closing(ZooKeeperStore(uri, token=runtime.token)))
        for number in range(3):
            root = tmp_path / f"bookie-{number}"
            root.mkdir()
            name = BookieId(f"127.0.0.1:{3181 + number}")
            agent = BookieAgent(store, Partition(LocalStorage(root)), name, runtime)
            agent.start()
            ending.callback(agent.stop)
        with connect_without_spark(uri) as bk:
            ledger_id, _ = closed_ledger(bk)

            check_numbered_ledger(bk, ledger_id, 4, 5)
            judged(bk, shell)
            assert f"ledgerID: {ledger_id}" in shell.says("listledgers")
