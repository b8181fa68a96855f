"""Checks of callers' arguments, and their conversion to the form that jobs take."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.arguments import check_filled, check_text, whole_number
from spark_bookkeeper.protocol.ids import BookieId, LedgerId, parse_bookie_id, parse_ledger_id
from spark_bookkeeper.protocol.metadata import DigestType


def digest_type_of(name: str) -> DigestType:
    check_text("digest_type", name)
    try:
        return DigestType[name.upper()]
    except KeyError:
        raise InvalidArgumentError(
            f"digest_type {name!r} is unknown; use one of "
            f"{', '.join(kind.name for kind in DigestType)}"
        ) from None


def either_of(ledger_ids: Iterable[int] | None, log: str | None) -> list[LedgerId] | None:
    """Return the ids, or ``None`` without ids. Raise if both ids and a log are given."""
    if ledger_ids is not None and log is not None:
        raise InvalidArgumentError("give either ledger ids or a log, not both")
    return ids_of(ledger_ids)


def ids_of(ledger_ids: Iterable[int] | None) -> list[Any] | None:
    """Return each id once, in the order given."""
    if ledger_ids is None:
        return None
    return list(dict.fromkeys(parse_ledger_id(i) for i in list_of("ledger_ids", ledger_ids)))


def error_text(what: str, ids: Sequence[Any] | None) -> str | None:
    """Describe a job's targets in a few words; ``None`` means everything."""
    if ids is None:
        return None
    shown = ", ".join(map(str, ids[:3]))
    return f"{what}{'s' if len(ids) > 1 else ''} {shown}" + (", ..." if len(ids) > 3 else "")


def uri_of(place: str) -> str:
    """Return a URI unchanged, a path as absolute: other processes run in other directories."""
    check_filled("uri", place)
    return place if "://" in place else os.path.abspath(os.path.expanduser(place))


def bookie_ids_of(bookie_ids: Sequence[str] | None) -> list[BookieId] | None:
    if bookie_ids is None:
        return None
    return [parse_bookie_id(each) for each in list_of("bookie_ids", bookie_ids)]


def known_bookies(
    context: ClientContext, bookie_ids: Sequence[str] | None
) -> list[BookieId] | None:
    """Return the same ids, if the cluster knows all; a mistyped id must not pass as an idle bookie.

    Raises:
        InvalidArgumentError: one of them has neither a registration nor a cookie.
    """
    wanted = bookie_ids_of(bookie_ids)
    alive = context.bookies.registrations() if wanted else {}
    for bookie in wanted or ():
        if bookie not in alive and context.store.read_cookie(bookie) is None:
            raise InvalidArgumentError(
                f"bookie {bookie} is unknown: it has no registration and no cookie. Nothing was "
                "changed; `spark-bookkeeper bookie list` shows the bookies"
            )
    return wanted


def rate_of(bytes_per_second: int | None) -> int | None:
    return (
        None if bytes_per_second is None else whole_number("bytes_per_second", bytes_per_second, 1)
    )


def percentage_of(percentage: int) -> int:
    if not 0 <= whole_number("percentage", percentage) <= 100:
        raise InvalidArgumentError(
            f"percentage={percentage} is not between 0 and 100; 100 looks at every entry"
        )
    return percentage


def list_of(name: str, values: Any) -> list[Any]:
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        example = "a list of some" if values is None else f"[{values!r}]"
        raise InvalidArgumentError(f"{name}={values!r} is not a list of ids; give {example}")
    return list(values)
