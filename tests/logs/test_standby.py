"""A warm standby has applied all that is in the log when it writes, once and in order."""

from __future__ import annotations

import threading

import pytest

from spark_bookkeeper.client.read.reader import Entry
from spark_bookkeeper.errors import InvalidArgumentError, LogOwnershipLostError, NoSuchEntryError
from spark_bookkeeper.logs.log import Log
from spark_bookkeeper.logs.logs import open_log
from spark_bookkeeper.logs.writer import LogWriter
from spark_bookkeeper.testing.ground import Ground
from tests.logs.conftest import payloads


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
