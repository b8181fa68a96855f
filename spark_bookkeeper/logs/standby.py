"""The warm standby: a process that has applied a whole log before it writes to it.

The standby follows the log without fencing, so it does not disturb the writer. When it leads, it
becomes the writer, which fences the old one: from then on the old ledgers cannot grow. Then it
reads the rest, since a reader that does not fence sees only entries known to be confirmed, and
there may be more. Only then it writes.

Source: "Fencing" ("Using fencing": "you must open the ledger again ... before failing over to your
warm backup").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from spark_bookkeeper.client.read.reader import Entry
from spark_bookkeeper.errors import BookKeeperError, InvalidArgumentError, LogOwnershipLostError
from spark_bookkeeper.logs.positions import Place
from spark_bookkeeper.logs.writer import LogWriter
from spark_bookkeeper.metadata.election import Vote
from spark_bookkeeper.protocol.ids import EntryId
from spark_bookkeeper.protocol.log import Position
from spark_bookkeeper.runtime.runtime import Runtime


class Followable(Protocol):
    """The methods of a log that a standby needs."""

    def follow(
        self, start: Place | None, timeout_ms: int | None, is_over: Callable[[], bool]
    ) -> Iterator[Entry]:
        """Yield entries as they are acknowledged, until ``is_over``."""

    def entries(self, start: Place | None = None, end: Place | None = None) -> Iterator[Entry]:
        """Yield the entries of a range."""

    def become_writer(self, is_leader: Callable[[], bool] | None = None) -> LogWriter:
        """Fence the current writer, and return a new one."""


class _Turn:
    """Waits in the background, while the log is followed, until the vote leads."""

    def __init__(self, vote: Vote, runtime: Runtime) -> None:
        self._vote = vote
        self.is_over = False
        self.error: BookKeeperError | None = None
        runtime.spawn("await-turn", self._wait)

    def _wait(self) -> None:
        try:
            if not self._vote.wait():
                self.error = InvalidArgumentError(
                    "the vote of this standby was left; elect() gives a new one"
                )
        except BookKeeperError as error:
            self.error = error
        self.is_over = True


def stand_by(
    log: Followable,
    runtime: Runtime,
    vote: Vote,
    apply: Callable[[Entry], object],
    start: Place | None,
) -> LogWriter:
    """See ``Log.stand_by``."""
    following = start

    def applied(entry: Entry) -> None:
        nonlocal following
        apply(entry)
        following = Position(entry.ledger_id, EntryId(entry.entry_id + 1))

    while True:
        turn = _Turn(vote, runtime)
        for entry in log.follow(following, None, lambda turn=turn: turn.is_over):  # type: ignore[misc]  # of a default
            applied(entry)
        if turn.error is not None:
            raise turn.error
        try:
            writer = log.become_writer(is_leader=lambda: vote.is_leader)
        except LogOwnershipLostError:
            continue  # another process leads; or it believes so, and the election decides
        try:
            for entry in log.entries(following, Position(writer.ledger_id, EntryId(0))):
                applied(entry)
        except BaseException:
            writer.abandon()
            raise
        return writer
