"""Descriptions of the writers of ledgers."""

from __future__ import annotations

from spark_bookkeeper.client.presence import GONE, WriterState


def about_writer(writer: object, state: WriterState | None) -> str:
    """Describe the writer of a ledger that is not closed."""
    who = "" if writer is None else f" ({writer})"
    if state == "lives":
        return f"its writer{who} lives"
    if state == "gone":
        return f"its writer{who} is gone: {GONE}"
    return f"it is not known whether its writer{who} lives"
