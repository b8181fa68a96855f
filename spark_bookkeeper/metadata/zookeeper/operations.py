"""What one transaction of ZooKeeper may hold: nodes created, deleted, given other data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Create:
    """An operation beside another: create a node, with a counter at the end of its name or not."""

    path: str
    data: bytes = b""
    is_sequential: bool = False

    def add_to(self, writes: Any) -> None:
        """Add it to the operations of one write."""
        writes.create(self.path, self.data, sequence=self.is_sequential)


@dataclass(frozen=True, slots=True)
class Delete:
    """An operation beside another: delete a node that must be there, in a version or in any."""

    path: str
    version: int = -1

    def add_to(self, writes: Any) -> None:
        """Add it to the operations of one write."""
        writes.delete(self.path, self.version)


Operation = Create | Delete


@dataclass(frozen=True, slots=True)
class Replace:
    """A node's new data, if it has a version, and operations after it in the same transaction."""

    path: str
    data: bytes
    version: int
    also: Sequence[Operation] = ()

    def add_to(self, writes: Any) -> None:
        """Add it to the operations of one write."""
        writes.set_data(self.path, self.data, self.version)
        for operation in self.also:
            operation.add_to(writes)
