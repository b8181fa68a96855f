"""The writer of one open ledger: order of acknowledgement, LAC, ensemble change.

A pure machine: ``step`` takes an event and returns commands to be carried out in order. It knows
nothing of payloads, slots or threads. Of the entries that a bookie stores, only a prefix of those
striped to it counts (SLOT-LOG rule R2), so one entry id for each position is enough.

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
    """A bookie durably stores every entry up to ``through`` that is striped to its position."""

    position: int
    bookie: BookieId
    through: EntryId


@dataclass(frozen=True, slots=True)
class BookieFailed:
    """A bookie is lost to this writer, which never sends to it again."""

    position: int
    bookie: BookieId


@dataclass(frozen=True, slots=True)
class LookBegins:
    """A check of all bookies begins, which takes as long as the metadata store does."""


@dataclass(frozen=True, slots=True)
class BookiesLookedAt:
    """The result of a check of all bookies: the bookies that others should replace.

    By position; both are empty if no bookie could replace them.
    """

    readonly: Mapping[int, BookieId]
    """Read-only bookies with an agent; they take no new ledgers."""
    gone: Mapping[int, BookieId]
    """Bookies without an agent, whose storage may hang as well."""


@dataclass(frozen=True, slots=True)
class BookieFenced:
    """A bookie holds a fence at the writer's next slot."""

    position: int
    bookie: BookieId


@dataclass(frozen=True, slots=True)
class EnsembleChanged:
    """The metadata has ``ensemble`` from the first unacknowledged entry on."""

    ensemble: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True)
class EnsembleChangeFailed:
    """No new ensemble could be published: too few bookies exist, or the ledger is not OPEN."""


@dataclass(frozen=True, slots=True)
class EnsembleStays:
    """No bookie can replace one that is to be left. Nothing was written, for certain."""


Event = (
    AddRequested
    | Stored
    | BookieFailed
    | LookBegins
    | BookiesLookedAt
    | BookieFenced
    | EnsembleChanged
    | EnsembleChangeFailed
    | EnsembleStays
)


