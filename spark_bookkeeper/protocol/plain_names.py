"""Names that stand in a path: what somebody stored there must be one name, and lead nowhere."""

from __future__ import annotations

from typing import Any, Final

_LONGEST: Final = 200
"""Characters. File systems take 255 bytes, and something is put behind some names."""


_NO_NAMES: Final = frozenset({"", ".", ".."})


def has_names_only(path: str) -> bool:
    """Whether a path leads from where it begins to a place below that, by one way."""
    return _NO_NAMES.isdisjoint(path.split("/")) and "\0" not in path


def plain_name(what: str, value: Any, signs: str = "") -> str:
    """``value``, if it is a plain name: letters and digits of ASCII, and some signs between them.

    Args:
        what: it names.
        signs: it may hold, but not begin with: so ``..`` is none, nor is what is hidden.

    Raises:
        ValueError: it is another text, or no text.
    """
    bare = "".join(c for c in value if c not in signs) if isinstance(value, str) else ""
    if not (bare.isascii() and bare.isalnum() and value[0] not in signs) or len(value) > _LONGEST:
        also = f", with {' '.join(signs)} between them" if signs else ""
        raise ValueError(
            f"{what} is {str(value)[:40]!r}, which would be part of a path: it has to be of 1 to "
            f"{_LONGEST} letters and digits{also}"
        )
    return str(value)
