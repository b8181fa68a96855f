"""Times as texts of ISO 8601."""

from __future__ import annotations

from datetime import datetime


def parse_time(text: str) -> datetime:
    """The time of a text of ISO 8601; without a zone where the text has none.

    Raises:
        ValueError: it is none.
    """
    if text.endswith("Z"):  # not known to Python 3.10
        text = text.removesuffix("Z") + "+00:00"
    return datetime.fromisoformat(text)
