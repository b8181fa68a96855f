"""JSON that this library has stored, read back whatever somebody else has put in its place.

Whoever decodes a value says how it is built from JSON of the right form, and is told of every other
form by one error: bytes that are no text, an infinite number, nesting without end. An assertion is
not told so: it is our mistake.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

_NUMBERS_END: Final = 1 << 63
"""Behind the largest number that a table or a gauge takes."""


def decoded(data: bytes, build: Callable[[Any], T]) -> T:
    """What ``build`` makes of the JSON in these bytes.

    Args:
        build: is given what was read, and may take its form for granted.

    Raises:
        ValueError: it is no JSON, or of another form. JSON has no infinite numbers, and no NaN.
    """
    try:
        return build(_DECODER.decode(data.decode()))
    except ValueError:
        raise
    except (TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def number(value: Any, least: int = 0) -> int:
    """What a count, a time or an id may be.

    Raises:
        ValueError: it is below ``least``, above 2**63 - 1, or no number.
    """
    try:
        found = int(value)
    except (TypeError, ArithmeticError) as error:
        raise ValueError(f"{str(value)[:20]!r} is no number") from error
    if not least <= found < _NUMBERS_END:
        raise ValueError(f"{str(value)[:20]} is not from {least} to 2**63 - 1")
    return found


def text(value: Any) -> str:
    """Raises ``ValueError`` for what is no text."""
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:20]!r} is no text")  # noqa: TRY004  (as all junk is)
    return value


def _finite(digits: str) -> float:
    found = float(digits)
    if math.isinf(found):
        raise ValueError(f"{digits[:20]} is infinite")
    return found


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")


_DECODER: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_no_number)
