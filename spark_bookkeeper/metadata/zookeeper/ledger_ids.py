"""Ledger ids from two counters in ZooKeeper, as Apache BookKeeper gives them out.

A number is that of a sequential node, which is then deleted. Ids above 31 bits come from numbered
counters, of which the highest is in use.

Source: BookKeeper 4.17 ``meta/ZkLedgerIdGenerator``, ``meta/LongZkLedgerIdGenerator``.
"""

from __future__ import annotations

import re
from typing import Final

from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.metadata.zookeeper.link import AbsentError
from spark_bookkeeper.metadata.zookeeper.nodes import Nodes
from spark_bookkeeper.protocol.ids import LedgerId

_COUNTER: Final = "ID-"
_LONG_COUNTER: Final = "HOB-"
_LONG_COUNTER_NAME: Final = re.compile(r"HOB-([0-9]{10})")
_COUNTERS_KEPT: Final = 3


class LedgerIds:
    """The counters of the cluster at a root."""

    def __init__(self, zk: Nodes, root: str) -> None:
        self._zk = zk
        self._root = root
        self._has_long_ids: bool | None = None

    def next(self) -> LedgerId:
        """Return an id that was never given out before."""
        long_ids = paths.long_ids(self._root)
        if self._has_long_ids is None:
            # BookKeeper checks before each id until long ids exist. One check is enough: the two
            # generators never give the same id, and an exhausted one is noticed below.
            self._has_long_ids = self._zk.exists(long_ids)
        if not self._has_long_ids:
            number = self._next_number(paths.short_ids(self._root))
            if 0 <= number < paths.LONG_ID_FIRST:
                return LedgerId(number)
            self._zk.ensure(long_ids)
            self._has_long_ids = True
        while True:
            high = self._highest_counter()
            number = self._next_number(self._long_counter(high))
            if 0 <= number < paths.LONG_ID_FIRST:
                return LedgerId(high << 32 | number)
            self._zk.ensure(self._long_counter(high + 1))

    def has_given(self, ledger_id: LedgerId) -> bool:
        """Return whether any client was given this id before, so that it may have been used.

        Exact as of the last answer to this session. ZooKeeper counts the children that a node ever
        had, and every id is the number of one.
        """
        long_ids = paths.long_ids(self._root)
        high, number = divmod(ledger_id, 1 << 32)
        if ledger_id < paths.LONG_ID_FIRST:
            asked = dict(self._zk.get_many([paths.short_ids(self._root), long_ids]))
            short = asked[paths.short_ids(self._root)]
            if asked[long_ids] is not None:
                return True  # short ids had run out, and their count may be lost
            return short is not None and number < short.children_made
        if not high or number >= paths.LONG_ID_FIRST:
            return False  # no counter gives such numbers
        try:
            highest = self._highest_counter()
            if high != highest:
                return high < highest
            return number < self._zk.get(self._long_counter(high)).children_made
        except AbsentError:
            return False

    def _long_counter(self, high: int) -> str:
        return f"{paths.long_ids(self._root)}/{_LONG_COUNTER}{high:010d}"

    def _next_number(self, parent: str) -> int:
        """Return the next number of a counter, from a sequential node made for the purpose."""
        try:
            return self._zk.next_number(parent, _COUNTER)
        except AbsentError:
            self._zk.ensure(parent)
            return self._zk.next_number(parent, _COUNTER)

    def _highest_counter(self) -> int:
        names = self._zk.children(paths.long_ids(self._root))
        # Other children are not counters; and an id is below 2**63.
        found = (int(m.group(1)) for m in map(_LONG_COUNTER_NAME.fullmatch, names) if m)
        numbers = sorted(number for number in found if number < 1 << 31)
        for number in numbers[:-_COUNTERS_KEPT]:
            self._zk.discard(self._long_counter(number))
        return numbers[-1] if numbers else 1
