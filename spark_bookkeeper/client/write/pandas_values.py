"""Compare values of pandas with Arrow's values for them.

Only imported when there is a frame: it needs pandas, which takes long to import.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa

_PLAIN: Final = {bool, str, bytes, int, float, decimal.Decimal, datetime.date, datetime.timedelta}
"""Types whose values are the same if they are equal. ``True`` is not 1, although it is equal."""


def first_changed(given: Sequence[Any], read: Sequence[Any]) -> int | None:
    """Return the first index at which the value read differs from the one given, or ``None``.

    Numbers are compared exactly, and instants by their time. A wall clock is no instant, a date no
    midnight, and a bool no number. NaN, NaT and NA are read as null.
    """
    pairs = zip(given, read, strict=True)
    return next((i for i, pair in enumerate(pairs) if not _is_same(*pair)), None)


def _is_same(given: Any, read: Any) -> bool:
    if type(given) is type(read) and type(read) in _PLAIN and given == read:
        return True
    if read is None or read != read:  # a NaN
        return given is None or pd.isna(given) is True
    if isinstance(read, dict):
        given = _by_name(given, read)
        return (
            isinstance(given, Mapping)
            and given.keys() <= read.keys()
            and all(_is_same(given.get(name), value) for name, value in read.items())
        )
    if isinstance(read, pa.MonthDayNano):
        return bool(pa.scalar(given).as_py() == read)
    if isinstance(read, (list, tuple)):  # a map is read as pairs
        values = given.items() if isinstance(given, Mapping) else given
        if isinstance(given, np.ndarray):  # quicker than one by one
            is_time = given.dtype.kind in "mM"
            values = pd.Series(given) if is_time else given.tolist()
        is_as_long = hasattr(given, "__len__") and len(given) == len(read)
        return is_as_long and all(map(_is_same, values, read))
    if isinstance(given, np.generic):
        is_time = isinstance(given, (np.datetime64, np.timedelta64))
        given = pd.Series([given]).iloc[0] if is_time else given.item()
    if isinstance(given, bool) or isinstance(read, bool):
        return given is read
    if isinstance(read, datetime.datetime):
        return isinstance(given, datetime.datetime) and _moment(given) == _moment(read)
    return bool(given == read)


def _by_name(given: Any, read: Mapping[str, Any]) -> Any:
    """Return a mapping for the other values that Arrow accepts as a struct: values in the order of
    the fields, which may have names of their own, and pairs.
    """
    if isinstance(given, tuple) and len(given) == len(read):
        names = getattr(given, "_fields", None) or getattr(given, "__fields__", None)
        return dict(zip(names or read, given, strict=True))
    if isinstance(given, list) and len(dict(given)) == len(given):
        return dict(given)
    return given


def _moment(value: datetime.datetime) -> datetime.datetime:
    """Return an instant in UTC: in an hour that occurs twice, its local times are unequal."""
    return value if value.utcoffset() is None else value.astimezone(datetime.timezone.utc)
