"""Who writes a log: a standby applies all that is in it before it writes, once and in order."""

from __future__ import annotations

import threading

import pytest

from spark_bookkeeper.client.read.reader import Entry
from spark_bookkeeper.client.writer_info import WriterInfo
from spark_bookkeeper.errors import InvalidArgumentError, LogOwnershipLostError, NoSuchEntryError
from spark_bookkeeper.logs import truncation
from spark_bookkeeper.logs.log import Log
from spark_bookkeeper.logs.logs import create_log, open_log
from spark_bookkeeper.logs.writer import LogWriter
from spark_bookkeeper.testing.ground import Ground
from spark_bookkeeper.testing.memory_store import MemoryStore
from tests.logs.conftest import USUAL, payloads


def unexpected(entry: Entry) -> None:
    pytest.fail(f"{entry} was applied")


class Standby:
    """A thread that stands by, with a session of its own, and then writes its name."""

    def __init__(self, ground: Ground, name: bytes) -> None:
        self.applied: list[bytes] = []
        self.writer: LogWriter | None = None
        self.vote = open_log(ground.client(), "orders").elect(name)
        self._log = open_log(ground.client(), "orders")
        self._thread = threading.Thread(target=self._run, args=(name,), daemon=True)
        self._thread.start()

    def _run(self, name: bytes) -> None:
        self.writer = self._log.stand_by(self.vote, lambda e: self.applied.append(e.payload))
        self.writer.append(name)

    def join(self) -> LogWriter:
        self._thread.join(60)
        assert self.writer is not None
        return self.writer


def test_it_has_applied_all_that_was_acknowledged_when_it_writes(ground: Ground, log: Log) -> None:
    leader = log.elect(b"first")
    first = log.stand_by(leader, unexpected)
    standby = Standby(ground, b"second")
    first.append(b"a")
    first.append(b"b")
    ground.until(lambda: standby.applied == [b"a"])  # the last entry is not known to be confirmed
    first.roll()
    first.append(b"c")
    ground.until(lambda: standby.applied == [b"a", b"b"])
    assert standby.writer is None

    leader.leave()

    second = standby.join()
    assert standby.applied == [b"a", b"b", b"c"]
    with pytest.raises(LogOwnershipLostError):
        first.append(b"of the one that was")
    second.close()
    assert payloads(log) == [b"a", b"b", b"c", b"second"]


def test_whoever_was_deposed_stands_by_again_from_where_it_was(ground: Ground, log: Log) -> None:
    with log.elect(b"first") as vote:
        first = log.stand_by(vote, unexpected)
        place = first.append(b"a")
    standby = Standby(ground, b"second")
    standby.join()
    with pytest.raises(LogOwnershipLostError):
        first.append(b"too late")
    applied: list[bytes] = []

    with log.elect(b"first") as vote:
        standby.vote.leave()
        again = log.stand_by(
            vote, lambda e: applied.append(e.payload), f"{place.ledger_id}:{place.entry_id + 1}"
        )

    assert applied == [b"second"]
    again.close()


def test_what_is_not_applied_is_not_written_behind(ground: Ground, log: Log) -> None:
    def refuse(entry: Entry) -> None:
        raise ValueError(entry.payload)

    log.become_writer().append(b"a")
    with log.elect() as vote, pytest.raises(ValueError, match="a"):
        log.stand_by(vote, refuse)


def test_a_vote_that_was_left_leads_nobody(ground: Ground, log: Log) -> None:
    vote = log.elect()
    vote.leave()

    with pytest.raises(InvalidArgumentError, match="elect"):
        log.stand_by(vote, unexpected)


def test_one_that_lost_a_race_goes_on_standing_by(
    ground: Ground, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    become, lost = Log.become_writer, list[int]()

    def losing(self: Log, *args: object, **named: object) -> LogWriter:
        if not lost:
            lost.append(1)
            with become(self) as other:
                other.append(b"of another")
            raise LogOwnershipLostError("faster", log="orders", ledger_id=0)
        return become(self)

    monkeypatch.setattr(Log, "become_writer", losing)
    applied: list[bytes] = []
    with log.elect() as vote:
        log.stand_by(vote, lambda entry: applied.append(entry.payload)).close()

    assert applied == [b"of another"]


def test_one_that_comes_after_what_it_needs_was_truncated_is_told(ground: Ground, log: Log) -> None:
    with log.become_writer() as writer:
        place = writer.append(b"a")
        writer.roll()
    log.truncate(writer.ledger_id)

    with log.elect() as vote, pytest.raises(NoSuchEntryError, match="truncated"):
        log.stand_by(vote, unexpected, place)


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
