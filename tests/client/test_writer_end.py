"""How a writer ends: closed, fenced or abandoned, and what it says of itself afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.recover.recovery import recover_ledger
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import (
    AppendFailedError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataUnavailableError,
    NoSuchLedgerError,
)
from spark_bookkeeper.protocol.metadata import LedgerState
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.ground import METADATA, Ground
from tests.client.gates import Gate, flag_in_recovery, hold_adds
from tests.hooks import NO_ANSWER, At
from tests.support.rows import wait_for_every_copy
from tests.worlds import USUAL, payloads

# The cases of close


def test_an_empty_ledger_is_closed_at_minus_1(ground: Ground) -> None:
    with lifecycle.create_ledger(ground.context, USUAL) as writer:
        pass

    assert (writer.metadata.last_entry_id, writer.metadata.length_bytes) == (-1, 0)
    assert payloads(ground, writer) == []


def test_closing_a_ledger_that_was_closed_at_the_same_end_succeeds(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"a")
    wait_for_every_copy(writer)  # so that none is on its way, and meets the fence
    recover_ledger(ground.client(), writer.ledger_id)

    writer.close()

    assert writer.metadata.is_closed
    assert payloads(ground, writer) == [b"a"]


def test_r14_a_close_whose_answer_was_lost_is_found_to_have_succeeded(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"a")
    lost = At("write_ledger", NO_ANSWER, only=[0])

    ground.after.append(lost)
    writer.close()

    assert lost.met
    assert ground.context.store.read_ledger(writer.ledger_id).version == 1


def test_an_exception_in_the_block_leaves_the_end_to_recovery(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)

    def fail() -> None:
        with writer:
            writer.append(b"a")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    state = ground.context.store.read_ledger(writer.ledger_id).value.state
    assert state is LedgerState.OPEN
    assert payloads(ground, writer) == [b"a"]
    with pytest.raises(AppendFailedError):
        writer.append(b"b")


def test_closing_while_a_bookie_is_being_replaced_leaves_no_channel_behind(ground: Ground) -> None:
    before = threading.active_count()
    writer = lifecycle.create_ledger(ground.context, Quorum(3, 3, 2))
    writer.append(b"a")
    wait_for_every_copy(writer)
    gate = Gate("registrations", METADATA)
    victim = writer.metadata.last_fragment.ensemble[0]
    slow = Gate("put_if_absent", victim)
    ground.before += [gate, slow]
    ground.stop(victim, destroy=True)
    assert writer.append(b"b") == 1  # the other two have it before the loss is noticed
    slow.open()
    assert gate.reached.wait(60)
    writer.close()
    gate.open()

    assert writer.metadata.is_closed
    ground.until(lambda: threading.active_count() <= before)


# Fencing


def test_a_writer_that_is_fenced_is_told_that_nothing_is_certain(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"a")
    reader = lifecycle.open_ledger(ground.client(), writer.ledger_id)

    with pytest.raises(LedgerFencedError) as caught:
        writer.append(b"b")

    assert "may or may not be written" in caught.value.message
    assert "do not append the same rows elsewhere" in caught.value.message
    assert reader.metadata.last_entry_id == 0
    with pytest.raises(LedgerFencedError):
        writer.append(b"c")
    assert writer.last_add_confirmed == 0


def test_a_frozen_writer_that_continues_after_recovery_acknowledged_nothing_beyond_the_end(
    ground: Ground,
) -> None:
    for sizes in ((3, 3, 2), (4, 3, 2), (2, 2, 1), (3, 3, 3)):
        writer = lifecycle.create_ledger(ground.context, Quorum(*sizes))
        told: list[int] = []
        for i in range(20):
            writer.append(b"%d" % i)
        told.append(writer.last_add_confirmed)
        gate = Gate("put_if_absent", *ground.bookie_ids)
        frozen = ground.client(ground.runtime, gate)
        writer._pipeline._context.bookies._opened.clear()
        writer._pipeline._context.bookies._opened.update(
            {ground._uri(b): frozen.bookies._open(b) for b in ground.bookie_ids}
        )
        for channel in writer._pipeline._channels.by_position.values():
            channel._replica = frozen.bookies.replica(channel.bookie, writer._pipeline.ledger)
        futures = [writer.append_async(b"%d" % (20 + i)) for i in range(5)]
        assert gate.reached.wait(60)

        reader = lifecycle.open_ledger(ground.client(), writer.ledger_id)
        gate.open()

        for future in futures:
            error = future.exception(60)
            if error is None:
                told.append(future.result())
            else:
                assert isinstance(error, LedgerFencedError)
        assert reader.metadata.last_entry_id is not None
        assert max(told) <= reader.metadata.last_entry_id
        with pytest.raises(LedgerFencedError):
            writer.append(b"more")
        assert payloads(ground, writer) == [
            b"%d" % i for i in range(reader.metadata.last_entry_id + 1)
        ]
        ground.context.bookies._opened.clear()


def test_a_writer_that_runs_out_of_bookies_is_told_that_another_client_has_its_ledger(
    ground: Ground,
) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"acknowledged")
    gate = hold_adds(ground, *ground.bookie_ids)
    pending = writer.append_async(b"pending")
    assert gate.reached.wait(60)
    other = ground.client()
    flag_in_recovery(other, writer)
    for bookie in ground.bookie_ids:
        ground.stop(bookie)
    gate.open()

    with pytest.raises(LedgerFencedError):
        pending.result(60)


# What a writer calls itself


def close(ground: Ground, writer: LedgerWriter) -> None:
    writer.close()
    writer.close()
    assert payloads(ground, writer) == [b"a"]
    writer.abandon()  # too late


def abandon(ground: Ground, writer: LedgerWriter) -> None:
    writer.abandon()
    writer.close()  # nothing is left to close


def meet_a_fence(ground: Ground, writer: LedgerWriter) -> None:
    lifecycle.open_ledger(ground.client(), writer.ledger_id)
    with pytest.raises(LedgerFencedError):
        writer.append(b"b")


def meet_a_fence_and_abandon(ground: Ground, writer: LedgerWriter) -> None:
    meet_a_fence(ground, writer)
    writer.abandon()


def be_fenced_at_close(ground: Ground, writer: LedgerWriter) -> None:
    flag_in_recovery(ground.client(), writer)
    with pytest.raises(LedgerFencedError):
        writer.close()
    state = ground.context.store.read_ledger(writer.ledger_id).value.state
    assert state is LedgerState.IN_RECOVERY


def be_closed_elsewhere(ground: Ground, writer: LedgerWriter) -> None:
    store = ground.context.store
    found = store.read_ledger(writer.ledger_id)
    first = found.value.last_fragment.first_entry_id
    store.write_ledger(writer.ledger_id, found.value.closed(first, 99), found)
    writer.append(b"b")
    with pytest.raises(LedgerClosedError, match="closed by another client at entry 0") as caught:
        writer.close()
    assert caught.value.last_entry_id == 0


def be_deleted(ground: Ground, writer: LedgerWriter) -> None:
    store = ground.context.store
    store.delete_ledger(writer.ledger_id, store.read_ledger(writer.ledger_id))
    with pytest.raises(NoSuchLedgerError):
        writer.close()


def lose_every_bookie(ground: Ground, writer: LedgerWriter) -> None:
    for bookie in ground.bookie_ids:
        ground.stop(bookie)
    with pytest.raises(AppendFailedError):
        writer.append(b"b")


def lose_zookeeper_at_close(ground: Ground, writer: LedgerWriter) -> None:
    ground.before.append(At(None, NO_ANSWER, on=METADATA))
    with pytest.raises(MetadataUnavailableError):
        writer.close()


@pytest.mark.parametrize(
    ("happens", "state", "error", "says"),
    [
        (close, "closed", LedgerClosedError, "is closed"),
        (abandon, "abandoned", AppendFailedError, "was abandoned"),
        (meet_a_fence, "fenced", LedgerFencedError, "was fenced by another client"),
        (meet_a_fence_and_abandon, "fenced", LedgerFencedError, "was fenced by another client"),
        (be_fenced_at_close, "fenced", LedgerFencedError, "was fenced by another client"),
        (be_closed_elsewhere, "closed by another client", LedgerClosedError, "another client"),
        (be_deleted, "deleted", NoSuchLedgerError, "was DELETED"),
        (lose_every_bookie, "failed", AppendFailedError, "takes no more entries"),
        (lose_zookeeper_at_close, "closing", LedgerClosedError, "is closing"),
    ],
)
def test_a_writer_says_what_became_of_it_and_every_later_call_says_the_same(
    ground: Ground,
    happens: Callable[[Ground, LedgerWriter], None],
    state: str,
    error: type[Exception],
    says: str,
) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"a")
    assert f"ledger_id={writer.ledger_id}, writing, " in repr(writer)

    happens(ground, writer)

    assert f"ledger_id={writer.ledger_id}, {state}, " in repr(writer)
    assert f"<th>writer</th><td>{state}</td>" in writer._repr_html_()
    for _ in range(2):
        for append in (writer.append, writer.append_async):
            with pytest.raises(error, match=says):
                append(b"z")
    assert f", {state}, " in repr(writer)
