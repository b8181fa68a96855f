"""A log: an ordered list of ledgers under a name, and its transitions as pure steps.

The list is one compare-and-swap register, the *head*. It would outgrow a znode, so runs of old
ledgers are sealed into *chunks*: separate registers that never change. The head keeps the name, the
ends and the count of each chunk.

Ledger ids ascend along a log, so a position needs only the ledger's id, and two positions are
compared without reading the list. Two marks only ever move up::

    deleted_below <= begins_at <= newest ledger

Ledgers below ``begins_at`` are no longer part of the log; those below ``deleted_below`` are deleted
as well. An interrupted truncation has yet to delete the ledgers between the two.

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
"""The ledgers in one chunk, about 8 KB. 200 chunks, 200,000 ledgers, take 15 KB in the head."""

_NOTHING: Final = LedgerId(0)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._\-]{0,199}")
_POSITION = re.compile(r"(\d{1,19}):(-1|\d{1,19})(?::(\d{1,19}))?", re.ASCII)


def parse_log_name(name: object) -> str:
    """Return ``name`` if it is valid for a log.

    Raises:
        InvalidArgumentError: it is not valid; it becomes the name of a node in the metadata store.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"log name {name!r} is not one: 1 to 200 letters, digits, '.', '_' and '-', of which "
            "the first is a letter, a digit or '_', for example 'orders-2024'"
        )
    return name


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The position of a row of a log, existing or not. Ordered as the log is.

    It stays valid when ledgers before it are truncated, and when ledgers are added.
    """

    ledger_id: LedgerId
    entry_id: EntryId
    row: int = 0

    def __str__(self) -> str:
        """Return ``ledger:entry:row``, which ``Position.parse`` reads."""
        return f"{self.ledger_id}:{self.entry_id}:{self.row}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Return the position with the text ``ledger:entry:row``; without a row, row 0.

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
"""The position before the first entry of every log."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A sealed run of a log's ledgers; the register of this name holds their ids."""

    name: str
    first: LedgerId
    last: LedgerId
    count: int


@dataclass(frozen=True, slots=True)
class LogHead:
    """The shared state of one log.

    Invariants: chunks and ``recent`` ascend; ``recent`` holds the last two ledgers, or the only
    one, because the last two are fenced in one step.
    """

    nonce: str
    """The identity of the log's life; a later log of the same name has another."""
    options: Mapping[str, object] = field(default_factory=dict)
    """The options of its ledgers; ``logs/`` knows the keys."""
    chunks: tuple[Chunk, ...] = ()
    recent: tuple[LedgerId, ...] = ()
    begins_at: LedgerId = _NOTHING
    deleted_below: LedgerId = _NOTHING
    truncated_end: Position | None = None
    """The position after the last entry below ``begins_at``: a follower there has read all removed
    entries. ``None`` if unknown: its ledger was missing, or an earlier version wrote this head."""
    is_deleted: bool = False
    """Whether the log is deleted and the name free. The register stays, so that its version never
    begins anew and no writer of the old life can change the new one."""
    transactions: Transactions = field(default_factory=Transactions)
    """The numbered writes that it holds."""

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
        """The ledger that a writer appends to, or that was the last one appended to."""
        return self.recent[-1] if self.recent else None

    @property
    def to_fence(self) -> tuple[LedgerId, ...]:
        """The ledgers that a new writer fences first: the last two, or the only one.

        Two, because a writer that rolls continues in the second-to-last while it adds the last.
        """
        return self.recent[-2:]

    def may_hold(self, ledger_id: LedgerId) -> bool:
        """Return whether the ledger may be in the list; False is certain. Reads no chunks."""
        return ledger_id in self.recent or any(
            chunk.first <= ledger_id <= chunk.last for chunk in self.chunks
        )

    def unfinished(self) -> bool:
        """Return whether a truncation still has ledgers to delete."""
        return self.deleted_below < self.begins_at

    def resumed(self, place: Position) -> Position | None:
        """Return where a follower continues from a position: there, or at the beginning if no entry
        was between. ``None`` if its next entry was or may be truncated, or never existed.
        """
        if place.ledger_id >= self.begins_at:
            return place
        end = self.truncated_end
        if end is None or place < end or (place > end and place.entry_id > 0):
            return None
        return Position(self.begins_at, EntryId(0))

    # Transitions

    def with_ledger(self, ledger_id: LedgerId) -> LogHead:
        """Return the head with one more ledger at the end."""
        assert self.newest is None or ledger_id > self.newest, "entries-in-write-order"
        return replace(self, recent=(*self.recent, ledger_id))

    def with_transaction(self, transaction: Transaction) -> LogHead:
        """Return the head with one more numbered write; if it had rows, its ledger is the newest.

        Raises:
            InvalidArgumentError: no further application can be stored.
        """
        newest = _NOTHING if self.newest is None else self.newest
        made = self.transactions.with_last(transaction, newest, self.begins_at)
        return replace(self, transactions=made)

    def to_seal(self, size: int = CHUNK_LEDGERS) -> tuple[LedgerId, ...]:
        """Return the oldest recent ledgers to seal, if as many more (at least 2) stay recent."""
        return self.recent[:size] if len(self.recent) >= size + max(2, size) else ()

    def with_chunk(self, name: str, ledgers: tuple[LedgerId, ...]) -> LogHead:
        """Return the head with its oldest recent ledgers, these, sealed in their own register."""
        assert self.recent[: len(ledgers)] == ledgers, "non-empty-ledgers-are-in-the-log"
        chunk = Chunk(name, ledgers[0], ledgers[-1], len(ledgers))
        return replace(self, chunks=(*self.chunks, chunk), recent=self.recent[len(ledgers) :])

    def truncated(self, before: LedgerId, end: Position | None = None) -> LogHead:
        """Return the head after a truncation below ``before``; the newest ledger always stays.

        Args:
            before: the first ledger that stays.
            end: the position after the last entry below it; ``NOWHERE`` if all removed ledgers are
                empty, ``None`` if unknown.
        """
        if self.newest is None or before <= self.begins_at:
            return self
        if end == NOWHERE and self.begins_at != _NOTHING:
            end = self.truncated_end
        return replace(self, begins_at=LedgerId(min(before, self.newest)), truncated_end=end)

    def deleted(self, below: LedgerId) -> LogHead:
        """Return the head after the deletion of all ledgers below ``below``, with a shorter list.

        A chunk is removed once all its ledgers are deleted; the last two ledgers stay in the list.
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
        """Return the chunks of this head that a later one no longer has."""
        kept = {chunk.name for chunk in after.chunks}
        return tuple(chunk for chunk in self.chunks if chunk.name not in kept)
