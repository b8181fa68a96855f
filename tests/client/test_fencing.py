"""Stopping a writer, and deciding about its ledger later."""

from __future__ import annotations

import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.fencing import Fencing, fence_ledger
from spark_bookkeeper.client.ledger import ENCODING
from spark_bookkeeper.errors import LedgerFencedError, MetadataFormatError
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.ground import Ground
from tests.client.test_deletion import cut_off, opened
from tests.support.rows import wait_for_every_copy
from tests.worlds import USUAL


def test_a_fenced_writer_adds_nothing_and_its_ledger_is_not_closed(ground: Ground) -> None:
    writer = opened(ground)
    cut_off(writer)  # so that it hears of it by the fence alone
    ledger_id, bookies = writer.ledger_id, writer.metadata.last_fragment.ensemble

    plan = fence_ledger(ground.context, ledger_id, dry_run=True)
    assert (plan.state, plan.is_stopped, writer.append(b"1")) == ("OPEN", False, 1)
    wait_for_every_copy(writer)
    done = [fence_ledger(ground.context, ledger_id) for _ in range(2)]

    assert done == [Fencing(ledger_id, state, bookies) for state in ("OPEN", "IN_RECOVERY")]
    with pytest.raises(LedgerFencedError):
        writer.append(b"2")
    reader = lifecycle.open_ledger(ground.context, ledger_id)
    assert [entry.payload for entry in reader.entries()] == [b"0", b"1"]
    assert fence_ledger(ground.context, ledger_id) == Fencing(ledger_id, "CLOSED")


@pytest.mark.parametrize(
    ("quorum", "away", "is_stopped"),
    [
        (USUAL, [0], True),
        (USUAL, [0, 1], False),
        (Quorum(4, 2, 2), [0, 2], True),
        (Quorum(4, 2, 2), [0, 1], False),
    ],
)
def test_a_writer_is_stopped_when_enough_of_every_write_set_are_fenced(
    ground: Ground, quorum: Quorum, away: list[int], is_stopped: bool
) -> None:
    writer = opened(ground, quorum)
    lost = [writer.metadata.last_fragment.ensemble[position] for position in away]
    for bookie in lost:
        ground.stop(bookie)

    done = fence_ledger(ground.context, writer.ledger_id)

    assert (list(done.not_fenced), done.is_stopped) == (lost, is_stopped)
    assert len(done.fenced) == quorum.ensemble_size - len(lost)


def test_another_clients_ledger_is_refused_and_left_alone(ground: Ground) -> None:
    writer = opened(ground)
    foreign = writer.metadata.with_custom(**{ENCODING: b"{"})
    ground.cluster.recreate_by_another_tool(writer.ledger_id, foreign)

    with pytest.raises(MetadataFormatError):
        fence_ledger(ground.context, writer.ledger_id)
    assert ground.cluster.ledgers[writer.ledger_id].value.state.name == "OPEN"
