"""Emptying a bookie: what remains, what is in the way, and that nothing new comes meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spark_bookkeeper.agent.decommission import (
    ROUNDS_MAX,
    DecommissionReport,
    decommission_bookie,
    drain_bookie,
)
from spark_bookkeeper.agent.readonly import read_order
from spark_bookkeeper.errors import InvalidArgumentError, MetadataFormatError
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.check_ledgers import check_ledgers
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import METADATA, Ground, InlineRuntime
from tests.worlds import failing, there, written


def obey(ground: Ground, bookie: BookieId) -> None:
    """What an agent does at its next probe."""

    def look(place: str, operation: str, path: str) -> None:
        if place == METADATA and operation == "registrations":
            ground.before.remove(look)
            if read_order(ground.client().store, bookie) is not None:
                ground.start(bookie, is_readonly=True)
            ground.before.append(look)

    ground.before.append(look)


def drained(ground: Ground, bookie: BookieId, *, dry_run: bool = False) -> DecommissionReport:
    client = ground.client(InlineRuntime())
    return drain_bookie(client, LocalRunner(client), bookie, dry_run=dry_run)


def test_a_drained_bookie_is_read_only_empty_and_still_known(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=5)
    writers = [written(ground), written(ground, quorum=Quorum(4, 3, 2), close=False)]
    bookie = writers[0].metadata.last_fragment.ensemble[0]
    obey(ground, bookie)

    plan = drained(ground, bookie, dry_run=True)
    assert read_order(ground.context.store, bookie) is None
    report = drained(ground, bookie)

    assert {row.status for row in plan.rows} == {"planned"}
    assert report.is_complete, report.blocked_by
    assert report.remaining == ()
    client = ground.client()
    assert there(read_order(client.store, bookie)).reason == "it is drained"
    assert client.bookies.registrations()[bookie].is_readonly
    assert client.store.read_cookie(bookie) is not None
    assert check_ledgers(client, LocalRunner(client), None, 100).is_complete
    for writer in writers:
        assert bookie not in client.store.read_ledger(writer.ledger_id).value.bookies()


def test_a_bookie_that_is_drained_while_it_is_down_takes_nothing_when_it_comes_back(
    ground: Ground,
) -> None:
    bookie = written(ground).metadata.last_fragment.ensemble[0]
    ground.stop(bookie)

    report = drained(ground, bookie)

    assert report.is_complete, report.blocked_by
    assert there(read_order(ground.context.store, bookie)).reason == "it is drained"


def test_what_has_no_other_place_remains_and_says_why(tmp_path: Path) -> None:
    ground = Ground(tmp_path, bookies=3)
    writer = written(ground)
    bookie = writer.metadata.last_fragment.ensemble[0]
    obey(ground, bookie)

    report = drained(ground, bookie)

    assert not report.is_complete
    assert report.remaining == (writer.ledger_id,)
    assert "1 bookie is needed" in there(report.blocked_by)
    assert report.to_dict()["remaining"] == [writer.ledger_id]


def test_an_agent_that_does_not_obey_is_in_the_way(ground: Ground) -> None:
    writer = written(ground)
    bookie = writer.metadata.last_fragment.ensemble[0]

    report = drained(ground, bookie)

    assert report.remaining == ()
    assert not report.is_complete
    assert "has not made it read-only" in (report.blocked_by or "")


def test_decommission_drains_a_living_bookie_and_forgets_it_when_it_is_stopped(
    ground: Ground,
) -> None:
    writer = written(ground)
    bookie = writer.metadata.last_fragment.ensemble[0]
    obey(ground, bookie)
    client = ground.client(InlineRuntime())
    runner = LocalRunner(client)

    with pytest.raises(InvalidArgumentError, match="--drain"):
        decommission_bookie(client, runner, bookie)
    living = decommission_bookie(client, runner, bookie, drain=True)
    ground.before.clear()
    ground.stop(bookie)
    ended = decommission_bookie(client, runner, bookie)

    assert living.remaining == ()
    assert "alive" in (living.blocked_by or "")
    assert ended.is_complete
    assert client.store.read_cookie(bookie) is None


def test_a_bookie_is_not_forgotten_while_a_ledger_cannot_be_read(ground: Ground) -> None:
    """It may count on it: nobody can say."""
    writer = written(ground)
    bookie = writer.metadata.last_fragment.ensemble[0]
    ground.stop(bookie)
    garbage = failing("read_ledger", lambda path: MetadataFormatError("b'garbage'", path=path))

    client = ground.client(InlineRuntime(), garbage)
    report = decommission_bookie(client, LocalRunner(client), bookie)

    assert not report.is_complete
    assert "garbage" in (report.blocked_by or "")
    assert ground.client().store.read_cookie(bookie) is not None


@pytest.mark.parametrize("job", [drain_bookie, decommission_bookie])
def test_the_limit_of_bytes_per_second_holds(
    ground: Ground, job: Callable[..., DecommissionReport]
) -> None:
    writers = [written(ground) for _ in range(4)]
    bookie = writers[0].metadata.last_fragment.ensemble[0]
    ground.stop(bookie)
    runtime = InlineRuntime()
    client = ground.client(runtime)
    began = runtime.now()

    report = job(client, LocalRunner(client), bookie, bytes_per_second=4)

    copied = sum(row.bytes for row in report.rows)
    assert report.is_complete
    assert copied >= 3
    assert runtime.now() - began >= copied / 4


def test_a_bookie_that_goes_on_taking_data_is_left_after_some_rounds(ground: Ground) -> None:
    """Its agent does not obey, and a ledger is made on it after each round."""
    every = Quorum(4, 4, 2)
    bookie = written(ground, quorum=every).metadata.last_fragment.ensemble[0]
    ground.add_bookie()
    rounds = 0

    def take(place: str, operation: str, path: str) -> None:
        """What names it is counted again at the end of every round."""
        nonlocal rounds
        if operation == "ledger_ids" and is_begun:
            rounds += 1
            if rounds % 2 == 0:
                ground.before.remove(take)
                while bookie not in written(ground, quorum=every).metadata.bookies():
                    pass
                ground.before.append(take)

    is_begun = False
    ground.before.append(take)
    is_begun = True

    report = drained(ground, bookie)

    assert rounds == 2 * (1 + ROUNDS_MAX)
    assert report.remaining
    assert report.blocked_by == "it got new data meanwhile"


def test_a_bookie_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="is unknown"):
        drained(Ground(tmp_path, bookies=1), BookieId("127.0.0.1:9999"))


def test_a_bookie_that_comes_back_and_takes_data_meanwhile_is_in_the_way_and_nothing_else(
    ground: Ground,
) -> None:
    """What was copied until then is told."""
    every = Quorum(4, 4, 2)
    writer = written(ground)
    bookie = writer.metadata.last_fragment.ensemble[0]
    ground.stop(bookie)
    rounds = 0

    def come_back(place: str, operation: str, path: str) -> None:
        """What names it is counted again at the end of a round."""
        nonlocal rounds
        if operation == "ledger_ids":
            rounds += 1
            if rounds == 2:
                ground.before.clear()
                ground.start(bookie)
                written(ground, quorum=every)

    ground.before.append(come_back)

    client = ground.client(InlineRuntime())
    report = decommission_bookie(client, LocalRunner(client), bookie)

    assert writer.ledger_id in {row.ledger_id for row in report.rows}
    assert report.remaining
    assert "alive" in (report.blocked_by or "")
