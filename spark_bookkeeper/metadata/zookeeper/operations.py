"""The operations of a ZooKeeper transaction: create, delete and replace nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Create:
    """An operation next to another: create a node, with or without a counter at its name's end."""

    path: str
    data: bytes = b""
    is_sequential: bool = False

    def add_to(self, writes: Any) -> None:
        """Add it to the operations of one write."""
        writes.create(self.path, self.data, sequence=self.is_sequential)


@dataclass(frozen=True, slots=True)
class Delete:
    """An operation next to another: delete an existing node, in one version or in any."""

    path: str
    version: int = -1

    def add_to(self, writes: Any) -> None:
        """Add it to the operations of one write."""
        writes.delete(self.path, self.version)


Operation = Create | Delete


@dataclass(frozen=True, slots=True)
class Replace:
    """Replaces a node's data, if it has the version; other operations follow in the transaction."""

    path: str
    data: bytes
    version: int
    also: Sequence[Operation] = ()

    def add_to(self, writes: Any) -> None:
        """Add it to the operations of one write."""
        writes.set_data(self.path, self.data, self.version)
        for operation in self.also:
            operation.add_to(writes)
