"""What callers hand in, looked at once: values of another type are refused by name and rule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from numbers import Integral
from typing import Any, Final

from spark_bookkeeper.errors import InvalidArgumentError

LABEL_CHARACTERS: Final = 200
"""Of a name or an owner: lists show it on one line."""

_HIDDEN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Ends a line or turns it round. Joiners and wide spaces do not, and many scripts need them."""


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    """``value`` as an ``int``; numpy's whole numbers count, booleans do not.

    Raises:
        InvalidArgumentError: it is not a whole number, or below ``least``.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidArgumentError(f"{name}={value!r} is not a whole number")
    if least is not None and value < least:
        raise InvalidArgumentError(f"{name}={value!r} is below {least}, the least there can be")
    return int(value)


def check_flag(name: str, value: Any) -> None:
    """Raises ``InvalidArgumentError`` unless ``value`` is ``True`` or ``False``."""
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{name}={value!r} is neither True nor False")


def check_password(value: Any) -> None:
    """Raises ``InvalidArgumentError``, which does not show it, unless a password is ``bytes``."""
    if not isinstance(value, bytes):
        raise InvalidArgumentError(
            f"password is a {type(value).__name__}; passwords are bytes: write b'...', or "
            "text.encode()"
        )


def check_bytes(name: str, value: Any) -> None:
    """Raises ``InvalidArgumentError`` unless ``value`` is ``bytes``."""
    if not isinstance(value, bytes):
        raise InvalidArgumentError(
            f"{name}={value!r} is a {type(value).__name__}; it is bytes: write b'...', or "
            "text.encode()"
        )


def check_callable(name: str, value: Any, example: str) -> None:
    """Raises ``InvalidArgumentError`` unless ``value`` can be called; now, and not when it is."""
    if not callable(value):
        raise InvalidArgumentError(
            f"{name}={value!r} is a {type(value).__name__}, which cannot be called; give a "
            f"function, for example {name}={example}"
        )


def check_text(name: str, value: Any) -> None:
    """Raises ``InvalidArgumentError`` unless ``value`` is a ``str``."""
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{name}={value!r} is a {type(value).__name__}; it is text")


def check_filled(name: str, value: Any) -> None:
    """Raises ``InvalidArgumentError`` unless ``value`` is a ``str`` that says something."""
    check_text(name, value)
    if not value.strip():
        raise InvalidArgumentError(
            f"{name}={value!r} is empty; is a variable not set that should hold it?"
        )


def check_name(name: str, value: Any) -> None:
    """Raises ``InvalidArgumentError`` unless ``value`` says something that fits on a line."""
    check_filled(name, value)
    hidden = _HIDDEN.search(value)
    if hidden or len(value) > LABEL_CHARACTERS:
        found = f"the character {hidden[0]!r}" if hidden else f"{len(value):,} characters"
        raise InvalidArgumentError(
            f"{name}={value[:40]!r} has {found}; lists show it, so give at most "
            f"{LABEL_CHARACTERS} printable ones, and other text as another label (custom_metadata)"
        )


def check_labels(labels: Any) -> None:
    """Raises ``InvalidArgumentError`` unless these are custom metadata: text -> bytes."""
    if not isinstance(labels, Mapping):
        raise InvalidArgumentError(
            f"custom_metadata={labels!r} is no mapping; give one of text to bytes, for example "
            "{'purpose': b'tests'}"
        )
    for key, value in labels.items():
        check_text("a key of custom_metadata", key)
        if not isinstance(value, bytes):
            raise InvalidArgumentError(
                f"custom_metadata[{key!r}]={value!r} is a {type(value).__name__}; its values are "
                "bytes: write b'...', or text.encode()"
            )
