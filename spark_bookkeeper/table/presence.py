"""Whether a table still has the files of ledgers, before anything is read from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_bookkeeper.table.rows import TableRows
from spark_bookkeeper.table.snapshot import TableFiles


class Presence:
    """The files of a table; each is looked for once, whatever the number of ledgers.

    Args:
        ledger_ids: all that it will be asked for.
    """

    def __init__(self, rows: TableRows, ledger_ids: Sequence[int]) -> None:
        self._rows = rows
        self._ledger_ids = ledger_ids
        self._there: dict[str, bool] = {}
        self._newest: Mapping[int, TableFiles] | None = None

    def what_is_gone(self, ledger_id: int, pinned: TableFiles) -> str | None:
        """What a reader of a ledger would miss, in words; ``None``: nothing, by the names of files.

        Args:
            pinned: those that its list names. Where one is gone, the newest version counts.

        Raises:
            BookieUnavailableError: one is gone, and the table's log cannot be read.
        """
        if all(map(self._is_there, pinned.paths)):
            return None
        if self._newest is None:
            self._newest = self._rows.files_of_each(self._ledger_ids)
        paths = self._newest[ledger_id].paths
        if not paths:
            return "the table has no rows of it any more"
        gone = [path for path in paths if not self._is_there(path)]
        return f"the table's file {gone[0]} is not there" if gone else None

    def _is_there(self, path: str) -> bool:
        if path not in self._there:
            self._there[path] = self._rows.folder.size(path) is not None
        return self._there[path]
