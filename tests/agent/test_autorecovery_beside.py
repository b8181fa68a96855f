"""``bookie start --autorecovery``: what is lost elsewhere comes to the agent's own bookies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.session import BookKeeper
from tests.support.program import Program, until
from tests.support.rows import wait_for_every_copy
from tests.support.sessions import connect_without_spark

pytestmark = [pytest.mark.integration, pytest.mark.full]

OWN = (BookieId("127.0.0.1:4181"), BookieId("127.0.0.1:4182"))

CONF = """\
http_host = ""
open_ledger_grace_ms = 86_400_000
"""


@pytest.fixture
def three(cluster_of: Callable[[int], LocalCluster]) -> LocalCluster:
    """Three bookies without a worker beside them."""
    return cluster_of(3)


@pytest.fixture
def bk(three: LocalCluster) -> Iterator[BookKeeper]:
    with connect_without_spark(three.metadata_uri) as connected:
        yield connected


@pytest.fixture
def agent(three: LocalCluster, tmp_path: Path) -> Iterator[Program]:
    """An agent of two partitions, with autorecovery."""
    (tmp_path / "agent.toml").write_text(CONF)
    roots = [tmp_path / "1", tmp_path / "2"]
    for root in roots:
        root.mkdir()
    named = [f"{bookie}={root}" for bookie, root in zip(OWN, roots, strict=True)]
    environment = {
        "SPARK_BOOKKEEPER_METADATA_URI": three.metadata_uri,
        "SPARK_BOOKKEEPER_CONF": str(tmp_path / "agent.toml"),
    }
    log = tmp_path / "agent.log"
    running = Program(log, "bookie", "start", *named, "--autorecovery", environment=environment)
    try:
        for bookie in OWN:
            running.wait_for(f"bookie {bookie} serves")
        yield running
    finally:
        if running.is_running:
            running.kill()


def written_on(bk: BookKeeper, members: set[str], *, close: bool = True) -> int:
    """A ledger on just these bookies; what was made on others is deleted again.

    One that is not closed was left by a writer that does nothing any more.
    """
    while True:
        writer = bk.create_ledger()
        writer.append(b"something")
        wait_for_every_copy(writer)
        is_here = writer.metadata.bookies() == members
        if close or not is_here:
            writer.close()
        else:
            writer.abandon()
        if is_here:
            return writer.ledger_id
        bk.delete_ledger(writer.ledger_id)


def members_of(bk: BookKeeper, ledger_id: int) -> set[str]:
    return {str(b) for fragment in bk.ledger(ledger_id).fragments for b in fragment.ensemble}


def is_without(bk: BookKeeper, ledger_id: int, bookie: str) -> bool:
    return bookie not in members_of(bk, ledger_id)


def test_an_agent_replicates_to_its_own_bookies_with_a_worker_for_each(
    three: LocalCluster, bk: BookKeeper, agent: Program
) -> None:
    lost, kept, unattended = sorted(
        r.bookie_id for r in bk.context.store.registrations() if r.bookie_id not in OWN
    )
    first, second = OWN
    # Each of them lacks a bookie that is beside one worker, and has the other one; any of them
    # could go to the bookie beside which there is no worker.
    for_second = [written_on(bk, {lost, kept, first}) for _ in range(3)]
    for_first = [written_on(bk, {lost, kept, second}) for _ in range(3)]
    open_ledger = written_on(bk, {lost, kept, first}, close=False)

    three.stop_bookie(lost, destroy=True)

    for ledger_id in (*for_second, *for_first):
        until(partial(is_without, bk, ledger_id, lost), "copied")
        assert members_of(bk, ledger_id) == {kept, first, second}, f"nothing is on {unattended}"

    # And with its own configuration: the writer of an open ledger is given a day.
    def tried() -> list[dict[str, object]]:
        rows = bk.underreplicated_arrow().to_pylist()
        return [row for row in rows if row["next_try_at"] is not None]

    until(lambda: [row["ledger_id"] for row in tried()] == [open_ledger], "it waits")
    (row,) = bk.underreplicated_arrow().to_pylist()
    assert (row["next_try_at"] - row["marked_at"]).total_seconds() > 80_000
    assert bk.check_ledgers([*for_first, *for_second], percentage=100).is_complete
    assert agent.stop() == 0, agent.said
    tree = bk.context.store.underreplication
    assert (tree.auditor(), dict(tree.locks())) == (None, {})
