"""The end of the readable entries, kept current with few requests.

Spark queries a stream a hundred times a second. Watches report changes in the metadata store, so a
query costs a request only after a change: an idle log whose newest ledger is closed costs none.
Only bookies know the end of a ledger that is being written, and they report nothing. They are
queried, more and more rarely while no entry comes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from spark_bookkeeper.errors import EntryUnreadableError, MetadataUnavailableError
from spark_bookkeeper.metadata.store import Unchanged
from spark_bookkeeper.protocol.log import Position
from spark_bookkeeper.runtime.runtime import Runtime

_log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.1
"""Wait between two looks while entries come."""

IDLE_LOOK_SECONDS: Final = 1.0
"""Longest wait, after no entry has come from the bookies for some time."""


class HeadSnapshot(NamedTuple):
    """The result of a look."""

    position: Position
    """The position after the last entry that can be read."""
    is_written: bool
    """Whether entries may come that do not change the metadata."""
    is_current: Unchanged
    """Whether the metadata have not changed since they were read."""

    def ends_before(self, place: Position) -> bool:
        """Whether a place is certainly after all entries.

        The end of an open ledger may seem to move back, when the bookies that know more do not
        answer. And nothing is certain once the metadata have changed.
        """
        is_behind = place > self.position
        is_sure = not self.is_written or place.ledger_id > self.position.ledger_id
        return is_behind and is_sure and self.is_current()


class LatestOffset:
    """The position after the last entry of a followed log or ledger.

    Args:
        runtime: its clock.
        name: the name of the log or ledger in messages.
        look: finds the position; receives its previous result, ``None`` at first.
    """

    def __init__(
        self, runtime: Runtime, name: str, look: Callable[[HeadSnapshot | None], HeadSnapshot]
    ) -> None:
        self._runtime = runtime
        self._name = name
        self._look = look
        self._seen: HeadSnapshot | None = None
        self._looked_at = 0.0
        self._pause = LOOK_SECONDS

    def sight(self) -> HeadSnapshot:
        """Return the current snapshot, or a recent one.

        Errors are raised only by the first look. Later they are logged, and the snapshot stays.
        """
        before = self._seen
        if before is not None and not self._is_due(before):
            return before
        self._looked_at = self._runtime.now()
        try:
            self._seen = seen = self._look(before)
        except (EntryUnreadableError, MetadataUnavailableError) as error:
            if before is None:
                raise
            _log.warning("%s is not looked at now: %s", self._name, error)
            seen = before
        is_idle = before is not None and before.position == seen.position
        self._pause = min(self._pause * 2, IDLE_LOOK_SECONDS) if is_idle else LOOK_SECONDS
        return seen

    def _is_due(self, seen: HeadSnapshot) -> bool:
        is_current = seen.is_current()
        if is_current and not seen.is_written:
            return False
        pause = self._pause if is_current else LOOK_SECONDS
        return self._runtime.now() >= self._looked_at + pause
