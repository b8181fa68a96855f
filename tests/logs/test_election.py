"""Who is to write a log: a suggestion, and what holds where two believe to lead."""

from __future__ import annotations

import pytest

from spark_bookkeeper.client.writer_info import WriterInfo
from spark_bookkeeper.errors import LogOwnershipLostError
from spark_bookkeeper.logs import truncation
from spark_bookkeeper.logs.log import Log
from spark_bookkeeper.logs.logs import create_log, open_log
from spark_bookkeeper.testing.ground import Ground
from spark_bookkeeper.testing.memory_store import MemoryStore
from tests.logs.conftest import USUAL, payloads


def test_a_leader_that_was_cut_off_believes_to_lead_and_writes_nothing(
    ground: Ground, log: Log
) -> None:
    cut_off = ground.client()
    first = open_log(cut_off, "orders").elect()
    assert first.wait(0)
    old = open_log(cut_off, "orders").become_writer()
    old.append(b"1")
    second = log.elect()
    assert not second.wait(0)

    store = cut_off.store
    assert isinstance(store, MemoryStore)
    store.expire()
    assert second.wait(0)
    new = log.become_writer(is_leader=lambda: second.is_leader)
    new.append(b"2")

    with pytest.raises(LogOwnershipLostError):
        old.append(b"of the one that was")
    assert not first.is_leader
    new.close()
    assert payloads(log) == [b"1", b"2"]


def test_everybody_is_told_who_is_to_lead(ground: Ground, log: Log) -> None:
    assert log.leader() is None
    with log.elect():
        leader = open_log(ground.client(), "orders").leader()
        assert leader is not None
        assert WriterInfo.decode(leader) == ground.context.writer
    with log.elect(b"me"):
        assert log.leader() == b"me"
    assert log.leader() is None


def test_a_candidate_of_a_log_that_was_deleted_is_in_nobodys_way(ground: Ground, log: Log) -> None:
    log.elect()
    truncation.delete(ground.context, "orders")
    again = create_log(ground.context, "orders", USUAL)

    assert again.elect().wait(0)
