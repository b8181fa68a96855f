"""Recover one ledger: carry out the decisions of ``protocol.recovery.Recovery``.

Flag the ledger IN_RECOVERY, fence its bookies, find its last entry, copy entries that lack copies,
close it. That takes two compare-and-swaps and one fence for each bookie of the last ensemble. A
recovery may be repeated and run concurrently: the first close decides, the others adopt it.

The recovery waits for a slow bookie only while the others do not suffice. Then it counts the bookie
as unknown (SLOT-LOG rule R5). The fence may still arrive later, which does no harm.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

from spark_bookkeeper.bookie.bookie import Verification
from spark_bookkeeper.bookie.holdings import LedgerTail
from spark_bookkeeper.bookie.replica import Replica
from spark_bookkeeper.bookie.verdict import RefusalKind, Verdict
from spark_bookkeeper.client.bookies.gather import Gather, TimedOut
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger, needs_refill, with_incarnations
from spark_bookkeeper.client.read.fetch import Fetcher
from spark_bookkeeper.client.read.salvage import salvage
from spark_bookkeeper.client.recover.batch_copy import SmallCopy
from spark_bookkeeper.client.recover.copying import TargetError, copy_entries
from spark_bookkeeper.errors import (
    BookieError,
    BookKeeperError,
    EntryUnreadableError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    RecoveryUndecidedError,
    VersionConflictError,
    remedy,
)
from spark_bookkeeper.metadata.store import Registration, Versioned
from spark_bookkeeper.metadata.update import Transform, read_again, update_ledger
from spark_bookkeeper.protocol.accepted_loss import ACCEPTED_LOSS, AcceptedLoss, not_gone
from spark_bookkeeper.protocol.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.placement import replace_bookies
from spark_bookkeeper.protocol.recovery import (
    Decision,
    FencedAnswer,
    Recovery,
    Undecided,
    UnknownAnswer,
)
from spark_bookkeeper.runtime.log_facts import about
from spark_bookkeeper.storage import retry_policy

_log = logging.getLogger(__name__)


def _tell_nobody(bookie: BookieId, said: str) -> None:
    """Do nothing: the log has it."""


def recover_ledger(
    context: ClientContext,
    ledger_id: LedgerId,
    known: Versioned[LedgerMetadata] | None = None,
    *,
    on_silent: Callable[[BookieId, str], object] = _tell_nobody,
    accepting: AcceptedLoss | None = None,
) -> Versioned[LedgerMetadata]:
    """Close a ledger that no client closed; return its metadata, CLOSED.

    Args:
        known: its metadata as it was read before.
        accepting: which entries and gone bookies an operator accepts as lost, and who accepts it.
        on_silent: called for each bookie that timed out and that the ledger was closed without,
            with the request and its duration.

    Raises:
        NoSuchLedgerError: it was deleted, even if another ledger has its id now.
        MetadataFormatError: it was written by another client. Nothing was changed.
        RecoveryUndecidedError: too few bookies answered. The ledger stays IN_RECOVERY, and fences
            stay. The error shows the entry, each answer, and the bookies that would decide it.
        NotEnoughBookiesError: recovered entries could not be brought to an ack quorum.
        MetadataUnavailableError: the close may or may not have happened; repeat.
        VersionConflictError: another program changed it as only a close may; it was not closed.
    """
    found = known or context.store.read_ledger(ledger_id)
    ledger = Ledger.of(ledger_id, found.value)  # another client's ledger is refused, not flagged
    found = update_ledger(context.store, ledger_id, flag, known=found)
    if found.value.is_closed:
        return found
    recovery = partial(LedgerRecovery, context, on_silent=on_silent, accepting=accepting)
    with context.metrics.recovering(context.runtime):
        try:
            return recovery(ledger.with_metadata(found.value), found).run()
        except (RecoveryUndecidedError, NotEnoughBookiesError, EntryUnreadableError):
            now = read_again(context.store, ledger_id, found.value.nonce)
            if now.value.is_closed:  # by a client that met less trouble: all-closes-agree
                return now
            if context.bookies.have_moved():
                return recovery(Ledger.of(ledger_id, now.value), now).run()
            raise


def flag(old: LedgerMetadata) -> LedgerMetadata | None:
    """Flag the ledger (step 1): from now on its writer cannot change the metadata."""
    return old.in_recovery() if old.state is LedgerState.OPEN else None


class LedgerRecovery:
    """The recovery of one flagged ledger: the answers of its bookies, and the decisions from them.

    ``run`` calls the bookies itself. ``batch_recovery.py`` calls them for many ledgers at a time,
    and takes each ledger from step to step by the same methods.
    """

    def __init__(
        self,
        context: ClientContext,
        ledger: Ledger,
        found: Versioned[LedgerMetadata],
        on_silent: Callable[[BookieId, str], object] = _tell_nobody,
        accepting: AcceptedLoss | None = None,
    ) -> None:
        self._context = context
        self._on_silent = on_silent
        self._accepting = accepting
        self._not_gone: Mapping[BookieId, str] | None = None
        """The bookies that are not given up, and why; ``None`` before any is given up."""
        self._unheard: set[BookieId] = set()
        """Bookies that were fenced but then could not verify all of their entries."""
        self._silent: dict[BookieId, str] = {}
        """Bookies that timed out or were not waited for, each with the request and its duration."""
        self._ledger = ledger
        self._found = found
        self._machine = Recovery(found.value)
        self.ensemble = found.value.last_fragment.ensemble
        """The last ensemble as it is known now: the bookies that the recovery calls."""
        self._ask = Replica.fence
        self._fences = Gather[int, tuple[Replica, LedgerTail]](context.runtime)
        self._replicas: dict[int, Replica] = {}
        self._tails: dict[int, LedgerTail] = {}
        self._verified: set[tuple[int, EntryId]] = set()
        """Positions and entries that were verified, with any result."""
        self.is_settled = False
        """Whether every verification since the last call of ``unverified`` held. If one did not,
        ``unverified`` may return further entries."""
        self._joined: dict[BookieId, str] = {}
        """Bookies that took copies in place of others, with the incarnation that took them."""

    def run(self) -> Versioned[LedgerMetadata]:
        self._fence()
        decision = self._decide()
        if self._accepting and (more := self._accepting.exceeded_by(decision.given_up)):
            ledger_id = self._ledger.ledger_id
            named = " ".join(["--accept-loss", *(f"--gone {b}" for b in self._accepting.gone)])
            raise RecoveryUndecidedError(
                f"of ledger {ledger_id} {more}. Nothing was given up, and it stays IN_RECOVERY. To "
                "see what is left now, and to be asked again: `spark-bookkeeper ledger recover "
                f"{ledger_id} {named}`",
                ledger_id=ledger_id,
                entry_id=decision.given_up[0][0],
                answers={},
                blockers=(),
            )
        ensemble = self.write_back(decision)
        if decision.given_up and self._give_up():
            self._decide()  # a bookie came back during the copies: decide again
        closed = self._close(decision, ensemble)
        for bookie, said in self._silent.items():
            self._on_silent(bookie, said)
        return closed

    def foresee(self) -> Decision:
        """Return what ``run`` would decide, as bookies are now; nothing is fenced or changed."""
        self._ask = Replica.tail
        self._fence()
        return self._decide()

    # Step 2: fence

    def _fence(self) -> None:
        """Fence all bookies at once; wait for those that answer, at least for as many as needed."""
        for position, bookie in enumerate(self.ensemble):
            try:
                replica = self._context.bookies.replica(bookie, self._ledger).ending()
                bookie_client = self._context.bookies.bookie_client(bookie)
            except BookieError as error:
                self._machine.answered(position, UnknownAnswer(error.message))
                continue
            purpose = f"fencing ledger {self._ledger.ledger_id}"
            self._fences.ask(position, bookie_client, purpose, partial(_asked, replica, self._ask))
        covered_at: float | None = None
        while covered_at is None or self._fences.is_waited_for():
            if covered_at is None and self._machine.is_fenced:
                covered_at = self._context.runtime.now()
            if not self._take_fence(covered_at):
                break
        for position in self._fences.waiting:
            silence = self._fences.silence_of(position)
            said = f"{silence}. It was not waited for: the others suffice"
            _log.warning(
                "recovery of ledger %s: bookie %s: %s",
                self._ledger.ledger_id,
                self.ensemble[position],
                said,
                extra=about(ledger_id=self._ledger.ledger_id, bookie_id=self.ensemble[position]),
            )
            self._silent[self.ensemble[position]] = said
            self._machine.answered(position, UnknownAnswer(said))

    def _take_fence(self, late_since: float | None = None) -> bool:
        """Take in the next answer to a fence; return whether one came or timed out.

        Args:
            late_since: from then on, ``FENCE_GRACE_SECONDS`` of silence is a time-out; else never.
        """
        if late_since is None:
            came = self._fences.next()
        else:
            came = self._fences.next(retry_policy.FENCE_GRACE_SECONDS, late_since)
        if came is None or isinstance(came, TimedOut):
            return came is not None
        position, result = came
        bookie = self.ensemble[position]
        self._silent.pop(bookie, None)
        try:
            replica, tail = result()
        except (BookieError, NoSuchLedgerError) as error:
            self.not_fenced(position, error)
            if self._context.bookies.is_silent(bookie):
                self._silent[bookie] = error.message
        else:
            self.fenced(position, replica, tail)
        return True

    def fenced(self, position: int, replica: Replica, tail: LedgerTail) -> None:
        """Take in the answer of a bookie to its fence."""
        self._replicas[position], self._tails[position] = replica, tail
        if self._ask is Replica.fence:
            self._context.metrics.fences.inc()
        self._machine.answered(position, self._fenced_answer(position))

    def not_fenced(self, position: int, error: BookKeeperError) -> None:
        """Note that a bookie could not be fenced, or not be read afterwards."""
        self._machine.answered(position, UnknownAnswer(error.message))

    def _fenced_answer(self, position: int) -> FencedAnswer:
        tail = self._tails[position]
        return FencedAnswer(
            EntryId(tail.last_add_confirmed),
            frozenset(cast("list[EntryId]", tail.entries.entry_ids.tolist())),
            tuple((EntryId(d.first), EntryId(d.last)) for d in tail.entries.doubts),
        )

    # Step 3: find the last entry, counting only what is verified

    def _decide(self) -> Decision:
        while True:  # a refuted or rescued entry may move the end
            todo = self.unverified()
            for (position, entries), verdict in zip(
                todo, self._context.runtime.map(self._verify_one, todo), strict=True
            ):
                self.verified(position, entries, verdict)
            if not self.is_settled:
                continue
            decision = self.decide()
            if isinstance(decision, Decision) and not decision.given_up:
                return decision
            if self._rescue(decision) or self._take_fence() or self._give_up():
                continue
            if isinstance(decision, Decision):
                return decision
            raise self._undecided(decision)

    def unverified(self) -> list[tuple[int, tuple[EntryId, ...]]]:
        """Return positions, each with its entries that must be verified before they count."""
        self.is_settled = True
        todo = [
            (
                w.position,
                tuple(e for e in w.entries if (w.position, e) not in self._verified)
                if self._verified
                else w.entries,
            )
            for w in self._machine.verifications()
        ]
        return [(position, entries) for position, entries in todo if entries]

    def verification(self, position: int, entries: Sequence[EntryId]) -> Verification:
        """Return the request for a position. It includes the known locations of the entries, so
        that the bookie need not look them up again.
        """
        known = self._tails[position].entries
        return Verification(self._replicas[position].ledger, entries, known)

    def verified(
        self, position: int, entries: Sequence[EntryId], verdict: Verdict | BookKeeperError
    ) -> None:
        """Take in the verdict of a bookie. Entries that it could not read stay unknown there."""
        if isinstance(verdict, BookKeeperError):
            bad, is_unheard = dict.fromkeys(entries, verdict.message), True
        else:
            refused = verdict.refused.values()
            is_unheard = any(why.kind is RefusalKind.UNREADABLE for why in refused)
            bad = {EntryId(e): why.reason for e, why in verdict.refused.items()}
        if is_unheard:
            self._unheard.add(self.ensemble[position])
        for entry_id, reason in bad.items():
            self._machine.refute(position, entry_id, reason)
            self.is_settled = False
        self._verified.update((position, entry_id) for entry_id in entries)

    def decide(self) -> Decision | Undecided:
        """Return the end of the ledger. Call it when all is verified and ``is_settled`` is true."""
        return self._machine.decide()

    def _verify_one(self, todo: tuple[int, tuple[EntryId, ...]]) -> Verdict | BookieError:
        position, entries = todo
        replica, known = self._replicas[position], self._tails[position].entries
        purpose = f"verifying entries of ledger {self._ledger.ledger_id}"
        try:
            return self._context.bookies.ask(
                replica, purpose, lambda: replica.verify(entries, known)
            )
        except BookieError as error:
            return error

    def _give_up(self) -> bool:
        """Give up the bookies that the operator says are gone; return whether they changed."""
        if self._accepting is None:
            return False
        registered = self._context.bookies.registrations()
        cookies = [each.value for each in self._context.store.cookies() if each.value.incarnation]
        known = {  # if a registration and its cookie differ, the disk is unknown
            each.bookie_id: each.incarnation
            for each in cookies
            if registered.get(each.bookie_id, each).incarnation == each.incarnation
        }
        answered = {self.ensemble[position] for position in self._replicas} - self._unheard
        replaced = needs_refill(self._ledger.metadata, known) - answered
        named = self._accepting.gone
        kept = not_gone(self.ensemble, replaced, named, answered, registered)
        is_new = kept != self._not_gone
        self._not_gone = kept
        self._machine.give_up(bookie for bookie in self.ensemble if bookie not in kept)
        return is_new

    def _rescue(self, found: Undecided | Decision) -> bool:
        """Whether some entries with damaged copies can be read by one bookie's record from
        another's files. It tries the damaged entries from the undecided entry on, if that one is
        damaged, and all of these before any entry is given up.
        """
        first = found.entry_id if isinstance(found, Undecided) else found.first_recovered
        damaged = self._machine.refuted_from(first)
        if not damaged or (self._not_gone is None and first not in damaged):
            return False
        rescued: set[EntryId] = set()
        for replica, told, known in salvage(list(self._replicas.values()), damaged):
            wanted = [entry_id for entry_id in known if entry_id not in rescued]
            if wanted:
                read = replica.read(wanted, told).found
                rescued.update(EntryId(entry.entry_id) for entry in read)
        self._machine.rescue(rescued)
        return bool(rescued)

    # Before the close: copy every recovered entry to an ack quorum, if possible to the write set

    def small_copies(self, decision: Decision) -> dict[int, SmallCopy]:
        """Return the copies that ``write_back`` would make on ensemble members, by position."""
        return {
            position: SmallCopy(
                self._ledger,
                self.ensemble,
                entries,
                self._replicas[position],
                [p for p in sorted(self._replicas) if p != position],
            )
            for position, entries in decision.missing.items()
            if position not in decision.unknown
        }

    def write_back(self, decision: Decision, copied: Collection[int] = ()) -> tuple[BookieId, ...]:
        """Copy the missing entries; return the ensemble that holds the recovered entries.

        Args:
            copied: positions that have their copies already (``small_copies``).
        """
        ensemble = list(self.ensemble)
        holders = {e: set(positions) for e, positions in decision.sources.items()}
        failures: dict[BookieId, str] = {}
        registrations: Mapping[BookieId, Registration] | None = None
        for position, entries in decision.missing.items():
            if position not in decision.unknown:
                error = None
                if position not in copied:
                    error = self._copy(entries, self._replicas[position])
                if error is None:
                    _hold(holders, entries, position)
                    continue
                failures[ensemble[position]] = error.message
            if registrations is None:
                # A stale registration costs only another choice: the bookie is checked first.
                registrations = self._context.bookies.last_registrations()
            # A successor has no entries yet: it also needs the entries that its predecessor held.
            quorum = self._ledger.metadata.quorum
            entries = tuple(e for e in decision.sources if quorum.holds(position, e))
            while True:
                bookie = self._replacement(ensemble, position, failures, registrations)
                if bookie is None:
                    break
                incarnation = registrations[bookie].incarnation
                try:
                    replica = self._context.bookies.replica(bookie, self._ledger, incarnation)
                    replica = replica.ending()
                    replica.check()
                    error = self._copy(entries, replica)
                except BookieError as caught:
                    error = caught
                if error is None:
                    ensemble[position] = bookie
                    self._joined[bookie] = incarnation
                    _hold(holders, entries, position)
                    break
                failures[bookie] = error.message
        if not decision.given_up:  # else fewer than Qa bookies may be left
            self._check_ack_quorum(holders, failures)
        return tuple(ensemble)

    def _copy(self, entries: tuple[EntryId, ...], target: Replica) -> BookKeeperError | None:
        metrics = self._context.metrics
        try:
            copied = copy_entries(
                self._context.runtime,
                self._ledger.ledger_id,
                self._ledger.metadata.quorum,
                self.ensemble,
                entries,
                self._replicas,
                # The target lacks the entries, so it is not preferred. It stays in the sources: it
                # may have the record or the file of a part, and another bookie the other half.
                [p for p, replica in sorted(self._replicas.items()) if replica is not target],
                target,
                ask_both=self._context.bookies.ask_both,
            )
        except EntryUnreadableError as error:
            return error
        except TargetError as error:
            return error.cause
        metrics.copies.inc()
        metrics.copied_bytes.inc(copied)
        return None

    def _replacement(
        self,
        ensemble: list[BookieId],
        position: int,
        failures: Mapping[BookieId, str],
        registrations: Mapping[BookieId, Registration],
    ) -> BookieId | None:
        bookies, quorum = self._context.bookies, self._ledger.metadata.quorum
        excluded = dict.fromkeys((*ensemble, *self.ensemble), "in the ensemble") | dict(failures)
        reasons = bookies.ineligible(registrations, 1, self._ledger, excluded)
        candidates = bookies.candidates(registrations)
        purpose = "for recovered entries"
        try:
            return replace_bookies(
                quorum, tuple(ensemble), {position}, candidates, reasons, purpose
            )[position]
        except NotEnoughBookiesError:
            return None  # `_check_ack_quorum` decides then

    def _check_ack_quorum(
        self, holders: Mapping[EntryId, set[int]], failures: Mapping[BookieId, str]
    ) -> None:
        """SLOT-LOG rule R6; ``closed-entries-reach-ack-quorum``."""
        needed = self._ledger.metadata.quorum.ack_quorum_size
        short = [e for e, positions in holders.items() if len(positions) < needed]
        if short:
            causes = "; ".join(f"{b}: {why}" for b, why in failures.items()) or "no bookie is free"
            raise NotEnoughBookiesError(
                f"ledger {self._ledger.ledger_id} cannot be closed yet: its recovered entries "
                f"{short[0]} to {short[-1]} are on fewer than {needed} bookies, and no other "
                "bookie "
                f"could take a copy ({causes}). It stays IN_RECOVERY; add a bookie and repeat",
                needed=needed,
                available=min(len(holders[e]) for e in short),
                causes=dict(failures),
            )

    # Step 4: close

    def _close(
        self, decision: Decision, ensemble: tuple[BookieId, ...]
    ) -> Versioned[LedgerMetadata]:
        close = self.closing(decision, ensemble)
        return update_ledger(self._context.store, self._ledger.ledger_id, close, known=self._found)

    def closing(self, decision: Decision, ensemble: tuple[BookieId, ...]) -> Transform:
        """Return the step that closes the ledger."""
        last = decision.last_entry_id
        length = self._length_at(last)
        base = self._found.value.last_fragment
        mark: dict[str, bytes] = {}
        if decision.given_up:
            assert self._accepting is not None, "nothing is given up unless a person says so"
            untold = tuple(self._machine.untold)
            loss = replace(self._accepting, gone=untold, missing=decision.given_up)
            mark[ACCEPTED_LOSS] = loss.encode()

        def close(old: LedgerMetadata) -> LedgerMetadata | None:
            if old.is_closed:
                return None  # another recovery was faster: all-closes-agree
            if old.last_fragment != base or old.state is LedgerState.OPEN:
                raise self._changed_by_others(old)
            if ensemble != self.ensemble:
                renewed = old.with_new_ensemble(decision.first_recovered, ensemble)
                old = with_incarnations(renewed, self._joined)
            return old.with_custom(**mark).closed(last, length)

        return close

    def _changed_by_others(self, found: LedgerMetadata) -> VersionConflictError:
        """Return the error for metadata that another client changed as only a close may change it.
        That is another program, or a fault in a client of ours.
        """
        known, now = self._found.value.last_fragment, found.last_fragment
        return VersionConflictError(
            f"ledger {self._ledger.ledger_id} was changed during its recovery by another program, "
            f"and only a close may do that then: it is {found.state.name}, with a last fragment "
            f"at entry {now.first_entry_id} on {', '.join(now.ensemble)}, and was IN_RECOVERY, "
            f"with one at entry {known.first_entry_id} on {', '.join(known.ensemble)}. This "
            "recovery did not close it, and took nothing away: what was acknowledged is where it "
            "was. Stop that program, compare `spark-bookkeeper ledger show "
            f"{self._ledger.ledger_id}` with what the bookies hold (--slots), then recover the "
            "ledger again"
        )

    def _length_at(self, last: EntryId) -> int:
        for tail in self._tails.values():
            length = tail.entries.length_after(last)
            if length is not None:
                return length
        if last == NO_ENTRY:
            return 0
        may_be_lost = self._not_gone is not None  # then an earlier entry gives it roughly
        first = EntryId(max(0, last - 99)) if may_be_lost else last
        found = Fetcher(self._context, self._ledger, skip_lost=may_be_lost).fetch(first, last)
        return max((stored.length_after for stored in found), default=0)

    def _undecided(self, found: Undecided) -> RecoveryUndecidedError:
        answers = "\n".join(f"  {bookie}: {said}" for bookie, said in found.answers.items())
        blockers = " or ".join(found.blockers)
        if found.lacks_fences:
            why, blockers = self._unfenced(found)
        else:
            why = f"whether entry {found.entry_id} exists cannot be decided. Its write set answered"
        rest = (
            "If their disks are gone for good: `spark-bookkeeper ledger recover "
            f"{self._ledger.ledger_id} --accept-loss` says what may be missing, and asks"
        )
        if self._not_gone is not None:
            untold = [bookie for bookie in self._machine.untold if bookie in self._not_gone]
            kept = (f"\n  {bookie}: {self._not_gone[bookie]}" for bookie in untold)
            rest = f"Nothing was given up:{''.join(kept)}"
        act = remedy(found.answers.values(), f"bring back {blockers} with its storage")
        return RecoveryUndecidedError(
            f"recovery of ledger {self._ledger.ledger_id} must wait: {why}:\n"
            f"{answers}\n"
            f"{act}, then repeat. The ledger stays IN_RECOVERY and nothing is lost; do not delete "
            f"it, and do not format a bookie to make it answer. {rest}",
            ledger_id=self._ledger.ledger_id,
            entry_id=found.entry_id,
            answers=dict(found.answers),
            blockers=tuple(found.blockers),
        )

    def _unfenced(self, found: Undecided) -> tuple[str, str]:
        """Return why too few fences decide nothing, and which bookies would change that."""
        quorum = self._ledger.metadata.quorum
        write_set = {self.ensemble[p] for p in quorum.write_set(found.entry_id)}
        unfenced = [bookie for bookie in found.blockers if bookie in write_set]
        fenced = quorum.write_quorum_size - len(unfenced)
        why = (
            "too few of its bookies are fenced. Entry "
            f"{found.entry_id} could still be acknowledged to a writer by {quorum.ack_quorum_size} "
            f"of {', '.join(unfenced)}, so whatever end were chosen now could be wrong: of the "
            f"{quorum.write_quorum_size} bookies of each entry {quorum.misses_needed} must be "
            f"fenced, and of those of entry {found.entry_id} only {fenced} answered its fence. "
            "The ensemble answered"
        )
        if quorum.misses_needed - fenced == len(unfenced):
            return why, " and ".join(found.blockers)
        if len(found.blockers) == len(unfenced):  # the same bookies are missing everywhere
            count = quorum.misses_needed - fenced
            return why, (f"{count} of " if count > 1 else "") + " or ".join(found.blockers)
        return why, f"enough of {', '.join(found.blockers)}"


def _asked(replica: Replica, ask: Callable[[Replica], LedgerTail]) -> tuple[Replica, LedgerTail]:
    return replica, ask(replica)


def _hold(holders: Mapping[EntryId, set[int]], entries: tuple[EntryId, ...], position: int) -> None:
    for entry_id in entries:
        holders[entry_id].add(position)
