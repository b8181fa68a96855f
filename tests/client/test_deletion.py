"""Deleting ledgers that somebody writes, wrote, or may come back to write."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.deletion import Deletion, delete_ledger
from spark_bookkeeper.client.ledger import ENCODING, WRITER
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import (
    InvalidArgumentError,
    LedgerError,
    MetadataFormatError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    RecoveryUndecidedError,
)
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing import ground as grounds
from spark_bookkeeper.testing import memory_store as memory
from spark_bookkeeper.testing.ground import Ground
from tests.hooks import NO_ANSWER, At
from tests.support.rows import wait_for_every_copy
from tests.worlds import USUAL


def opened(ground: Ground, quorum: Quorum = USUAL) -> LedgerWriter:
    """A ledger with one entry, whose writer has a session of its own."""
    writer = lifecycle.create_ledger(ground.client(), quorum)
    writer.append(b"0")
    wait_for_every_copy(writer)  # so that none is on its way, and meets a fence
    return writer


def cut_off(writer: LedgerWriter) -> None:
    """The writer's session ends, as it does when the process dies or is frozen for long."""
    writer._context.store.close()


def is_there(ground: Ground, writer: LedgerWriter) -> bool:
    return writer.ledger_id in ground.cluster.ledgers


def fails_at_once(ground: Ground, writer: LedgerWriter) -> Any:
    """How the next appends of a writer end."""
    with pytest.raises(LedgerError) as caught:
        ground.until(lambda: writer.append(b"1") < 0)
    return caught.value


def test_a_closed_ledger_is_deleted_and_deleting_it_again_is_no_error(ground: Ground) -> None:
    with opened(ground) as writer:
        pass
    ground.forget()

    for dry_run in (True, False):
        assert is_there(ground, writer)
        assert delete_ledger(ground.context, writer.ledger_id, dry_run=dry_run) == Deletion(
            writer.ledger_id, "CLOSED", length_bytes=1
        )
    assert {step.place for step in ground.steps} == {grounds.METADATA}
    assert delete_ledger(ground.context, writer.ledger_id) == Deletion(writer.ledger_id, None)
    assert delete_ledger(ground.context, 424242) == Deletion(424242, None)  # type: ignore[arg-type]
    assert not is_there(ground, writer)


def test_a_ledger_whose_writer_lives_is_refused_with_who_that_is(ground: Ground) -> None:
    writer = opened(ground)
    before = ground.cluster.ledgers[writer.ledger_id]

    with pytest.raises(InvalidArgumentError) as caught:
        delete_ledger(ground.context, writer.ledger_id)

    assert str(grounds.WRITER) in caught.value.message
    assert "even_if_alive=True" in caught.value.message
    assert ground.cluster.ledgers[writer.ledger_id] is before
    assert writer.append(b"1") == 1
    writer.close()


def test_a_ledger_whose_writer_is_not_known_is_refused(ground: Ground) -> None:
    writer = opened(ground)
    store = ground.context.store
    found = store.read_ledger(writer.ledger_id)
    custom = {k: v for k, v in found.value.custom_metadata.items() if k != WRITER}
    store.write_ledger(writer.ledger_id, replace(found.value, custom_metadata=custom), found)

    with pytest.raises(InvalidArgumentError, match="not known whether its writer lives"):
        delete_ledger(ground.context, writer.ledger_id)

    assert is_there(ground, writer)


@pytest.mark.parametrize("quorum", [USUAL, Quorum(4, 2, 2), Quorum(1, 1, 1)])
def test_a_living_writer_appends_nothing_more_to_what_was_deleted(
    ground: Ground, quorum: Quorum
) -> None:
    writer = opened(ground, quorum)
    cut_off(writer)  # so that it hears of the deletion by the fence alone

    deletion = delete_ledger(ground.context, writer.ledger_id, even_if_alive=True)

    assert deletion == Deletion(writer.ledger_id, "OPEN")
    with pytest.raises(LedgerError, match="fenced by another client"):
        writer.append(b"1")


def test_a_writer_that_meets_the_fence_is_told_that_the_ledger_was_deleted(ground: Ground) -> None:
    def silent(call: Callable[[], None]) -> None:
        """Nobody tells the writer's session of the deletion."""

    writer = opened(ground)
    store = writer._context.store
    assert isinstance(store, memory.MemoryStore)
    store.tell = silent

    delete_ledger(ground.context, writer.ledger_id, even_if_alive=True)

    with pytest.raises(NoSuchLedgerError, match="was DELETED") as caught:
        writer.append(b"1")
    assert "may or may not have been written" in caught.value.message
    assert "(up to 0)" in caught.value.message
    with pytest.raises(NoSuchLedgerError):
        writer.append(b"2")
    with pytest.raises(NoSuchLedgerError):
        writer.close()
    assert not is_there(ground, writer), "it is never made again"


def test_a_writer_hears_of_a_deletion_by_a_tool_that_fences_nothing(ground: Ground) -> None:
    writer = opened(ground)

    ground.context.store.delete_ledger(writer.ledger_id, None)

    assert isinstance(fails_at_once(ground, writer), NoSuchLedgerError)
    with pytest.raises(NoSuchLedgerError):
        writer.close()


