"""How far there is something to read, kept current without asking again and again.

Spark asks a stream a hundred times a second. What the metadata store knows is watched, so asking
costs a request only after it told of a change: an idle log whose newest ledger is closed costs
none at all. How far a ledger has come that is still written only its bookies know, and they tell
nobody: they are asked, more and more seldom while nothing comes.
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
"""Between two looks while something comes."""

IDLE_LOOK_SECONDS: Final = 1.0
"""And when nothing came from the bookies for long."""


class HeadSnapshot(NamedTuple):
    """What a look found."""

    position: Position
    """Behind the last entry that can be read."""
    is_written: bool
    """Whether entries may come of which the metadata store tells nothing."""
    is_current: Unchanged
    """Whether the metadata that were read are still as they were."""

    def ends_before(self, place: Position) -> bool:
        """Whether a place is surely behind all there is.

        The end of a ledger that is still written may be seen earlier than before, when the bookies
        that know more are away. Of metadata that changed since nothing is sure either.
        """
        is_behind = place > self.position
        is_sure = not self.is_written or place.ledger_id > self.position.ledger_id
        return is_behind and is_sure and self.is_current()


class LatestOffset:
    """Behind the last entry of something that is followed.

    Args:
        runtime: its clock.
        name: of what is followed, for people.
        look: asks now; is handed what it found last, ``None`` at first.
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
        """What there is now, or was a moment ago.

        Trouble is raised at the first look only; later the front stays where it was.
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
