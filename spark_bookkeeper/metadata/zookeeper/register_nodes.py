"""Registers as nodes in ZooKeeper; ``registers.py`` explains registers.

This library's own nodes are below a node that BookKeeper's tools neither list nor take for a
ledger's, in a folder named after the INSTANCEID. BookKeeper's ``metaformat`` changes the INSTANCEID
and restarts the ids, so the nodes kept before do not apply to the new cluster.
``nukeexistingcluster`` deletes the folder as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import quote

from spark_bookkeeper.metadata import refusals
from spark_bookkeeper.metadata.store import Unchanged, Versioned
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.metadata.zookeeper.client import Changes
from spark_bookkeeper.metadata.zookeeper.link import (
    AbsentError,
    ChangedError,
    OccupiedError,
    PresentError,
)
from spark_bookkeeper.metadata.zookeeper.nodes import Nodes


class ZooKeeperRegisters:
    """The registers of the cluster that exists now; implements ``Registers``."""

    def __init__(self, zk: Nodes, instance: Instance) -> None:
        self._zk = zk
        self._instance = instance

    def read(self, name: str) -> Versioned[bytes] | None:
        node = self._zk.get_settled(self._path(name))
        return None if node is None else Versioned(node.data, node.version)

    def read_many(self, names: Iterable[str]) -> Iterator[tuple[str, Versioned[bytes] | None]]:
        asked = list(names)
        nodes = self._zk.get_many(map(self._path, asked))
        for name, (_, node) in zip(asked, nodes, strict=True):
            yield name, None if node is None else Versioned(node.data, node.version)

    def create(self, name: str, data: bytes) -> Versioned[bytes]:
        try:
            self._zk.create_below_parents(self._path(name), data)
        except PresentError:
            there = self.read(name)
            if there is None or there.value != data:
                raise refusals.register_conflict(name, None, there) from None
            return there
        return Versioned(data, 0)

    def write(self, name: str, data: bytes, version: int) -> Versioned[bytes]:
        try:
            return Versioned(data, self._zk.set(self._path(name), data, version))
        except (ChangedError, AbsentError):
            raise refusals.register_conflict(name, version, self.read(name)) from None

    def delete(self, name: str, version: int | None = None) -> None:
        try:
            self._zk.delete(self._path(name), -1 if version is None else version)
        except (AbsentError, OccupiedError):
            return
        except ChangedError:
            raise refusals.register_conflict(name, version, self.read(name)) from None

    def names(self, parent: str) -> Sequence[str]:
        try:
            return sorted(self._zk.children(self._path(parent)))
        except AbsentError:
            return []

    def watch(self, name: str) -> Unchanged:
        return self._zk.watch(self._path(name))

    def _path(self, name: str) -> str:
        return paths.register(self._instance.folder(), name)


class Instance:
    """The present cluster at a root."""

    def __init__(self, zk: Nodes, root: str) -> None:
        self._zk = zk
        self._root = root
        self._changes = Changes()
        self._last: tuple[int, str] | None = None
        """The folder, and the count of changes before it was read."""

    def folder(self) -> str:
        """Return the parent of this library's nodes of the cluster that exists now.

        A request is sent only after a change of INSTANCEID, as in ``Registrations``.
        """
        last = self._last
        if last is not None and last[0] == self._changes.count:
            return last[1]
        told = self._changes.count
        try:
            found = self._zk.get(paths.instance_id(self._root), self._changes).data
        except AbsentError:
            return paths.ours(self._root, "none")
        folder = paths.ours(self._root, quote(found, safe=""))
        self._last = (told, folder)
        return folder