def test_a_writer_hears_that_its_id_is_another_ledgers_now(ground: Ground) -> None:
    writer = opened(ground)
    other = opened(ground)

    ground.cluster.recreate_by_another_tool(writer.ledger_id, other.metadata)

    assert "was DELETED" in fails_at_once(ground, writer).message


def test_a_ledger_whose_writer_is_gone_is_fenced_before_it_is_deleted(ground: Ground) -> None:
    writer = opened(ground)
    cut_off(writer)

    deletion = delete_ledger(ground.context, writer.ledger_id)

    assert deletion == Deletion(writer.ledger_id, "OPEN")
    with pytest.raises(LedgerError):
        writer.append(b"1")  # it was only frozen, and comes back


def test_too_few_fenced_bookies_keep_a_ledger_unless_told_otherwise(ground: Ground) -> None:
    writer = opened(ground)
    cut_off(writer)
    lost = sorted(writer.metadata.last_fragment.ensemble[:2])
    for bookie in lost:
        ground.stop(bookie)

    with pytest.raises(RecoveryUndecidedError) as caught:
        delete_ledger(ground.context, writer.ledger_id)

    assert sorted(caught.value.blockers) == lost
    assert "was not deleted" in caught.value.message
    assert "IN_RECOVERY" in caught.value.message
    assert ground.cluster.ledgers[writer.ledger_id].value.state.name == "IN_RECOVERY"
    deletion = delete_ledger(ground.context, writer.ledger_id, even_if_alive=True)
    assert (deletion.state, sorted(deletion.not_fenced)) == ("IN_RECOVERY", lost)
    assert not is_there(ground, writer)


def test_a_ledger_none_of_whose_bookies_answers_is_deleted_when_told_so(ground: Ground) -> None:
    writer = opened(ground)
    for bookie in ground.bookie_ids:
        ground.stop(bookie, destroy=True)

    deletion = delete_ledger(ground.context, writer.ledger_id, even_if_alive=True)

    assert set(deletion.not_fenced) == set(writer.metadata.last_fragment.ensemble)
    assert not is_there(ground, writer)


def test_another_clients_ledger_is_deleted_when_told_so(ground: Ground) -> None:
    writer = opened(ground)
    store = ground.context.store
    found = store.read_ledger(writer.ledger_id)
    custom = {k: v for k, v in found.value.custom_metadata.items() if k != ENCODING}
    store.write_ledger(writer.ledger_id, replace(found.value, custom_metadata=custom), found)

    deletion = delete_ledger(ground.context, writer.ledger_id, even_if_alive=True)

    assert len(deletion.not_fenced) == 3
    assert not is_there(ground, writer)


def test_what_cannot_be_decoded_is_deleted_only_when_told_so(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = opened(ground)
    store = ground.context.store

    def unreadable(ledger_id: int) -> None:
        raise MetadataFormatError("/ledgers/7 holds no ledger metadata", path="/ledgers/7")

    monkeypatch.setattr(store, "read_ledger", unreadable)

    with pytest.raises(MetadataFormatError, match="even_if_alive=True") as caught:
        delete_ledger(ground.context, writer.ledger_id)
    assert caught.value.path == "/ledgers/7"
    assert is_there(ground, writer)
    deletion = delete_ledger(ground.context, writer.ledger_id, even_if_alive=True)
    assert deletion == Deletion(writer.ledger_id, "UNREADABLE")
    assert not is_there(ground, writer)


def test_a_ledger_that_is_closed_between_look_and_flag_is_deleted_all_the_same(
    ground: Ground,
) -> None:
    writer = opened(ground)
    flag = At("write_ledger", writer.close, only=[0])

    deletion = delete_ledger(ground.client(None, flag), writer.ledger_id, even_if_alive=True)

    assert flag.met
    assert deletion == Deletion(writer.ledger_id, "OPEN")
    assert not is_there(ground, writer)


def test_a_ledger_deleted_by_two_at_once_is_deleted(ground: Ground) -> None:
    for operation in ("has_writer", "write_ledger", "delete_ledger"):
        writer = opened(ground)
        cut_off(writer)
        other = partial(delete_ledger, ground.context, writer.ledger_id)

        delete_ledger(ground.client(None, At(operation, other, only=[0])), writer.ledger_id)

        assert not is_there(ground, writer), operation


def test_an_answer_that_is_lost_at_any_moment_leaves_a_deletion_that_can_be_repeated(
    ground: Ground,
) -> None:
    for operation in ("read_ledger", "has_writer", "write_ledger", "delete_ledger"):
        writer = opened(ground)
        cut_off(writer)
        ground.after.append(At(operation, NO_ANSWER))
        with suppress(MetadataUnavailableError):  # some answers are found out by reading again
            delete_ledger(ground.context, writer.ledger_id)
        ground.after.clear()
        delete_ledger(ground.context, writer.ledger_id)

        assert not is_there(ground, writer), operation
