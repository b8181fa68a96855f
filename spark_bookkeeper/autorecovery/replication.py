"""Do one task, from its ledger's metadata to "fully replicated", or to a note with the reason.

The process may die after any step, and any step may be repeated: copies are named by their content,
metadata changes by compare-and-swap, and the task is removed last.

Source: Bookie Ledger Recovery, "ReplicationWorker" and "The Rereplication process"; BookKeeper
``replication/ReplicationWorker.rereplicate``; SLOT-LOG rule R13.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from spark_bookkeeper.autorecovery.backoff import (
    awaited_event,
    blocker_of,
    is_for_others,
    is_refused,
    writable_of,
)
from spark_bookkeeper.autorecovery.limit import share_now
from spark_bookkeeper.autorecovery.notes import Notes, as_marked
from spark_bookkeeper.autorecovery.reported_replicas import ReportedReplicas
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger, registered_incarnations
from spark_bookkeeper.client.presence import writer_state
from spark_bookkeeper.config import AutorecoveryConfig
from spark_bookkeeper.errors import MetadataUnavailableError, NoSuchLedgerError
from spark_bookkeeper.metadata.store import Registration, Versioned
from spark_bookkeeper.metadata.underreplication import Task
from spark_bookkeeper.metadata.update import update_ledger
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import Fragment, FragmentRange, LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.task_notes import TaskNote
from spark_bookkeeper.protocol.underreplication import absent_members, live_bookies
from spark_bookkeeper.replication.rates import RateNow
from spark_bookkeeper.replication.recover_ledgers import RecoverWork, recover_one
from spark_bookkeeper.replication.report import Outcome, Row
from spark_bookkeeper.replication.rereplicate import FragmentWork, rereplicate_fragment
from spark_bookkeeper.replication.runner import reason_of
from spark_bookkeeper.replication.shares import share_bytes
from spark_bookkeeper.replication.stragglers import name_of

_NOWHERE: Final = (
    "it is being written, and no bookie could take the place of the lost one: its writer keeps it"
)
_NO_TIME: Final = (
    "it is open, and the metadata store did not tell the time, by which its writer's grace period "
    "is counted"
)


@dataclass(frozen=True, slots=True)
class TaskWork:
    """Do one task; the caller holds its lock. Picklable."""

    ledger_id: LedgerId
    local: BookieId | None
    """The only bookie that gets copies; ``None`` spreads copies over all bookies."""
    config: AutorecoveryConfig
    bytes_per_second: int | None = None
    size_bytes: int = 0
    """0, because the size is unknown before the metadata is read."""
    sharing: int = 1
    """The number of ledgers that share the limit on copying; the limit may change during work."""

    def name(self) -> str:
        """Return the name in progress messages."""
        return name_of(self.ledger_id)

    @property
    def rate_now(self) -> RateNow:
        """A function that returns this task's current part of the limit."""
        return partial(share_now, self.sharing)


def replicate_task(context: ClientContext, work: TaskWork) -> Sequence[Row]:
    """Do the task; return a row for each share that was checked, and last a row for the task.

    Raises:
        MetadataError: the task cannot be read or decoded; nothing was done, and no note says so.
    """
    tree = context.store.underreplication
    if not tree.is_enabled():
        return [Row(work.ledger_id, "task", Outcome.LEFT, "autorecovery is disabled")]
    task = tree.read(work.ledger_id)
    if task is None:
        return [Row(work.ledger_id, "task", Outcome.NO_LONGER_NEEDED, "somebody else has done it")]
    replication = _Replication(context, work, task)
    try:
        replication.run_if_there()
    except Exception as error:  # noqa: BLE001  (the note says what stopped it)
        replication.defer(reason_of(error, f"the task of ledger {work.ledger_id}"), None, ())
    return replication.rows


def fragment_work(
    work: TaskWork, metadata: LedgerMetadata, fragment: FragmentRange, absent: Sequence[BookieId]
) -> FragmentWork:
    """Return the work that copies the replicas which a fragment lacks."""
    return FragmentWork(
        work.ledger_id,
        fragment.first_entry_id,
        tuple(absent),
        work.local,
        even_if_alive=False,
        bytes_per_second=work.bytes_per_second,
        size_bytes=share_bytes(metadata, fragment),
        nonce=metadata.nonce,
        rate_now=work.rate_now,
    )


