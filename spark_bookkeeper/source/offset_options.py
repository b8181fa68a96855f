"""Where a read begins and ends, as users write it, and as Spark stores it for a stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, Final

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.ids import NO_ENTRY, EntryId, LedgerId
from spark_bookkeeper.protocol.log import Position
from spark_bookkeeper.runtime.iso_times import parse_time


@dataclass(frozen=True, slots=True)
class End:
    """One end of the existing entries, at the time of the read: ``EARLIEST`` or ``LATEST``."""

    name: str


EARLIEST: Final = End("earliest")
LATEST: Final = End("latest")


@dataclass(frozen=True, slots=True)
class Moment:
    """The first entry appended at a time or later, by the clock of its writer."""

    time: datetime
    """Has a time zone."""


Place = Position | End | Moment


def parse_place(text: str) -> Place:
    """Parse ``earliest``, ``latest``, ``{"ledger": 7, "entry": 12}``, ``7:12``, or ``{"time":
    "2026-11-22T06:30:00Z"}``.

    Raises:
        ValueError: the text has none of these forms.
    """
    stripped = text.strip()
    for end in (EARLIEST, LATEST):
        if stripped.lower() == end.name:
            return end
    if not stripped.startswith("{"):
        try:
            position = Position.parse(stripped)
        except InvalidArgumentError:
            raise ValueError(
                "it is neither earliest nor latest, nor an entry as 7:12 or "
                '{"ledger": 7, "entry": 12}, nor {"time": "2026-11-22T06:30:00Z"}'
            ) from None
        if position.row:
            raise ValueError("it is within an entry, and entries are read whole")
        if position.entry_id == NO_ENTRY:
            raise ValueError("-1 is no entry id; earliest and latest are places")
        return position
    try:
        value = json.loads(stripped)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if isinstance(value, dict) and value.keys() == {"time"}:
        return Moment(_time(value["time"]))
    return position_of(value)


def _time(value: object) -> datetime:
    """Parse milliseconds since 1970, or a text of ISO 8601, which is UTC without a zone."""
    try:
        if isinstance(value, int) and not isinstance(value, bool):
            return datetime.fromtimestamp(value / 1000, timezone.utc)
        time = parse_time(str(value))
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"{value!r} is no time: milliseconds since 1970, or a text like 2026-11-22T06:30:00Z"
        ) from None
    return time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)


def is_reversed(start: Place | None, end: Place | None) -> bool:
    """Whether a read would begin after its end, as far as the two places alone show it.

    A time and a position cannot be compared without a look at the log. A position before the first
    entry of a ledger may equal the end of the ledger before it, so this does not decide it.
    """
    if isinstance(start, Moment) and isinstance(end, Moment):
        return start.time > end.time
    return isinstance(start, Position) and isinstance(end, Position) and start > end


def begins_behind_its_end() -> InvalidArgumentError:
    """Return the error for a read that begins after its end."""
    return InvalidArgumentError(
        "the read begins behind its end: startingOffsets is after endingOffsets, up to and without "
        "which is read. Exchange them"
    )


def position_of(value: object) -> Position:
    """Parse the position in ``{"ledger": 7, "entry": 12}``; ``entry`` may be missing, and is 0.

    Raises:
        ValueError: it has another form.
    """
    if not isinstance(value, dict) or not {"ledger"} <= value.keys() <= {"ledger", "entry"}:
        raise ValueError(
            'it is not of the form {"ledger": 7, "entry": 12} or {"time": "2026-11-22T06:30:00Z"}'
        )
    ledger, entry = value["ledger"], value.get("entry", 0)
    for number in (ledger, entry):
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 63:
            raise ValueError(f"{number!r} is no ledger or entry id")
    return Position(LedgerId(ledger), EntryId(entry))


VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Offset:
    """The entry that a stream reads next, in the form of Spark's checkpoints: JSON with a version.

    ``{"version": 1, "log": "orders", "nonce": "9f..", "ledger": 7, "entry": 12}``. A stream of one
    ledger has no ``log``. The nonce identifies one life of the log or ledger: a new one with the
    same name is a different one.
    """

    position: Position
    nonce: str
    log: str | None = None

    def at(self, position: Position) -> Offset:
        """Return another position of the same log or ledger."""
        return replace(self, position=position)

    def source(self) -> str:
        """Return the name of the log or ledger, for messages."""
        return f"ledger {self.position.ledger_id}" if self.log is None else f"log {self.log!r}"

    def to_json(self) -> dict[str, Any]:
        """Return it as Spark takes it. The order of the keys is fixed: Spark compares texts."""
        log = {} if self.log is None else {"log": self.log}
        place = {"ledger": int(self.position.ledger_id), "entry": int(self.position.entry_id)}
        return {"version": VERSION, **log, "nonce": self.nonce, **place}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Offset:
        """Return the offset that ``to_json`` wrote, perhaps in an earlier run.

        Raises:
            InvalidArgumentError: it is no offset of this source, or of a newer version of it.
        """
        try:
            if value["version"] != VERSION:
                raise ValueError(f"its version is {value['version']!r}, and this one reads 1")
            ledger, entry = int(value["ledger"]), int(value["entry"])
            if min(ledger, entry) < 0:
                raise ValueError("an id is below 0")
            position = Position(LedgerId(ledger), EntryId(entry))
            log = value.get("log")
            return cls(position, str(value["nonce"]), None if log is None else str(log))
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            raise InvalidArgumentError(
                f"the checkpoint holds an offset that this source cannot read: {value!r} "
                f"({error}). A newer version may have written it, or another source: use the "
                "checkpoint with what wrote it, or begin a new one"
            ) from error
