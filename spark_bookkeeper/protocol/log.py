"""A log: an ordered list of ledgers under a name, and its transitions as pure steps.

The list is one compare-and-swap register, the *head*. It would outgrow a znode, so runs of old
ledgers are sealed into *chunks*: registers of their own that never change, of which the head
keeps the name, the ends and the count.

Ledger ids ascend along a log, so a place in it is told by the ledger's id alone, and two places
are compared without reading the list. Two marks move up only::

    deleted_below <= begins_at <= newest ledger

Ledgers below ``begins_at`` are no longer part of the log; those below ``deleted_below`` are
deleted as well. What lies between is what a truncation that was interrupted has left to do.

Source: The BookKeeper protocol, "Ledgers to logs" (opening a log, rolling ledgers).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.transactions import Transaction, Transactions

CHUNK_LEDGERS: Final = 1_000
"""Ledgers in one chunk: 8 KB or so; 200 chunks, 200,000 ledgers, take 15 KB in the head."""

_NOTHING: Final = LedgerId(0)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._\-]{0,199}")
_POSITION = re.compile(r"(\d{1,19}):(-1|\d{1,19})(?::(\d{1,19}))?", re.ASCII)


def parse_log_name(name: object) -> str:
    """``name``, if it can be a log's.

    Raises:
        InvalidArgumentError: it cannot; it becomes the name of a node in the metadata store.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"log name {name!r} is not one: 1 to 200 letters, digits, '.', '_' and '-', of which "
            "the first is a letter, a digit or '_', for example 'orders-2024'"
        )
    return name


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A row of a log, or the place where it would be. Ordered as the log is.

    Stays meaningful when what is before it is truncated, and when ledgers are added.
    """

    ledger_id: LedgerId
    entry_id: EntryId
    row: int = 0

    def __str__(self) -> str:
        """``ledger:entry:row``, which ``Position.parse`` reads."""
        return f"{self.ledger_id}:{self.entry_id}:{self.row}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """The position that was printed as ``ledger:entry:row``; without a row it is row 0.

        Raises:
            InvalidArgumentError: it is not of that form, or a number is above 2**63-1.
        """
        matched = _POSITION.fullmatch(text) if isinstance(text, str) else None
        if matched is None:
            raise InvalidArgumentError(
                f"position {text!r} is not of the form ledger:entry or ledger:entry:row, for "
                "example 7:12:0"
            )
        ledger, entry, row = map(int, matched.groups(default="0"))
        if max(ledger, entry, row) >= 1 << 63:
            raise InvalidArgumentError(f"position {text!r} has a number above 2**63-1")
        return cls(LedgerId(ledger), EntryId(entry), row)


NOWHERE: Final = Position(LedgerId(0), EntryId(0))
"""Before the first entry of every log."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A sealed run of a log's ledgers; which ones is in a register of this name."""

    name: str
    first: LedgerId
    last: LedgerId
    count: int


