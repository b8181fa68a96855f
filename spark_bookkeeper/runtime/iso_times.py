"""Times as texts of ISO 8601."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

_FRACTION: Final = re.compile(r"\.(\d+)")


def parse_time(text: str) -> datetime:
    """Return the time of a text of ISO 8601, in microseconds; it has a zone if the text has one.

    Raises:
        ValueError: the text is no such time.
    """
    # Python 3.10 parses neither the Z nor a fraction that has not three or six digits.
    if text.endswith("Z"):
        text = text.removesuffix("Z") + "+00:00"
    return datetime.fromisoformat(_FRACTION.sub(lambda found: f".{found[1]:0<6.6}", text, count=1))
