"""The place in a log at a time, across ledgers and truncations."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.logs.logs import create_log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.protocol.log import Position
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.runtime.runtime import ThreadRuntime
from spark_bookkeeper.testing.ground import Ground


class Clock(ThreadRuntime):
    """A calendar that is moved by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.minutes = 0.0

    def wall_ms(self) -> int:
        return int(at(self.minutes).timestamp() * 1000)


def at(minutes: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(minutes=minutes)


def test_the_first_entry_at_or_after_a_time(tmp_path: Path) -> None:
    clock = Clock()
    ground = Ground(tmp_path, runtime=clock)
    log = create_log(ground.context, "orders", LogOptions(Quorum(3, 3, 2)))
    assert log.position_at(at(0)) == Position.parse("0:0")
    places: list[Position] = []
    with log.become_writer() as writer:
        for ledger in range(4):
            for entry in range(3):
                clock.minutes = 10 * ledger + entry + 1
                places.append(writer.append(b"%d" % clock.minutes))
            clock.minutes += 1
            writer.roll()

    for time, found in ((-5, 0), (2, 1), (2.5, 2), (3.5, 3), (8, 3), (11, 3), (33, 11)):
        assert log.position_at(at(time)) == places[found], time
    assert [e.payload for e in log.entries(start_time=at(32))] == [b"32", b"33"]
    assert [e.payload for e in log.entries(None, places[5], start_time=at(11))] == [b"11", b"12"]
    assert log.read_arrow(start_time=at(33)).num_rows == 1
    assert log.read_arrow(start_time=at(99)).num_rows == 0
    end = log.position_at(at(99))
    assert end > places[-1]
    log.truncate(places[6])
    assert log.position_at(at(2)) == places[6]
    with pytest.raises(InvalidArgumentError, match="both say"):
        log.read_arrow(places[6], start_time=at(1))
