"""The writer of one open ledger: order of acknowledgement, LAC, ensemble change.

A pure machine: ``step`` takes an event and returns commands to be carried out in order. It
knows nothing of payloads, slots or threads. What a bookie stores is always a prefix of what
is striped to it (SLOT-LOG rule R2), so one entry id for each position says everything.

Source: The BookKeeper protocol, "Writing to ledgers"; BookKeeper ``client/LedgerHandle``
(``sendAddSuccessCallbacks``, ``ensembleChangeLoop``); SLOT-LOG rules R2, R7, R10.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from typing_extensions import assert_never

from spark_bookkeeper.protocol.ids import NO_ENTRY, BookieId, EntryId
from spark_bookkeeper.protocol.quorum import Quorum


@dataclass(frozen=True, slots=True)
class AddRequested:
    """The caller hands over ``count`` more entries."""

    count: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A bookie durably stores everything up to ``through`` that is striped to its position."""

    position: int
    bookie: BookieId
    through: EntryId


@dataclass(frozen=True, slots=True)
class BookieFailed:
    """A bookie is lost to this writer: it will never be sent anything again."""

    position: int
    bookie: BookieId


@dataclass(frozen=True, slots=True)
class BookieToBeLeft:
    """A bookie is read-only, or has no agent: another is to take its place, if one can."""

    position: int
    bookie: BookieId
    may_hold: bool
    """Whether acknowledgements may wait until it has its share of what was acknowledged: it is
    read-only, and its agent is there. Where none is, the storage may hang as well."""


@dataclass(frozen=True, slots=True)
class BookieFenced:
    """A bookie holds a fence where the writer's next slot should be."""

    position: int
    bookie: BookieId


@dataclass(frozen=True, slots=True)
class EnsembleChanged:
    """The metadata now names ``ensemble`` from the first unacknowledged entry on."""

    ensemble: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True)
class EnsembleChangeFailed:
    """No new ensemble could be published: too few bookies, or the ledger is not OPEN."""


@dataclass(frozen=True, slots=True)
class EnsembleStays:
    """Nobody can take the place of a bookie to be left. Nothing was written, for certain."""


Event = (
    AddRequested
    | Stored
    | BookieFailed
    | BookieToBeLeft
    | BookieFenced
    | EnsembleChanged
    | EnsembleChangeFailed
    | EnsembleStays
)


