"""Checks of callers' arguments: a value of a wrong type is refused with its name and the rule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from numbers import Integral
from typing import Any, Final

from spark_bookkeeper.errors import InvalidArgumentError

LABEL_CHARACTERS: Final = 200
"""The most characters of a name or an owner, because lists show it on one line."""

_HIDDEN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that end or reverse a line. Joiners and wide spaces pass: many scripts need them."""


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    """Return ``value`` as an ``int``; numpy's whole numbers count, booleans do not.

    Raises:
        InvalidArgumentError: it is not a whole number, or below ``least``.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidArgumentError(f"{name}={value!r} is not a whole number")
    if least is not None and value < least:
        raise InvalidArgumentError(f"{name}={value!r} is below {least}, the least there can be")
    return int(value)


def check_flag(name: str, value: Any) -> None:
    """Raise ``InvalidArgumentError`` unless ``value`` is ``True`` or ``False``."""
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{name}={value!r} is neither True nor False")


def check_password(value: Any) -> None:
    """Raise ``InvalidArgumentError``, without the value, unless a password is ``bytes``."""
    if not isinstance(value, bytes):
        raise InvalidArgumentError(
            f"password is a {type(value).__name__}; passwords are bytes: write b'...', or "
            "text.encode()"
        )


def check_bytes(name: str, value: Any) -> None:
    """Raise ``InvalidArgumentError`` unless ``value`` is ``bytes``."""
    if not isinstance(value, bytes):
        raise InvalidArgumentError(
            f"{name}={value!r} is a {type(value).__name__}; it is bytes: write b'...', or "
            "text.encode()"
        )


def check_callable(name: str, value: Any, example: str) -> None:
    """Raise ``InvalidArgumentError`` unless ``value`` can be called; now, not at the call."""
    if not callable(value):
        raise InvalidArgumentError(
            f"{name}={value!r} is a {type(value).__name__}, which cannot be called; give a "
            f"function, for example {name}={example}"
        )


def check_text(name: str, value: Any) -> None:
    """Raise ``InvalidArgumentError`` unless ``value`` is a ``str``."""
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{name}={value!r} is a {type(value).__name__}; it is text")


def check_filled(name: str, value: Any) -> None:
    """Raise ``InvalidArgumentError`` unless ``value`` is a ``str`` with more than spaces."""
    check_text(name, value)
    if not value.strip():
        raise InvalidArgumentError(
            f"{name}={value!r} is empty; is a variable not set that should hold it?"
        )


def check_name(name: str, value: Any) -> None:
    """Raise ``InvalidArgumentError`` unless ``value`` is text that fits on one line."""
    check_filled(name, value)
    hidden = _HIDDEN.search(value)
    if hidden or len(value) > LABEL_CHARACTERS:
        found = f"the character {hidden[0]!r}" if hidden else f"{len(value):,} characters"
        raise InvalidArgumentError(
            f"{name}={value[:40]!r} has {found}; lists show it, so give at most "
            f"{LABEL_CHARACTERS} printable ones, and other text as another label (custom_metadata)"
        )


def check_labels(labels: Any) -> None:
    """Raise ``InvalidArgumentError`` unless these are custom metadata: text -> bytes."""
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
