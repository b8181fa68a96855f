"""Parsers for the texts of options: each returns a value, or raises ``ValueError`` with a reason.

``offset_options.py`` parses places, which have forms of their own.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Sequence


def some_text(text: str) -> str:
    """Return any text that is not empty."""
    if not text:
        raise ValueError("it is empty")
    return text


def flag(text: str) -> bool:
    """Parse ``true`` or ``false``, in any case."""
    if text.strip().lower() not in {"true", "false"}:
        raise ValueError("it is neither true nor false")
    return text.strip().lower() == "true"


def number(least: int) -> Callable[[str], int]:
    """Return a parser for a whole number that is not below ``least``."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,19}", text.strip()):
            raise ValueError("it is not a whole number")
        value = int(text)
        if value < least:
            raise ValueError(f"it is below {least}, the least there can be")
        return value

    return parse


def size_bytes(text: str) -> int:
    """Parse a size like ``64m`` to bytes: k, m, g and t are powers of 1024."""
    matched = re.fullmatch(r"(\d{1,19})\s*([kmgt]?)i?b?", text.strip().lower())
    if matched is None:
        raise ValueError("it is not a size in bytes, like 67108864 or 64m")
    size = int(matched[1]) << 10 * " kmgt".index(matched[2] or " ")
    if size < 1:
        raise ValueError("it is below 1, the least there can be")
    return size


def one_of(*known: str) -> Callable[[str], str]:
    """Return a parser that accepts one of these texts in any case, and returns it as given here."""

    def parse(text: str) -> str:
        for each in known:
            if text.strip().lower() == each.lower():
                return each
        raise ValueError(f"it is none of {', '.join(known)}{nearest(text, known)}")

    return parse


def distinct_names(text: str) -> tuple[str, ...]:
    """Parse ``a, b`` as distinct names; or a JSON list, for names with commas or outer spaces."""
    names = _listed(text) or tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError(
            'it is not a list of names with commas between them, nor one of JSON: ["a", "b,c"]'
        )
    if len(set(names)) != len(names):
        raise ValueError("it names something twice")
    return names


def _listed(text: str) -> tuple[str, ...]:
    """Return the texts of a JSON list; an empty tuple if it is no such list."""
    if not text.lstrip().startswith("["):
        return ()
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return tuple(names) if is_list else ()


def ledger_runs(text: str) -> tuple[tuple[int, int], ...]:
    """Parse ``7,9-12`` to runs of ids, in the order given."""
    runs = []
    for part in text.split(","):
        matched = re.fullmatch(r"\s*(\d{1,19})\s*(?:-\s*(\d{1,19})\s*)?", part)
        if matched is None:
            raise ValueError("it is not a list of ledger ids, like 7,9-12")
        first, last = int(matched[1]), int(matched[2] or matched[1])
        if not first <= last < 1 << 63:
            raise ValueError(f"{part.strip()!r} is no run of ledger ids; 9-12 is one")
        runs.append((first, last))
    return tuple(runs)


def utf8(text: str) -> bytes:
    """Return the bytes of any text."""
    return text.encode()


def nearest(text: str, known: Sequence[str]) -> str:
    """Return the end of a sentence that suggests a similar known text; empty without one."""
    lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(text.lower(), lower, n=1, cutoff=0.5)
    return f"; did you mean {lower[near[0]]!r}?" if near else ""