@dataclass(frozen=True, slots=True)
class Send:
    """Send the bookie every entry striped to its position, from ``first`` on."""

    position: int
    bookie: BookieId
    first: EntryId


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Every entry up to ``through`` is acknowledged: report it to the caller, in entry order."""

    through: EntryId


@dataclass(frozen=True, slots=True)
class ChangeEnsemble:
    """Replace the failed bookies from entry ``first`` on, by compare-and-swap while OPEN."""

    first: EntryId
    failed: Mapping[int, BookieId]
    may_stay: bool = False
    """Whether the bookies serve until others are published, and stay if none can replace them."""


@dataclass(frozen=True, slots=True)
class FailPending:
    """No pending entry will be acknowledged; each may or may not be stored."""


Command = Send | Acknowledge | ChangeEnsemble | FailPending


class WriterStatus(enum.Enum):
    """The actions that are still possible for the writer."""

    WRITING = enum.auto()
    FENCED = enum.auto()
    FAILED = enum.auto()


class Writer:
    """The adds of one open ledger. Call ``step``; carry out the commands it returns, in order."""

    def __init__(self, quorum: Quorum, ensemble: tuple[BookieId, ...]) -> None:
        self.quorum = quorum
        self.ensemble = ensemble
        """The ensemble in the metadata for the first unacknowledged entry."""
        self.last_add_pushed = NO_ENTRY
        """LAP: the highest entry id handed out."""
        self.last_add_confirmed = NO_ENTRY
        """LAC: this entry and all before it are acknowledged."""
        self.status = WriterStatus.WRITING
        self._stored_through = [NO_ENTRY] * quorum.ensemble_size
        self._failed: dict[int, BookieId] = {}
        self._leaving: set[int] = set()
        """Positions of bookies that are not lost, but are left once they have their share."""
        self._given_up: set[int] = set()
        """Leaving positions that are left without their share, once all others are left."""
        self._held: set[int] = set()
        """Leaving positions that acknowledgements wait for, at most until the next check begins."""
        self._waited_for: set[int] = set()
        """Positions that acknowledgements have waited for; they wait again only after it helped."""
        self._late: set[int] = set()
        """Positions of bookies without an agent that were behind at the last check."""
        self._looked_at = list(self._stored_through)
        """The last entry that each bookie stored at the last check."""
        self._is_changing = False

    def start(self) -> list[Command]:
        """Return the first commands: one channel for each bookie."""
        return [Send(p, bookie, EntryId(0)) for p, bookie in enumerate(self.ensemble)]

    def step(self, event: Event) -> list[Command]:
        """Take one event; return the commands to carry out now."""
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
                    return []  # an answer of a replaced bookie does not count
                self._stored_through[position] = max(self._stored_through[position], through)
                return self._leave() if self._leaving else self._confirm()
            case BookieFailed(position, bookie):
                if self.ensemble[position] != bookie or position in self._failed:
                    return []
                self._failed[position] = bookie
                return [] if self._is_changing else self._change_ensemble()
            case LookBegins():
                self._leave_nobody()
                return self._confirm()
            case BookiesLookedAt(readonly, gone):
                return self._look(readonly, gone)
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

    def _look(
        self, readonly: Mapping[int, BookieId], gone: Mapping[int, BookieId]
    ) -> list[Command]:
        """Decide which bookies to leave, and for which of them acknowledgements wait.

        A bookie that is as slow as the others are quick never stores all acknowledged entries
        unless acknowledgements wait for it. They wait once, until the next check, but not for a
        bookie without an agent that stored nothing since the last one: its storage probably hangs.
        Autorecovery counts a bookie without an agent as lost, and the ledger with it. So one that
        was behind at the last check, and still is, is left all the same.
        """
        stored = self._stored_through
        moved = {p for p, before in enumerate(self._looked_at) if stored[p] > before}
        self._looked_at = list(stored)
        leaving = {p for p, b in (*readonly.items(), *gone.items()) if self.ensemble[p] == b}
        behind = {p for p in leaving if self._is_behind(p)}
        late = behind & gone.keys()
        too_late, self._late = self._late & late, late
        self._waited_for &= leaving
        self._leave_nobody()
        if self._is_changing:
            return []
        self._leaving, self._given_up = leaving, too_late
        self._held = (behind & (readonly.keys() | moved)) - self._waited_for
        self._waited_for |= self._held
        return self._leave()

    def _leave(self) -> list[Command]:
        """Replace a bookie that is not lost, as soon as it stores all acknowledged entries.

        A read-only bookie stays alive, and one without an agent may be back soon. Then
        rereplication does not look for entries that it never got, so it must store its acknowledged
        share before it is left [leave_whole]. It serves until its replacement is published. Bookies
        are left one by one, because there may not be replacements for all.
        """
        if self._is_changing:
            return []
        whole = {p for p in self._leaving if not self._is_behind(p)}
        if not (ready := whole or self._given_up):
            return self._confirm()
        position = min(ready)
        if whole:
            self._waited_for.discard(position)
        self._is_changing = True
        first, bookies = EntryId(self.last_add_confirmed + 1), {position: self.ensemble[position]}
        return [ChangeEnsemble(first, bookies, may_stay=True)]

    def _is_behind(self, position: int) -> bool:
        """Return whether a bookie lacks, or may lack, acknowledged entries of its share."""
        return self._stored_through[position] < self.last_add_confirmed

    def _stay(self) -> list[Command]:
        if self._failed:
            return self._change_ensemble()
        self._leave_nobody()
        self._is_changing = False
        return self._confirm()

    def _leave_nobody(self) -> None:
        """Stop leaving bookies; the next check, which comes soon, decides again."""
        self._leaving, self._given_up, self._held = set(), set(), set()

    def _change_ensemble(self) -> list[Command]:
        self._is_changing = True
        self._leave_nobody()  # a failed bookie comes first
        return [ChangeEnsemble(EntryId(self.last_add_confirmed + 1), dict(self._failed))]

    def _adopt(self, ensemble: tuple[BookieId, ...]) -> list[Command]:
        """Continue with the published ensemble.

        Acks of a replaced bookie for entries after the LAC are dropped (rule R7): its successor has
        none of them, so an entry that had an ack quorum may no longer have one.
        """
        first = EntryId(self.last_add_confirmed + 1)
        commands: list[Command] = []
        for position, bookie in enumerate(ensemble):
            if bookie == self.ensemble[position]:
                continue
            self._stored_through[position] = self.last_add_confirmed
            self._failed.pop(position, None)
            for of_the_bookie in (
                self._leaving, self._given_up, self._held, self._waited_for, self._late
            ):  # fmt: skip
                of_the_bookie.discard(position)
            commands.append(Send(position, bookie, first))
        self.ensemble = ensemble
        if self._failed:
            return commands + self._change_ensemble()
        self._is_changing = False
        return commands + self._leave()

    def _confirm(self) -> list[Command]:
        if self._is_changing or self._held:
            return []  # only on a published ensemble (rule R7, ec_cas_first)
        confirmed = self.quorum.confirmed_through(self._stored_through, self.last_add_pushed)
        if confirmed <= self.last_add_confirmed:
            return []
        self.last_add_confirmed = confirmed
        return [Acknowledge(confirmed)]
