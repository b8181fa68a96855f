"""Stopping a writer, and deciding about its ledger later."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.fencing import Fencing, fence_ledger
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import LedgerError, MetadataFormatError, NoSuchLedgerError
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.ground import Ground
from spark_bookkeeper.testing.rows import wait_for_every_copy
from tests.worlds import USUAL


def opened(ground: Ground, quorum: Quorum = USUAL) -> LedgerWriter:
    """A ledger with one entry, whose writer hears nothing from the metadata store any more."""
    writer = lifecycle.create_ledger(ground.client(), quorum)
    writer.append(b"0")
    wait_for_every_copy(writer)  # so that none is on its way, and meets a fence
    writer._context.store.close()
    return writer


def test_a_fenced_writer_adds_nothing_and_its_ledger_is_not_closed(ground: Ground) -> None:
    writer = opened(ground)
    ledger_id, bookies = writer.ledger_id, writer.metadata.last_fragment.ensemble

    plan = fence_ledger(ground.context, ledger_id, dry_run=True)
    assert writer.append(b"1") == 1
    wait_for_every_copy(writer)
    done = [fence_ledger(ground.context, ledger_id) for _ in range(2)]

    not_asked = dict.fromkeys(bookies, "a dry run: nothing was changed")
    assert plan == Fencing(ledger_id, "OPEN", (), not_asked, is_stopped=False)
    assert done == [Fencing(ledger_id, state, bookies) for state in ("OPEN", "IN_RECOVERY")]
    with pytest.raises(LedgerError, match="fenced by another client"):
        writer.append(b"2")
    assert ground.cluster.ledgers[ledger_id].value.state.name == "IN_RECOVERY"
    reader = lifecycle.open_ledger(ground.context, ledger_id)
    assert [entry.payload for entry in reader.entries()] == [b"0", b"1"]
    for is_dry in (True, False):
        assert fence_ledger(ground.context, ledger_id, dry_run=is_dry).state == "CLOSED"


@pytest.mark.parametrize(
    ("quorum", "away", "is_stopped"),
    [
        (USUAL, [0], True),
        (USUAL, [0, 1], False),
        (Quorum(4, 2, 2), [0, 2], True),
        (Quorum(4, 2, 2), [0, 1], False),
        (Quorum(1, 1, 1), [0], False),
    ],
)
def test_a_writer_is_stopped_when_enough_of_every_write_set_are_fenced(
    ground: Ground, quorum: Quorum, away: Sequence[int], is_stopped: bool
) -> None:
    writer = opened(ground, quorum)
    bookies = writer.metadata.last_fragment.ensemble
    for position in away:
        ground.stop(bookies[position])

    done = fence_ledger(ground.context, writer.ledger_id)

    assert list(done.not_fenced) == [bookies[position] for position in away]
    assert {*done.fenced, *done.not_fenced} == {*bookies}
    assert done.is_stopped == is_stopped


def test_what_is_not_there_or_not_ours_is_refused(ground: Ground) -> None:
    writer = opened(ground)
    foreign = writer.metadata.with_custom(**{"spark-bookkeeper.encoding": b"{"})
    ground.cluster.recreate_by_another_tool(writer.ledger_id, foreign)

    with pytest.raises(MetadataFormatError):
        fence_ledger(ground.context, writer.ledger_id)
    with pytest.raises(NoSuchLedgerError):
        fence_ledger(ground.context, LedgerId(424242))
    assert ground.cluster.ledgers[writer.ledger_id].value.state.name == "OPEN"
