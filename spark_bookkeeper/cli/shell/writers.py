"""The writers of ledgers, and times, in words."""

from __future__ import annotations

from typing import Final

from spark_bookkeeper.client.presence import GONE, WriterState

_UNITS: Final = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


def age(since_ms: int, now_ms: int) -> str:
    """How long ago something was: ``3 hours ago``. Clocks differ, so never less than nothing."""
    seconds = max(0, (now_ms - since_ms) // 1000)
    for unit, size in _UNITS:
        if seconds >= size:
            count = seconds // size
            return f"{count:,} {unit}{'' if count == 1 else 's'} ago"
    return "now"


def about_writer(writer: object, state: WriterState | None) -> str:
    """What is known of the writer of a ledger that is not closed."""
    who = "" if writer is None else f" ({writer})"
    if state == "lives":
        return f"its writer{who} lives"
    if state == "gone":
        return f"its writer{who} is gone: {GONE}"
    return "it is not known whether its writer lives"
