"""Marks of the ids that were chosen; they stay when the ledgers are deleted.

They are below a node that BookKeeper's own tools neither list nor take for a ledger's, in a folder
named after the cluster's INSTANCEID. BookKeeper's ``metaformat`` gives the cluster another one and
begins to count its ids again: what was marked before forbids nothing then. With
``nukeexistingcluster`` the marks go as well.
"""

from __future__ import annotations

from urllib.parse import quote

from spark_bookkeeper.metadata import paths
from spark_bookkeeper.metadata.connection import Connection
from spark_bookkeeper.metadata.link import AbsentError, Changes
from spark_bookkeeper.protocol.ids import LedgerId


class UsedIds:
    """Those of the cluster at a root."""

    def __init__(self, zk: Connection, root: str) -> None:
        self._zk = zk
        self._root = root
        self._changes = Changes()
        self._last: tuple[int, str] | None = None
        """The folder, and how many changes were told before it was asked for."""

    def mark(self, ledger_id: LedgerId) -> str:
        """The node that marks an id in the cluster that is there now.

        Asks ZooKeeper only after it told of another INSTANCEID, as ``Registrations`` does.
        """
        last = self._last
        if last is not None and last[0] == self._changes.count:
            return paths.ledger(last[1], ledger_id)
        told = self._changes.count
        try:
            found = self._zk.get(paths.instance_id(self._root), self._changes).data
        except AbsentError:
            return paths.ledger(paths.used_ids(self._root, "none"), ledger_id)
        folder = paths.used_ids(self._root, quote(found, safe=""))
        self._last = (told, folder)
        return paths.ledger(folder, ledger_id)
