"""What goes from a bookie must have been garbage, and must stay so."""

from __future__ import annotations

from collections.abc import Iterator

from spark_bookkeeper.protocol.ids import BookieId
from tests.simulator.checkers import InvariantError
from tests.simulator.evidence import Evidence, write_set


class Removals:
    """What was removed of one life of a ledger, and that it was garbage."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._removed: dict[BookieId, set[int]] = {}

    def removed(self, bookie: BookieId, before: set[int], now: set[int]) -> None:
        """Files of a bookie were removed.

        Raises:
            InvariantError: ``nothing-named-is-deleted``.
        """
        if self._evidence.is_deleted or not self._evidence.versions:
            return
        closed = self._evidence.closed
        gone = before - now
        if closed is not None and closed.last_entry_id is not None:
            gone = {e for e in gone if e <= (closed.last_entry_id or 0)}
        elif gone:
            raise InvariantError(
                f"nothing-named-is-deleted: {sorted(gone)} went from {bookie}, and the ledger is "
                "not closed"
            )
        self._removed.setdefault(bookie, set()).update(gone)
        self.check()

    def check(self) -> None:
        """Nothing that was removed is named now. Asked again whenever the metadata change."""
        metadata = self._evidence.metadata
        for bookie, entries in self._removed.items():
            if self._evidence.named(bookie, metadata) in self._evidence.lost:
                continue
            held = self._evidence.log(bookie).held
            for entry in self._owed(bookie, entries - held):
                raise InvariantError(
                    f"nothing-named-is-deleted: entry {entry} went from {bookie}, of whose write "
                    "set it is"
                )

    def _owed(self, bookie: BookieId, entries: set[int]) -> Iterator[int]:
        for entry in sorted(entries):
            if bookie in write_set(self._evidence.metadata, entry):
                yield entry