@dataclass(frozen=True, slots=True)
class LogHead:
    """What everybody agrees on about one log.

    Invariants: chunks and ``recent`` ascend; ``recent`` holds the newest ledger, and the one
    before it unless the log has one only, since those two are fenced together.
    """

    nonce: str
    """The life of the log: another one when the name was deleted and used again."""
    options: Mapping[str, object] = field(default_factory=dict)
    """How its ledgers are made; ``logs/`` knows the keys."""
    chunks: tuple[Chunk, ...] = ()
    recent: tuple[LedgerId, ...] = ()
    begins_at: LedgerId = _NOTHING
    deleted_below: LedgerId = _NOTHING
    truncated_end: Position | None = None
    """Behind the last entry below ``begins_at``: whoever stands there has read all that went.
    ``None`` where nobody knows: its ledger was gone, or an earlier version wrote this head."""
    is_deleted: bool = False
    """The name is free again. The register stays, so that its version never begins anew and no
    writer of the old life can change the new one."""
    transactions: Transactions = field(default_factory=Transactions)
    """Which numbered writes it holds."""

    def __post_init__(self) -> None:
        ends = [end for chunk in self.chunks for end in (chunk.first, chunk.last)]
        ascending = [*ends, *self.recent]
        singles = {chunk.first for chunk in self.chunks if chunk.count == 1}
        for before, after in pairwise(ascending):
            if before > after or (before == after and before not in singles):
                raise InvalidArgumentError(
                    f"the ledgers of a log ascend, and {after} follows {before}"
                )
        if self.chunks and len(self.recent) < 2:
            raise InvalidArgumentError("the last two ledgers of a log are in its head")
        if not 0 <= self.deleted_below <= self.begins_at:
            raise InvalidArgumentError(
                f"deleted_below={self.deleted_below} and begins_at={self.begins_at} of a log are "
                "not in order"
            )

    @property
    def newest(self) -> LedgerId | None:
        """The ledger that a writer appends to, or was the last to be appended to."""
        return self.recent[-1] if self.recent else None

    @property
    def to_fence(self) -> tuple[LedgerId, ...]:
        """What a new writer fences first: the last two ledgers, or one if there is one.

        Two, since a writer that rolls goes on in the second-to-last while it adds the last.
        """
        return self.recent[-2:]

    def may_hold(self, ledger_id: LedgerId) -> bool:
        """Whether the ledger may be in the list; False is certain. Chunks are not read for it."""
        return ledger_id in self.recent or any(
            chunk.first <= ledger_id <= chunk.last for chunk in self.chunks
        )

    def unfinished(self) -> bool:
        """Whether a truncation has ledgers left to delete."""
        return self.deleted_below < self.begins_at

    def resumed(self, place: Position) -> Position | None:
        """Where somebody goes on who stands at a place: there, or at the beginning, if nothing was
        between. ``None`` where what was to be read next went, may have gone, or never was there.
        """
        if place.ledger_id >= self.begins_at:
            return place
        end = self.truncated_end
        if end is None or place < end or (place > end and place.entry_id > 0):
            return None
        return Position(self.begins_at, EntryId(0))

    # Transitions

    def with_ledger(self, ledger_id: LedgerId) -> LogHead:
        """One ledger more, at the end."""
        assert self.newest is None or ledger_id > self.newest, "entries-in-write-order"
        return replace(self, recent=(*self.recent, ledger_id))

    def with_transaction(self, transaction: Transaction) -> LogHead:
        """One numbered write more, whose ledger, if it had any rows, is the newest one.

        Raises:
            InvalidArgumentError: no further application can be remembered.
        """
        newest = _NOTHING if self.newest is None else self.newest
        made = self.transactions.with_last(transaction, newest, self.begins_at)
        return replace(self, transactions=made)

    def to_seal(self, size: int = CHUNK_LEDGERS) -> tuple[LedgerId, ...]:
        """The oldest recent ledgers, when there are enough of them for a chunk; or nothing."""
        return self.recent[:size] if len(self.recent) >= size + max(2, size) else ()

    def with_chunk(self, name: str, ledgers: tuple[LedgerId, ...]) -> LogHead:
        """These ledgers, the oldest recent ones, are in a register of their own from now on."""
        assert self.recent[: len(ledgers)] == ledgers, "non-empty-ledgers-are-in-the-log"
        chunk = Chunk(name, ledgers[0], ledgers[-1], len(ledgers))
        return replace(self, chunks=(*self.chunks, chunk), recent=self.recent[len(ledgers) :])

    def truncated(self, before: LedgerId, end: Position | None = None) -> LogHead:
        """Ledgers below ``before`` are no longer part of the log; the newest always stays.

        Args:
            before: the first that stays.
            end: behind the last entry below it, ``NOWHERE`` if all that go are empty; ``None``
                where nobody knows.
        """
        if self.newest is None or before <= self.begins_at:
            return self
        if end == NOWHERE and self.begins_at != _NOTHING:
            end = self.truncated_end
        return replace(self, begins_at=LedgerId(min(before, self.newest)), truncated_end=end)

    def deleted(self, below: LedgerId) -> LogHead:
        """Every ledger below ``below`` is deleted, and forgotten where that makes the list shorter.

        A chunk goes when all its ledgers are; the last two ledgers stay in the list.
        """
        assert below <= self.begins_at, "non-empty-ledgers-are-in-the-log"
        if below <= self.deleted_below:
            return self
        old = [ledger for ledger in self.recent[:-2] if ledger < below]
        return replace(
            self,
            chunks=tuple(chunk for chunk in self.chunks if chunk.last >= below),
            recent=self.recent[len(old) :],
            deleted_below=below,
        )

    def forgotten_chunks(self, after: LogHead) -> tuple[Chunk, ...]:
        """The chunks of this head that a later one no longer has."""
        kept = {chunk.name for chunk in after.chunks}
        return tuple(chunk for chunk in self.chunks if chunk.name not in kept)
