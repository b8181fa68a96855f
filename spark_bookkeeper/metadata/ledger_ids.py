"""Ledger ids from two counters in ZooKeeper, as Apache BookKeeper gives them out.

A number is that of a sequential node, which is deleted again. Ids above 31 bits come from
numbered counters, of which the highest is in use.

Source: BookKeeper 4.17 ``meta/ZkLedgerIdGenerator``, ``meta/LongZkLedgerIdGenerator``.
"""

from __future__ import annotations

import re
from typing import Final

from spark_bookkeeper.metadata import paths
from spark_bookkeeper.metadata.connection import Connection
from spark_bookkeeper.metadata.link import AbsentError
from spark_bookkeeper.protocol.ids import LedgerId

_COUNTER: Final = "ID-"
_LONG_COUNTER: Final = "HOB-"
_LONG_COUNTER_NAME: Final = re.compile(r"HOB-([0-9]{10})")
_COUNTERS_KEPT: Final = 3


class LedgerIds:
    """The counters of the cluster at a root."""

    def __init__(self, zk: Connection, root: str) -> None:
        self._zk = zk
        self._root = root
        self._has_long_ids: bool | None = None

    def next(self) -> LedgerId:
        """An id that was never given out before."""
        long_ids = paths.long_ids(self._root)
        if self._has_long_ids is None:
            # BookKeeper asks before each id until the answer is yes. Once is enough: the two
            # generators never give the same id, and one that ran out is noticed below.
            self._has_long_ids = self._zk.exists(long_ids)
        if not self._has_long_ids:
            number = self._count(paths.short_ids(self._root))
            if 0 <= number < paths.LONG_ID_FIRST:
                return LedgerId(number)
            self._zk.ensure(long_ids)
            self._has_long_ids = True
        while True:
            high = self._highest_counter()
            number = self._count(f"{long_ids}/{_LONG_COUNTER}{high:010d}")
            if 0 <= number < paths.LONG_ID_FIRST:
                return LedgerId(high << 32 | number)
            self._zk.ensure(f"{long_ids}/{_LONG_COUNTER}{high + 1:010d}")

    def _count(self, parent: str) -> int:
        """The next number of a counter: that of a sequential node made for the purpose."""
        try:
            name = self._zk.create_sequential(parent, _COUNTER)
        except AbsentError:
            self._zk.ensure(parent)
            name = self._zk.create_sequential(parent, _COUNTER)
        self._zk.discard(f"{parent}/{name}")
        return int(name.removeprefix(_COUNTER))

    def _highest_counter(self) -> int:
        names = self._zk.children(paths.long_ids(self._root))
        # Whatever else stands there is no counter; and an id is below 2**63.
        found = (int(m.group(1)) for m in map(_LONG_COUNTER_NAME.fullmatch, names) if m)
        numbers = sorted(number for number in found if number < 1 << 31)
        for number in numbers[:-_COUNTERS_KEPT]:
            self._zk.discard(f"{paths.long_ids(self._root)}/{_LONG_COUNTER}{number:010d}")
        return numbers[-1] if numbers else 1