@dataclass(frozen=True, slots=True)
class Send:
    """Send the bookie everything striped to its position, from ``first`` on."""

    position: int
    bookie: BookieId
    first: EntryId


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Every entry up to ``through`` is acknowledged: tell the caller, in entry order."""

    through: EntryId


@dataclass(frozen=True, slots=True)
class ChangeEnsemble:
    """Replace the failed bookies from entry ``first`` on, by compare-and-swap while OPEN."""

    first: EntryId
    failed: Mapping[int, BookieId]
    may_stay: bool = False
    """None of them is lost: where nobody can take their place, the ensemble stays."""


@dataclass(frozen=True, slots=True)
class FailPending:
    """No pending entry will be acknowledged any more; each may or may not be stored."""


Command = Send | Acknowledge | ChangeEnsemble | FailPending


class WriterStatus(enum.Enum):
    """What the writer can still do."""

    WRITING = enum.auto()
    FENCED = enum.auto()
    FAILED = enum.auto()


class Writer:
    """Adds of one open ledger. Call ``step``; carry out the commands it returns, in order."""

    def __init__(self, quorum: Quorum, ensemble: tuple[BookieId, ...]) -> None:
        self.quorum = quorum
        self.ensemble = ensemble
        """The ensemble that the metadata names for the first unacknowledged entry."""
        self.last_add_pushed = NO_ENTRY
        """LAP: the highest entry id handed out."""
        self.last_add_confirmed = NO_ENTRY
        """LAC: this entry and all before it are acknowledged."""
        self.status = WriterStatus.WRITING
        self._stored_through = [NO_ENTRY] * quorum.ensemble_size
        self._failed: dict[int, BookieId] = {}
        self._leaving: int | None = None
        """Position of a bookie that is not lost, and is left once it has its share."""
        self._is_held = False
        """Whether acknowledgements wait until it has."""
        self._is_changing = False

    def start(self) -> list[Command]:
        """The first commands: one lane for each bookie."""
        return [Send(p, bookie, EntryId(0)) for p, bookie in enumerate(self.ensemble)]

    def step(self, event: Event) -> list[Command]:
        """Take one event; returns what to do now."""
        confirmed_before = self.last_add_confirmed
        commands = self._handle(event) if self.status is WriterStatus.WRITING else []
        assert self.last_add_confirmed >= confirmed_before, "lac-is-confirmed"
        assert self.last_add_confirmed <= self.last_add_pushed, "lac-is-confirmed"
        return commands

    def _handle(self, event: Event) -> list[Command]:
        match event:
            case AddRequested(count):
                self.last_add_pushed = EntryId(self.last_add_pushed + count)
                return []
            case Stored(position, bookie, through):
                if self.ensemble[position] != bookie:
                    return []  # an answer from a bookie that was replaced counts for nothing
                self._stored_through[position] = max(self._stored_through[position], through)
                return self._confirm() if self._leaving is None else self._leave()
            case BookieFailed(position, bookie):
                if self.ensemble[position] != bookie or position in self._failed:
                    return []
                self._failed[position] = bookie
                return [] if self._is_changing else self._change_ensemble()
            case BookieToBeLeft(position, bookie, may_hold):
                if self.ensemble[position] != bookie or self._is_changing:
                    return []
                if may_hold and self._leaving == position and self._is_held:
                    self._leaving = None  # it has not caught up: do not wait any longer
                    return self._confirm()
                self._leaving, self._is_held = position, may_hold
                return self._leave()
            case BookieFenced(position, bookie):
                if self.ensemble[position] != bookie:
                    return []
                self.status = WriterStatus.FENCED
                return [FailPending()]
            case EnsembleChanged(ensemble):
                return self._adopt(ensemble)
            case EnsembleStays():
                return self._stay()
            case EnsembleChangeFailed():
                self.status = WriterStatus.FAILED
                return [FailPending()]
            case _:
                assert_never(event)

    def _leave(self) -> list[Command]:
        """Replace a bookie that is not lost, as soon as it stores what is acknowledged.

        One that is read-only stays alive, and one without an agent may be back soon: then no
        re-replication looks for what it never got, so it must store its share of what is
        acknowledged before it is left [leave_whole]. Until then nothing more is acknowledged where
        it is read-only, or a slow bookie would never catch up. When the caller says for a second
        time that it is to be left, it may hang, and the writer goes on with it. The storage of one
        without an agent is more likely to hang, so there nothing is held up: it is left at a
        moment at which it has caught up.
        """
        assert self._leaving is not None
        if self._is_changing:
            return []
        if self._stored_through[self._leaving] < self.last_add_confirmed:
            return self._confirm()
        self._is_changing = True
        left = {self._leaving: self.ensemble[self._leaving]}
        return [ChangeEnsemble(EntryId(self.last_add_confirmed + 1), left, may_stay=True)]

    def _stay(self) -> list[Command]:
        self._leaving = None
        if self._failed:
            return self._change_ensemble()
        self._is_changing = False
        return self._confirm()

    def _change_ensemble(self) -> list[Command]:
        self._is_changing = True
        # A failed bookie comes first. Who is to be left is told of again by the caller.
        self._leaving = None
        return [ChangeEnsemble(EntryId(self.last_add_confirmed + 1), dict(self._failed))]

    def _adopt(self, ensemble: tuple[BookieId, ...]) -> list[Command]:
        """Go on with the published ensemble.

        Acks of a replaced bookie for entries beyond the LAC are dropped (rule R7): its successor
        starts with nothing of them, and what had reached an ack quorum may no longer have it.
        """
        first = EntryId(self.last_add_confirmed + 1)
        commands: list[Command] = []
        for position, bookie in enumerate(ensemble):
            if bookie == self.ensemble[position]:
                continue
            self._stored_through[position] = self.last_add_confirmed
            self._failed.pop(position, None)
            commands.append(Send(position, bookie, first))
        self.ensemble = ensemble
        self._leaving = None
        if self._failed:
            return commands + self._change_ensemble()
        self._is_changing = False
        return commands + self._confirm()

    def _confirm(self) -> list[Command]:
        if self._is_changing or (self._leaving is not None and self._is_held):
            return []  # only on an ensemble that is published (rule R7, ec_cas_first)
        confirmed = self.quorum.confirmed_through(self._stored_through, self.last_add_pushed)
        if confirmed <= self.last_add_confirmed:
            return []
        self.last_add_confirmed = confirmed
        return [Acknowledge(confirmed)]
