"""Which cluster is at a root now: its INSTANCEID, as a name for folders of ours.

What we keep beside BookKeeper's own nodes is below one that BookKeeper's tools neither list nor
take for a ledger's, in a folder named after the INSTANCEID. BookKeeper's ``metaformat`` gives the
cluster another one and begins to count its ids again: what was kept before says nothing of the
new cluster then. With ``nukeexistingcluster`` it goes as well.
"""

from __future__ import annotations

from urllib.parse import quote

from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.metadata.zookeeper.client import Changes
from spark_bookkeeper.metadata.zookeeper.link import AbsentError
from spark_bookkeeper.metadata.zookeeper.nodes import Nodes


class Instance:
    """The cluster at a root."""

    def __init__(self, zk: Nodes, root: str) -> None:
        self._zk = zk
        self._root = root
        self._changes = Changes()
        self._last: tuple[int, str] | None = None
        """The folder, and how many changes were told before it was asked for."""

    def folder(self) -> str:
        """The parent of what we keep of the cluster that is there now.

        Asks ZooKeeper only after it told of another INSTANCEID, as ``Registrations`` does.
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
