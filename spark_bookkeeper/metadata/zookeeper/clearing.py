"""Removes all metadata of a cluster, and makes a new, empty cluster in its place or none.

INSTANCEID and LAYOUT go last, in one transaction, so that a killed removal can be repeated.

Source: BookKeeper ``discover/ZKRegistrationManager.format``, ``nukeExistingCluster``,
``meta/AbstractZkLedgerManagerFactory.validateAndNukeExistingCluster``.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from spark_bookkeeper.errors import InvalidArgumentError, MetadataError
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.metadata.zookeeper.link import AbsentError, OccupiedError
from spark_bookkeeper.metadata.zookeeper.nodes import Nodes
from spark_bookkeeper.metadata.zookeeper.operations import Delete

_PASSES: Final = 20
"""How often the children of a node are listed again while other clients add to them."""

_SWITCHES: Final = ("disableHealthCheck",)


class Clearing:
    """The nodes below the root of one cluster, and their removal."""

    def __init__(self, nodes: Nodes, root: str) -> None:
        self._zk = nodes
        self._root = root

    def begin_again(self, instance_id: str) -> None:
        """Delete all ledgers, cookies, tasks and counters, and give the cluster another name.

        The switch and the delay of autorecovery stay, as with BookKeeper's ``metaformat``.
        """
        self._delete_ledgers()
        for path in (
            paths.tasks(self._root),
            paths.locks(self._root),
            paths.writers(self._root),
            paths.all_of_ours(self._root),
            paths.cookies(self._root),
            paths.short_ids(self._root),
            paths.long_ids(self._root),
        ):
            self._delete(path)
        for path in (
            paths.available_readonly(self._root),
            paths.cookies(self._root),
            paths.short_ids(self._root),
        ):
            self._zk.ensure(path)
        name, data = paths.instance_id(self._root), instance_id.encode()
        try:
            self._zk.set(name, data, self._zk.get(name).version)
        except AbsentError:
            self._zk.create(name, data)

    def remove(self) -> None:
        """Delete the whole tree.

        Raises:
            InvalidArgumentError: foreign nodes exist below the root; nothing was changed.
        """
        known = {
            paths.name_of(path)
            for path in (
                paths.available(self._root),
                paths.cookies(self._root),
                paths.short_ids(self._root),
                paths.long_ids(self._root),
                paths.underreplication(self._root),
            )
        } | set(_SWITCHES)
        last = {paths.name_of(p) for p in (paths.instance_id(self._root), paths.layout(self._root))}
        names = set(self._zk.children(self._root))
        foreign = sorted(
            name
            for name in names - known - last
            if not paths.is_parent_name([name]) and not name.startswith("ID-")
        )
        if foreign:
            raise InvalidArgumentError(
                f"{self._root} holds what is no part of a cluster ({', '.join(foreign[:5])}); it "
                "may be somebody else's. Nothing was changed; remove it by hand, and repeat"
            )
        self._delete_ledgers()
        for name in sorted(names - last):
            self._delete(f"{self._root}/{name}")
        with suppress(AbsentError):
            self._zk.delete(
                self._root,
                also=[Delete(paths.layout(self._root)), Delete(paths.instance_id(self._root))],
            )

    def _delete_ledgers(self) -> None:
        for name in sorted(self._zk.children(self._root)):
            if paths.is_parent_name([name]):
                self._delete(f"{self._root}/{name}")

    def _delete(self, path: str) -> None:
        """Delete a node with everything below it; an absent node counts as deleted."""
        for _ in range(_PASSES):
            try:
                names = self._zk.children(path)
            except AbsentError:
                return
            below = [f"{path}/{name}" for name in names]
            inner = [(p, found) for p, found in self._zk.children_of_many(below) if found]
            try:
                # Most nodes with children are ledgers, whose children have none: use batches.
                self._zk.delete_many(f"{p}/{name}" for p, found in inner for name in found)
            except OccupiedError:
                for p, _found in inner:
                    self._delete(p)
            with suppress(OccupiedError):
                self._zk.delete_many(below)
                with suppress(AbsentError):
                    self._zk.delete(path)
                return
        raise MetadataError(
            f"{path} could not be removed: somebody makes nodes below it all the while. End the "
            "clients of this cluster, and repeat"
        )
