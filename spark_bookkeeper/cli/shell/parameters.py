"""Types and options of arguments that several commands take."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any, Final, TypeVar

import click
from typing_extensions import override

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.runtime.iso_times import parse_time


def is_decimal(text: str) -> bool:
    """Return whether a text is a whole number in plain digits. Python would read ``1_0`` as 10, so
    a typing error would become another ledger or limit.
    """
    return re.fullmatch(r"-?[0-9]+", text) is not None


class WholeNumber(click.IntRange):
    """A whole number in decimal digits, within inclusive bounds."""

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and not is_decimal(value):
            self.fail(f"{value!r} is not a valid {self.name}.", param, ctx)
        return super().convert(value, param, ctx)


class LedgerIdType(WholeNumber):
    """A ledger id; error messages use that name."""

    name = "ledger id"

    def __init__(self) -> None:
        super().__init__(min=0, max=(1 << 63) - 1)


_LIKE_AN_ID: Final = re.compile(r"[\s+-]*(\d[\d_.x]*)?")
"""Matches texts that are more likely a mistyped id than a name."""


class LedgerType(LedgerIdType):
    """A ledger's id, or its name as text, which ``access_options`` converts to the id."""

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or _LIKE_AN_ID.fullmatch(value):
            return super().convert(value, param, ctx)
        return value


only_ledgers = click.option(
    "--ledger", "ledger_ids", type=LedgerType(), multiple=True, help="Only this; repeatable."
)


_AGE: Final = re.compile(r"(\d{1,6}) ?([smhdw])", re.ASCII)
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


Time = datetime | timedelta
"""The result of ``TimeType``."""

Command = TypeVar("Command", bound=Callable[..., Any])


class TimeType(click.types.StringParamType):
    """A time in ISO 8601, or an age; ``time_of`` converts either to a time."""

    name = "time"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            assert isinstance(value, datetime | timedelta)
            return value
        age = _AGE.fullmatch(value.strip())
        if age is not None:
            return timedelta(**{_UNITS[age[2]]: int(age[1])})
        try:
            return parse_time(value.strip())
        except ValueError:
            return self.fail(
                f"{value!r} is no time: 2026-11-22T06:30 (of this machine's zone) and "
                "2026-11-22T06:30:00Z are some; or how long ago it was: 90m (minutes), 12h, 7d, 2w",
                *(param, ctx),
            )


def time_range_options(command: Command) -> Command:
    """Give a command options for the range of times at which its rows were appended."""
    end = click.option(
        "--end-time", type=TimeType(), help="Stop before the first that was appended then or later."
    )
    start = click.option(
        "--start-time",
        type=TimeType(),
        help="The first that was appended then or later: 2026-11-22T06:30, or 12h (ago).",
    )
    return start(end(command))


def refuse_both(one: tuple[str, object], other: tuple[str, object]) -> None:
    """Raise ``InvalidArgumentError`` if two options with the same meaning were both given."""
    if one[1] is not None and other[1] is not None:
        raise InvalidArgumentError(f"{one[0]} and {other[0]} say the same in two ways; give one")


def shown_time(time: datetime) -> str:
    """Return a time with its zone, so that an error of hours is visible."""
    with suppress(OverflowError, ValueError):  # at the ends of the calendar
        time = time.astimezone()
    return time.isoformat(" ", "seconds")


def time_of(told: Time | None, now_ms: int) -> datetime | None:
    """Return a time unchanged, and an age as the time that long ago; not before 1970."""
    if isinstance(told, timedelta):
        ago_ms = told // timedelta(milliseconds=1)
        return datetime.fromtimestamp(max(now_ms - ago_ms, 0) / 1000, timezone.utc)
    return told


_EMPTY = "it is empty; is a variable not set that should hold it?"


class _FilledText(click.types.StringParamType):
    """A text that is not empty."""

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self.fail(_EMPTY, param, ctx) if value == "" else super().convert(value, param, ctx)


class _FilledPath(click.Path):
    """A path that is not empty: an empty path would mean the current directory."""

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self.fail(_EMPTY, param, ctx) if value == "" else super().convert(value, param, ctx)


def refuse_empty(command: click.Command) -> None:
    """Make a command refuse empty texts and paths, unless an empty text is the default."""
    for parameter in command.params:
        if parameter.default == "":
            continue
        if isinstance(parameter.type, click.Path):
            filled = copy.copy(parameter.type)
            filled.__class__ = _FilledPath
            parameter.type = filled
        elif parameter.type is click.STRING:
            parameter.type = _FilledText()
