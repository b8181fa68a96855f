"""Arguments that several commands take."""

from __future__ import annotations

from datetime import datetime, timezone

import click
import pytest

from spark_bookkeeper.cli.shell.parameters import TimeType, time_of

NOW = datetime(2026, 11, 22, 6, 30, tzinfo=timezone.utc)


def told(text: str) -> datetime | None:
    return time_of(TimeType().convert(text, None, None), int(NOW.timestamp() * 1000))


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("90s", "2026-11-22T06:28:30+00:00"),
        ("90m", "2026-11-22T05:00:00+00:00"),
        (" 12 h ", "2026-11-21T18:30:00+00:00"),
        ("7d", "2026-11-15T06:30:00+00:00"),
        ("2w", "2026-11-08T06:30:00+00:00"),
        ("0s", "2026-11-22T06:30:00+00:00"),
        ("999999w", "1970-01-01T00:00:00+00:00"),
        ("2026-11-22T06:30:00Z", "2026-11-22T06:30:00+00:00"),
        ("2026-11-22T06:30:00.5+01:00", "2026-11-22T06:30:00.500000+01:00"),
        ("2026-11-22T06:30:00.1234567Z", "2026-11-22T06:30:00.123456+00:00"),
        ("2026-11-22 06:30", "2026-11-22T06:30:00"),
        ("2026-11-22", "2026-11-22T00:00:00"),
    ],
)
def test_a_time_is_told_as_one_or_as_how_long_ago_it_was(text: str, time: str) -> None:
    assert told(text) == datetime.fromisoformat(time)


@pytest.mark.parametrize(
    "text", ["", "7", "-7d", "7 days", "1h30m", "now", "2026-13-01", "\u0667d", "3M", "7D"]
)
def test_anything_else_is_refused_with_what_is_a_time(text: str) -> None:
    with pytest.raises(click.BadParameter, match="12h, 7d"):
        told(text)
