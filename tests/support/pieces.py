"""The smallest work there is, for tests of those who carry it out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.replication.report import Outcome, Row
from spark_bookkeeper.replication.runner import Failure, Step


@dataclass(frozen=True, slots=True)
class Piece:
    """An item."""

    number: int
    folder: str = ""
    size_bytes: int = 0

    @property
    def ledger_id(self) -> LedgerId:
        """One of that number."""
        return LedgerId(self.number)

    def name(self) -> str:
        """Its number."""
        return f"piece {self.number}"


@dataclass(frozen=True, slots=True)
class Done:
    """What became of it."""

    number: int
    status: Outcome = Outcome.REPLICATED
    reason: str | None = None
    bytes: int = 0

    def row(self) -> Row:
        """As a ledger of that number."""
        return Row(self.number, "copy", self.status, self.reason, bytes=self.bytes)


def step(
    do: Callable[[ClientContext, Piece], Sequence[Done]], phase: str = "working"
) -> Step[Piece, Done]:
    """A step that does so, and of which an error leaves, or damages when it is not ours."""
    return Step(phase, do, _failed)


def _failed(piece: Piece, failure: Failure) -> Done:
    status = Outcome.DAMAGED if failure.is_foreign else Outcome.LEFT
    return Done(piece.number, status, failure.reason)
