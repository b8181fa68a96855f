"""Checks of stored names that become parts of paths: each must be one name inside its folder."""

from __future__ import annotations

from typing import Any, Final

_LONGEST: Final = 200
"""In characters. File systems take 255 bytes, and some names get a suffix."""


_NO_NAMES: Final = frozenset({"", ".", ".."})


def has_names_only(path: str) -> bool:
    """Return whether a relative path leads only downwards: no part is empty, ``.`` or ``..``."""
    return _NO_NAMES.isdisjoint(path.split("/")) and "\0" not in path


def plain_name(what: str, value: Any, signs: str = "") -> str:
    """Return ``value`` if it is a plain name: ASCII letters and digits, with signs between them.

    Args:
        what: what ``value`` names, for the error.
        signs: characters that it may hold, but not begin with; so ``..`` and hidden names fail.

    Raises:
        ValueError: it is another text, or not text.
    """
    bare = "".join(c for c in value if c not in signs) if isinstance(value, str) else ""
    if not (bare.isascii() and bare.isalnum() and value[0] not in signs) or len(value) > _LONGEST:
        also = f", with {' '.join(signs)} between them" if signs else ""
        raise ValueError(
            f"{what} is {str(value)[:40]!r}, which would be part of a path: it has to be of 1 to "
            f"{_LONGEST} letters and digits{also}"
        )
    return str(value)