class _Replication:
    def __init__(self, context: ClientContext, work: TaskWork, task: Versioned[Task]) -> None:
        self._context = context
        self._work = work
        self._task = task
        self._notes = Notes(context.store.registers)
        rate, rate_now = work.bytes_per_second, work.rate_now
        self._replicas = ReportedReplicas(context, self._notes, task, rate, rate_now)
        self._alive: Mapping[BookieId, Registration] = context.bookies.registrations()
        self._marked = as_marked(task)
        self._nonce: bytes | None = None
        """The nonce of the ledger, once it is known."""
        self._has_writer = False
        """Whether the rest must wait until a living writer closes its ledger."""
        self._were_absent: set[BookieId] = set()
        """The bookies that were absent when this attempt copied."""
        self.rows: list[Row] = []

    def run_if_there(self) -> None:
        """Do the task; remove it if its ledger was deleted."""
        try:
            self._run()
        except NoSuchLedgerError as error:  # from the metadata, or from a bookie's tombstone
            if not self._is_gone():
                raise
            self.finish(Outcome.GONE, error.message)

    def _is_gone(self) -> bool:
        try:
            self._context.ledger(self._work.ledger_id, self._nonce)
        except NoSuchLedgerError:
            return True
        return False

    def _run(self) -> None:
        ledger, found = self._context.ledger(self._work.ledger_id)
        self._nonce = found.value.nonce
        note = self._notes.read(self._work.ledger_id)
        self._replicas.begin(note, found)
        self._rereplicate(ledger, self._absent(ledger))
        if not ledger.metadata.is_closed:
            # Copying takes time, and the writer may have replaced the lost bookie meanwhile.
            ledger, found = self._context.ledger(self._work.ledger_id, found.value.nonce)
            self._alive = self._context.bookies.last_registrations()
        repaired = self._repair_in_place(ledger)
        if not ledger.metadata.is_closed:
            absent = self._absent(ledger)
            last = ledger.metadata.last_fragment
            if self._must_end(ledger.metadata, absent, repaired):
                if self._waits_for_writer(last, note, absent, repaired):
                    return
                # Only once the grace period is over: fence, recover, close; then copy.
                ledger = self._recover(ledger, found)
                self._rereplicate(ledger, self._absent(ledger))
                repaired = self._repair_in_place(ledger)
            elif note.open_fragment is not None:  # the next loss starts the time anew
                note = self._notes.change(self._work.ledger_id, TaskNote.without_grace)
        self.rows += repaired
        self._settle(found.value.nonce)

    # The steps

    def _rereplicate(self, ledger: Ledger, absent: Sequence[BookieId]) -> None:
        """Copy every fragment that has a last entry and lacks a replica."""
        metadata, local = ledger.metadata, self._work.local
        self._were_absent.update(absent)
        for fragment in metadata.fragment_ranges():
            lost = [bookie for bookie in fragment.ensemble if bookie in absent]
            if not lost or fragment.last_entry_id is None:
                continue
            first = fragment.first_entry_id
            if local is not None and local in fragment.ensemble:
                reason = f"{local} is a member already; this is for another bookie's worker"
                self._say("copy", Outcome.LEFT, reason, first, fragment.last_entry_id, lost[0])
                continue
            work = fragment_work(self._work, metadata, fragment, absent)
            self.rows += (each.row() for each in rereplicate_fragment(self._context, work))

    def _must_end(
        self, metadata: LedgerMetadata, absent: Sequence[BookieId], repaired: Sequence[Row]
    ) -> bool:
        """Whether an open ledger must be closed, so that its last fragment can be replicated."""
        last = metadata.last_fragment
        lost = [bookie for bookie in last.ensemble if bookie in absent]
        is_damaged = any(
            row.first_entry_id == last.first_entry_id and not row.status.is_done for row in repaired
        )
        inside = set(last.ensemble)
        if lost and any(not r.is_readonly for b, r in self._alive.items() if b not in inside):
            return True
        if not lost and not is_damaged:
            return False
        # A living writer does not know of the damage, or finds no other bookie. Then no copy could
        # be made either, and if its ledger were closed, it could not create another one.
        if writer_state(self._context, self._work.ledger_id, metadata) != "lives":
            return True
        self._has_writer = True
        if lost:
            self._say("copy", Outcome.LEFT, _NOWHERE, last.first_entry_id, source=lost[0])
        return False

    def _waits_for_writer(
        self,
        fragment: Fragment,
        note: TaskNote,
        absent: Sequence[BookieId],
        repaired: Sequence[Row],
    ) -> bool:
        """Whether the writer of an open ledger still has time to replace the bookie itself. If so,
        this reports the repairs and ends the task.
        """
        grace_ms = self._work.config.open_ledger_grace_ms
        if grace_ms == 0:
            return False
        context = self._context
        now_ms = context.clock.asked_ms(context.store, context.runtime)
        if now_ms is None:  # another clock might show it as over
            self.rows += repaired
            self.defer(_NO_TIME, None, absent)
            return True
        jumped_ms = context.clock.jumped_ms
        if note.grace_over(fragment, now_ms, grace_ms, jumped_ms):
            return False
        away, writable = self._away(absent), self._writable()
        after = self._notes.change(
            self._work.ledger_id,
            lambda old: self._replicas.noted(old).with_grace(
                fragment, now_ms, grace_ms, self._marked, away, writable, jumped_ms
            ),
        )
        self.rows += repaired
        self._say("task", Outcome.LEFT, after.last_error, fragment.first_entry_id)
        return True

    def _recover(self, ledger: Ledger, found: Versioned[LedgerMetadata]) -> Ledger:
        """Close an open ledger, unless its writer has just moved on to another fragment."""
        last = ledger.metadata.last_fragment

        def flag(old: LedgerMetadata) -> LedgerMetadata | None:
            is_same = old.state is LedgerState.OPEN and old.last_fragment == last
            return old.in_recovery() if is_same else None

        ledger_id = self._work.ledger_id
        known = update_ledger(self._context.store, ledger_id, flag, known=found)
        if known.value.state is not LedgerState.OPEN:
            recover = RecoverWork(ledger_id, known)
            self.rows += (each.row() for each in recover_one(self._context, recover))
        return self._context.ledger(ledger_id, found.value.nonce)[0]

    def _repair_in_place(self, ledger: Ledger) -> Sequence[Row]:
        """Repair the replicas that the task names and whose bookies are present."""
        registered = registered_incarnations(self._alive)
        return self._replicas.repair(ledger, self._absent(ledger), registered)

    def _settle(self, nonce: bytes | None) -> None:
        """Remove the task if nothing is left; otherwise write a note with the reason."""
        ledger, _ = self._context.ledger(self._work.ledger_id, nonce)
        self._alive = self._context.bookies.registrations()
        absent = self._absent(ledger)
        unfinished = [row for row in self.rows if not row.status.is_done]
        if self._replicas.known and not absent and not unfinished:
            self._replicas.known = frozenset()  # the last check covers all replicas
            self.rows += self._repair_in_place(ledger)
            unfinished = [row for row in self.rows if not row.status.is_done]
        for_others = is_for_others(ledger.metadata, absent, self._work.local)
        # Any worker takes a task that names a present bookie. Without a note, this worker would
        # take it again at once, without end.
        needs_note = bool(self._replicas.there(ledger, absent))
        if not absent and not unfinished:
            self.finish(Outcome.REPLICATED, None, ledger)
        elif for_others and not needs_note:
            self._say(
                "task", Outcome.LEFT, f"what is left is for other workers than {self._work.local}'s"
            )
        else:
            reason = f"{', '.join(absent)} went meanwhile"
            if unfinished:
                reason = unfinished[0].reason or unfinished[0].status
            local = self._work.local
            # While a writer is waited for, no bookie is in the way, and no other worker is better.
            refused = not self._has_writer and is_refused(absent, unfinished)
            event = awaited_event(ledger, absent, unfinished, self._alive)
            if event is not None:
                self.defer(reason, event, absent, waits_for_event=True)
            elif local is not None and (for_others or refused):
                self._leave_to_others(local, reason)
            else:
                needed = blocker_of(
                    ledger.metadata, absent, unfinished, self._alive, has_writer=self._has_writer
                )
                # A bookie that came back during the attempt ends the wait, like a later one.
                came = self._were_absent.difference(absent)
                self.defer(reason, needed, absent, came=came)

    # How it ends

    def finish(self, status: Outcome, reason: str | None, ledger: Ledger | None = None) -> None:
        """Remove the task, unless the ledger was marked again since the task was read, or its note
        now demands a closer check than was made.

        Args:
            ledger: a ledger that lacked nothing at the last check. If a bookie has gone since, the
                auditor may have found it named in the removed task already; so it is marked again.
        """
        ledger_id, tree = self._work.ledger_id, self._context.store.underreplication
        now_ms = self._context.cluster_ms()  # after the removal, nothing may fail before a mark
        note = self._notes.read_versioned(ledger_id)
        is_news = note is not None and self._replicas.is_news(note.value)
        if (is_news and status is not Outcome.GONE) or not tree.remove(self._task):
            self._say("task", Outcome.LEFT, "it was marked again meanwhile, and stays")
            return
        absent: Sequence[BookieId] = ()
        if ledger is not None:
            # Before that reply, the session reported every lost bookie that was marked earlier.
            self._alive = self._context.bookies.last_registrations()
            if absent := self._absent(ledger):
                tree.mark(ledger_id, absent, now_ms)
        # Not before: a task that stays needs its note's percentage. If this worker dies here, or
        # the store does not answer, the note stays until the auditor's next round.
        with suppress(MetadataUnavailableError):
            if not self._notes.forget(ledger_id, note) and ledger is not None:
                # Its finding may have been marked in a task that another worker left and removed.
                tree.mark(ledger_id, self._task.value.missing, now_ms)
        if absent:
            self._say("task", Outcome.LEFT, f"{', '.join(absent)} went meanwhile")
            return
        if status is Outcome.REPLICATED:
            at_ms = self._task.value.marked_at_ms
            age = None if at_ms is None else now_ms - at_ms
            took = ""
            if age is not None and age >= 0:  # BookKeeper's auditor marks by its own clock
                took = f", {age / 1000:.1f} s after it was published"
                self._context.metrics.underreplicated_seconds.observe(age / 1000)
            reason = f"fully replicated{took}"
        self._say("task", status, reason)

    def defer(
        self,
        reason: str,
        blocker: str | None,
        absent: Sequence[BookieId],
        *,
        waits_for_event: bool = False,
        came: Collection[BookieId] = (),
    ) -> None:
        """Keep the task, and write a note for the next worker."""
        config = self._work.config
        now_ms = self._context.cluster_ms()
        away, writable = [*self._away(absent), *came], self._writable()

        def failed(old: TaskNote) -> TaskNote:
            return self._replicas.noted(old).failed(
                reason,
                blocker,
                now_ms,
                self._marked,
                waits_for=away,
                writable=writable,
                first_ms=config.retry_first_ms,
                most_ms=config.retry_most_ms,
                waits_for_event=waits_for_event,
            )

        self._notes.change(self._work.ledger_id, failed)
        self._say("task", Outcome.LEFT, reason)

    def _leave_to_others(self, local: BookieId, reason: str) -> None:
        """Keep the task, and write a note that delays only this worker."""
        config, now_ms = self._work.config, self._context.cluster_ms()
        first_ms, most_ms = config.retry_first_ms, config.retry_most_ms
        self._notes.change(
            self._work.ledger_id,
            lambda old: self._replicas.noted(old).refused(
                local, reason, now_ms, first_ms=first_ms, most_ms=most_ms
            ),
        )
        self._say("task", Outcome.LEFT, f"{local} did not take it, and others may: {reason}")

    def _say(
        self,
        action: str,
        status: Outcome,
        reason: str | None,
        first: EntryId | None = None,
        last: EntryId | None = None,
        source: BookieId | None = None,
    ) -> None:
        self.rows.append(Row(self._work.ledger_id, action, status, reason, first, last, source))

    def _absent(self, ledger: Ledger) -> tuple[BookieId, ...]:
        registered = registered_incarnations(self._alive)
        return absent_members(ledger.metadata, live_bookies(registered, ledger.incarnations))

    def _away(self, absent: Sequence[BookieId]) -> Sequence[BookieId]:
        """Return the absent bookies whose return could help. A bookie that is registered in another
        incarnation is left out, because it has returned.
        """
        return [bookie for bookie in absent if bookie not in self._alive]

    def _writable(self) -> int:
        return len(writable_of(self._alive))
