"""Identifiers: numbers of ledgers and entries, names ``host:port`` of bookies."""

from __future__ import annotations

import re
from numbers import Integral
from typing import Any, Final, NewType

from spark_bookkeeper.errors import InvalidArgumentError

LedgerId = NewType("LedgerId", int)
"""0 <= id < 2**63. Never reused (SLOT-LOG rule R16)."""

LEDGER_IDS_END: Final = 1 << 63
"""The first number after the largest ledger id."""

EntryId = NewType("EntryId", int)
"""Consecutive from 0 in every ledger."""

BookieId = NewType("BookieId", str)
"""``host:port``; BookKeeper's shell accepts no other form."""

NO_ENTRY: Final = EntryId(-1)
"""The entry id that means "nothing yet"."""

_ANY_BOOKIE_ID = re.compile(r"[A-Za-z0-9:._\-]+")
_BOOKIE_ID = re.compile(r"[A-Za-z0-9._\-]+:[0-9]{1,5}")


def parse_bookie_id(text: str) -> BookieId:
    """Return ``text`` as a bookie id.

    Raises:
        InvalidArgumentError: it is not of the form ``host:port``.

    Source: BookKeeper ``net/BookieId`` (character set, and ``readonly`` is reserved); its
    ``cookie_*`` commands accept only ``host:port``.
    """
    if (
        not isinstance(text, str)
        or not _BOOKIE_ID.fullmatch(text)
        or not 0 < int(text.rsplit(":", 1)[1]) < 65536
    ):
        raise InvalidArgumentError(
            f"bookie id {text!r} is not of the form host:port, for example 10.0.0.3:3181"
        )
    return BookieId(text)


def read_bookie_id(text: str) -> BookieId:
    """Return ``text`` as a bookie id of any client: one that BookKeeper itself accepts.

    Raises:
        InvalidArgumentError: it holds other characters, or is reserved.

    Source: BookKeeper ``net/BookieId``.
    """
    if not _ANY_BOOKIE_ID.fullmatch(text) or text in ("readonly", ".", ".."):
        raise InvalidArgumentError(f"{text[:80]!r} is no bookie id")
    return BookieId(text)


def parse_ledger_id(value: Any) -> LedgerId:
    """Return ``value`` as a ledger id; numpy's whole numbers, as in pandas, count.

    Raises:
        InvalidArgumentError: it is not an integer in 0 .. 2**63-1.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= int(value) < 1 << 63:
        raise InvalidArgumentError(
            f"ledger id {value!r} is not an integer between 0 and 2**63-1; "
            "`spark-bookkeeper ledger list` shows the ids there are"
        )
    return LedgerId(int(value))
