"""Ledger recovery: find the last entry of a ledger that has lost its writer.

A pure machine. The last fragment's bookies are fenced. The slot log of a fenced bookie is fixed, so
its answer is a value: the highest LAC it knows, and the later entries it holds. From these values
the machine decides entry by entry, and says what to copy before the close.

Source: The BookKeeper protocol, "Closing a ledger" and "Fencing"; Fencing internals, steps 1 to 3;
BookKeeper ``client/LedgerRecoveryOp``; SLOT-LOG "Recover", rules R5, R6, R6b, R8; decision 0056 for
entries that an operator gives up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from spark_bookkeeper.errors import VersionConflictError
from spark_bookkeeper.protocol.accepted_loss import EntrySpan
from spark_bookkeeper.protocol.ids import BookieId, EntryId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, LedgerState


@dataclass(frozen=True, slots=True)
class FencedAnswer:
    """The content of one fenced bookie, read after its fence was durable."""

    last_add_confirmed: EntryId
    """The highest LAC in any of its records."""
    held: Set[EntryId]
    """The entries after that LAC that it holds: in slots, even behind the fence, or as copies."""
    doubtful: tuple[tuple[EntryId, EntryId], ...] = ()
    """Ranges of entries that may be in unreadable files: unknown, unless held (R5)."""

    def says_no(self, entry_id: EntryId) -> bool:
        """Return whether this bookie certainly has no such entry."""
        return entry_id not in self.held and not any(
            first <= entry_id <= last for first, last in self.doubtful
        )


@dataclass(frozen=True, slots=True)
class UnknownAnswer:
    """The bookie could not be fenced, or not be read afterwards. The answer proves nothing."""

    reason: str


Answer = FencedAnswer | UnknownAnswer


@dataclass(frozen=True, slots=True)
class Undecided:
    """An entry with too few answers; the ledger stays IN_RECOVERY."""

    entry_id: EntryId
    answers: Mapping[BookieId, str]
    """The answers of its write set; of the whole ensemble if fences are missing."""
    blockers: tuple[BookieId, ...]
    """Bookies; one more usable answer from any of them moves the decision."""
    lacks_fences: bool = False
    """Whether too few bookies were fenced to decide on any entry: the blockers are not fenced, and
    could still acknowledge this one."""


@dataclass(frozen=True, slots=True)
class Verify:
    """Read these entries at a position, check digests, make them durable (R9b); report any bad."""

    position: int
    entries: tuple[EntryId, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """The end of the ledger, and the recovered entries that each position lacks."""

    last_entry_id: EntryId
    first_recovered: EntryId
    """The recovered entries are ``first_recovered .. last_entry_id``; the range may be empty."""
    missing: Mapping[int, tuple[EntryId, ...]]
    """The entries to copy to each position that lacks some of them."""
    sources: Mapping[EntryId, tuple[int, ...]]
    """For every recovered entry, the positions that hold it, in the order of its write set; none if
    it was rescued."""
    unknown: frozenset[int]
    """Positions whose bookie did not answer; another bookie takes the copies instead."""
    given_up: tuple[EntrySpan, ...] = ()
    """Entries that may have been acknowledged, and that only gone bookies can have had."""


class Recovery:
    """The recovery of one ledger, from its ensemble in the metadata when the recovery began.

    Call ``answered`` for each position, carry out ``verifications`` and report every bad entry
    (``refute``), then call ``decide``. If damage makes the result ``Undecided``, an entry may still
    be assembled from several bookies (``rescue``).

    Raises:
        VersionConflictError: the ledger is not IN_RECOVERY, so a writer may be writing.
    """

    def __init__(self, metadata: LedgerMetadata) -> None:
        if metadata.state is not LedgerState.IN_RECOVERY:  # R8: the CAS to it comes first
            raise VersionConflictError(
                f"the ledger is {metadata.state.name} and not IN_RECOVERY: another program changed "
                "its metadata. Nothing was decided, and nothing was written. Stop that program, "
                "then recover the ledger again"
            )
        self.quorum = metadata.quorum
        self.ensemble = metadata.last_fragment.ensemble
        self.fragment_first = metadata.last_fragment.first_entry_id
        self._answers: dict[int, Answer] = {}
        self._refuted: dict[tuple[int, EntryId], str] = {}
        self._rescued: set[EntryId] = set()
        self._gone: frozenset[BookieId] = frozenset()
        self._decision: Decision | Undecided | None = None
        """The last result of ``decide``; ``None`` after new input."""

    def answered(self, position: int, answer: Answer) -> None:
        """Store the answer of one bookie; a later answer replaces an earlier one."""
        self._answers[position] = answer
        self._decision = None

    def refute(self, position: int, entry_id: EntryId, reason: str) -> None:
        """Note that an entry is corrupt at a bookie, which thus proves nothing about it."""
        self._refuted[position, entry_id] = reason
        self._decision = None

    def refuted_from(self, first: EntryId) -> list[EntryId]:
        """Return the entries from ``first`` on that are corrupt at some bookie and were not
        rescued.
        """
        return sorted({e for _, e in self._refuted if e >= first} - self._rescued)

    def rescue(self, entries: Iterable[EntryId]) -> None:
        """Note that entries that no bookie holds whole were read and verified: the record of one
        bookie describes bytes that another holds. This is as good as a hit (R6b), but no copy
        counts, so all copies are made again.
        """
        self._rescued.update(entries)
        self._decision = None

    def give_up(self, bookies: Iterable[BookieId]) -> None:
        """Note that an operator gave these bookies up: their missing answers will not come."""
        self._gone = frozenset(bookies)
        self._decision = None

    @property
    def untold(self) -> list[BookieId]:
        """The bookies whose answer is missing or incomplete."""
        told, first = self._fenced(), self.first_recovered
        damaged = {p for p, e in self._refuted if e not in self._rescued and not self._ask(e)[0]}
        damaged |= {p for p, each in told.items() if any(n >= first for _, n in each.doubtful)}
        return [b for p, b in enumerate(self.ensemble) if p not in told or p in damaged]

    @property
    def is_fenced(self) -> bool:
        """Whether no ack quorum can form any more (coverage of every write set)."""
        return self.quorum.has_coverage(self._fenced().keys())

    @property
    def first_recovered(self) -> EntryId:
        """The first entry to decide: never below the last fragment (rule R8, frag_start)."""
        confirmed = (answer.last_add_confirmed for answer in self._fenced().values())
        return EntryId(max(self.fragment_first, *(lac + 1 for lac in confirmed), 0))

    def verifications(self) -> list[Verify]:
        """Return the entries to verify before they count, up to the end as it seems now."""
        decision = self.decide()
        end = decision.last_entry_id if isinstance(decision, Decision) else decision.entry_id - 1
        first = self.first_recovered
        found: list[Verify] = []
        for position, answer in sorted(self._fenced().items()):
            entries = [entry_id for entry_id in answer.held if first <= entry_id <= end]
            if self.quorum.is_striped:
                entries = [e for e in entries if self.quorum.holds(position, e)]
            if self._refuted:
                entries = [e for e in entries if (position, e) not in self._refuted]
            if entries:
                found.append(Verify(position, tuple(sorted(entries))))
        return found

    def decide(self) -> Decision | Undecided:
        """Return the end of the ledger, or the entry that cannot be decided.

        One verified hit keeps an entry (R6b); (Qw-Qa)+1 fenced misses of its own write set end the
        ledger before it (R5); anything else decides nothing. Once the answers of all bookies that
        are not given up are complete, undecided entries are skipped up to the last verified hit.
        """
        if self._decision is None:
            self._decision = self._decided()
        return self._decision

    def _decided(self) -> Decision | Undecided:
        may_give_up = bool(self._gone) and self._gone.issuperset(self.untold)
        if not self.is_fenced and not may_give_up:
            return self._unfenced()
        first = entry_id = self.first_recovered
        fenced = self._fenced().values() if may_give_up else ()
        newest = max((entry for answer in fenced for entry in answer.held), default=-1)
        sources: dict[EntryId, tuple[int, ...]] = {}
        given_up: list[EntrySpan] = []
        while True:
            hits, misses = self._ask(entry_id)
            if hits or entry_id in self._rescued:
                sources[entry_id] = hits
            elif len(misses) >= self.quorum.misses_needed:
                break
            elif not may_give_up:
                return self._undecided(entry_id)
            else:
                is_in_run = bool(given_up) and given_up[-1][1] == entry_id - 1
                start = given_up.pop()[0] if is_in_run else entry_id
                given_up.append((start, entry_id if entry_id <= newest else None))
                if entry_id > newest:
                    break
            entry_id = EntryId(entry_id + 1)
        last = max(sources, default=EntryId(first - 1)) if given_up else EntryId(entry_id - 1)
        whole = self.quorum.write_quorum_size
        short = [e for e, positions in sources.items() if len(positions) < whole]
        missing = {
            position: lacking
            for position in range(self.quorum.ensemble_size if short else 0)
            if (
                lacking := tuple(
                    e
                    for e in short
                    if self.quorum.holds(position, e) and position not in sources[e]
                )
            )
        }
        unknown = frozenset(range(self.quorum.ensemble_size)) - self._fenced().keys()
        return Decision(last, first, missing, sources, unknown, tuple(given_up))

    def _fenced(self) -> dict[int, FencedAnswer]:
        return {p: a for p, a in self._answers.items() if isinstance(a, FencedAnswer)}

    def _ask(self, entry_id: EntryId) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the positions of an entry's write set that hold it, and those that do not."""
        hits: list[int] = []
        misses: list[int] = []
        for position in self.quorum.write_set(entry_id):
            answer = self._answers.get(position)
            if not isinstance(answer, FencedAnswer) or (position, entry_id) in self._refuted:
                continue
            if entry_id in answer.held:
                hits.append(position)
            elif answer.says_no(entry_id):
                misses.append(position)
        return tuple(hits), tuple(misses)

    def _unfenced(self) -> Undecided:
        """Return the result with too few fenced bookies: nothing proves where the ledger ends.

        It names the first entry, of those to be read, that a writer could still get stored on an
        ack quorum.
        """
        fenced = self._fenced().keys()
        first = self.first_recovered
        lacking = [
            EntryId(e)
            for e in range(first, first + self.quorum.ensemble_size)
            if len(fenced & set(self.quorum.write_set(EntryId(e)))) < self.quorum.misses_needed
        ]
        wanted = {p for e in lacking for p in self.quorum.write_set(e)} - fenced
        answers = {
            bookie: "fenced" if position in fenced else self._reason(position)
            for position, bookie in enumerate(self.ensemble)
        }
        blockers = tuple(self.ensemble[position] for position in sorted(wanted))
        return Undecided(lacking[0], answers, blockers, lacks_fences=True)

    def _reason(self, position: int) -> str:
        answer = self._answers.get(position)
        return answer.reason if isinstance(answer, UnknownAnswer) else "not asked"

    def _undecided(self, entry_id: EntryId) -> Undecided:
        answers: dict[BookieId, str] = {}
        blockers: list[BookieId] = []
        for position in self.quorum.write_set(entry_id):
            bookie = self.ensemble[position]
            answer = self._answers.get(position)
            refuted = self._refuted.get((position, entry_id))
            if refuted is not None:
                answers[bookie] = f"holds a damaged copy: {refuted}"
                blockers.append(bookie)
            elif isinstance(answer, FencedAnswer) and entry_id in answer.held:
                answers[bookie] = "holds it"
            elif isinstance(answer, FencedAnswer) and answer.says_no(entry_id):
                answers[bookie] = "fenced, no such entry"
            elif isinstance(answer, FencedAnswer):
                answers[bookie] = "fenced, but the entry may be in a damaged file"
                blockers.append(bookie)
            else:
                answers[bookie] = self._reason(position)
                blockers.append(bookie)
        return Undecided(entry_id, answers, tuple(blockers))
