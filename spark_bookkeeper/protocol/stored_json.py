"""Decodes JSON that this library has stored, whatever may have replaced it.

A caller passes a function that builds its value from JSON of the right form. Any other content
raises one kind of error: bytes that are not text, an infinite number, endless nesting. An assertion
is not translated, because it shows a mistake of ours.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

_NUMBERS_END: Final = 1 << 63
"""The first number above the largest that a table or a gauge takes."""


def decoded(data: bytes, build: Callable[[Any], T]) -> T:
    """Return the value that ``build`` makes of the JSON in these bytes.

    Args:
        build: receives the decoded JSON, and may rely on its form.

    Raises:
        ValueError: it is not JSON, or of another form. JSON has no infinite numbers, and no NaN.
    """
    try:
        return build(_DECODER.decode(data.decode()))
    except ValueError:
        raise
    except (TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def number(value: Any, least: int = 0) -> int:
    """Return a value that is a count, a time or an id.

    Raises:
        ValueError: it is below ``least``, above 2**63 - 1, or not a number.
    """
    try:
        found = int(value)
    except (TypeError, ArithmeticError) as error:
        raise ValueError(f"{str(value)[:20]!r} is no number") from error
    if not least <= found < _NUMBERS_END:
        raise ValueError(f"{str(value)[:20]} is not from {least} to 2**63 - 1")
    return found


def text(value: Any) -> str:
    """Return ``value``. Raises ``ValueError`` if it is not text."""
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
