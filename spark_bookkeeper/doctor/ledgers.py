"""The diagnoses of the ledgers of a cluster: their writers, and the copies that they lack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import needs_refill, registered_incarnations
from spark_bookkeeper.client.presence import (
    ENDED_FIRST,
    GONE,
    WriterState,
    age,
    ledgers_with_writers,
    writer_of,
)
from spark_bookkeeper.client.read.newest import newest_entry
from spark_bookkeeper.doctor.diagnosis import Diagnosis, Verdict
from spark_bookkeeper.errors import BookKeeperError, MetadataFormatError
from spark_bookkeeper.metadata import consumers, logs
from spark_bookkeeper.metadata.store import Registers, Registration
from spark_bookkeeper.protocol.accepted_loss import ACCEPTED_LOSS
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.underreplication import (
    OLD_DISK,
    RECOVER,
    REFILL,
    live_copies,
    unreadable_without,
)
from spark_bookkeeper.replication.report import counted, some_of

MOST_NAMED: Final = 10
"""The most ledgers that one finding names; it counts all."""


@dataclass(frozen=True)
class LedgersSeen:
    """All ledgers of a cluster at one time."""

    readable: Mapping[LedgerId, LedgerMetadata]
    unreadable: Sequence[MetadataFormatError]
    """One error for each ledger whose metadata cannot be read."""
    open: Mapping[LedgerId, WriterState]
    """The states of the writers of ledgers that are not closed."""

    def that_name(self, bookie: BookieId) -> Sequence[LedgerId]:
        """Return the readable ledgers that name a bookie."""
        return [i for i, metadata in self.readable.items() if bookie in metadata.bookies()]

    @staticmethod
    def of(context: ClientContext) -> LedgersSeen:
        """Read all ledgers. Raises ``MetadataUnavailableError``."""
        readable: dict[LedgerId, LedgerMetadata] = {}
        unreadable: list[MetadataFormatError] = []
        states: dict[LedgerId, WriterState] = {}
        for ledger_id, found, state in ledgers_with_writers(context):
            if isinstance(found, MetadataFormatError):
                unreadable.append(found)
                continue
            readable[ledger_id] = found
            if state is not None:
                states[ledger_id] = state
        return LedgersSeen(readable, unreadable, states)


def unreadable(ledgers: LedgersSeen, registers: Registers) -> Iterator[Diagnosis]:
    """Report ledgers, logs and consumers of logs whose metadata cannot be decoded."""
    if ledgers.unreadable:
        yield Diagnosis(
            "ledger metadata",
            "problem",
            _first(ledgers.unreadable, "ledger"),
            "its data cannot be read, recovered or counted here; the other ledgers can. Do not "
            "remove anything before somebody looked at it. `spark-bookkeeper ledger list --state "
            "unreadable` names all of them",
        )
    if junk := list(logs.unreadable_logs(registers)):
        yield Diagnosis(
            "log metadata",
            "problem",
            _first(junk, "log"),
            "restore that node; the log's ledgers are there. `spark-bookkeeper log list` names all",
        )
    if names := consumers.unreadable_consumers(registers):
        yield Diagnosis(
            "consumers of logs",
            "warning",
            f"cannot be decoded: {some_of(names)}. No log that waits for them is truncated",
            "each is right again when it publishes next; of one that follows no more: "
            "spark-bookkeeper log consumers LOG --forget CONSUMER",
        )


def _first(errors: Sequence[BookKeeperError], what: str) -> str:
    more = f"; and {counted(len(errors) - 1, what)} more" if len(errors) > 1 else ""
    return f"{errors[0].message}{more}"


def open_ledgers(context: ClientContext, ledgers: LedgersSeen) -> Diagnosis:
    """Report open ledgers whose writer is gone; their bookies show the age of the newest entry."""
    check, states = "writers of open ledgers", ledgers.open
    gone = [ledger_id for ledger_id, state in states.items() if state == "gone"]
    unknown = sum(state == "unknown" for state in states.values())
    living = len(states) - len(gone) - unknown
    counts = (
        f"{living:,} whose writer lives, {len(gone):,} whose writer is gone, {unknown:,} whose "
        "writer left no note"
    )
    if not gone:
        return Diagnosis(check, "ok", counts if states else "every ledger is closed")

    now_ms = context.runtime.wall_ms()

    def name(ledger_id: LedgerId) -> str:
        metadata = ledgers.readable[ledger_id]
        newest = newest_entry(context, ledger_id, metadata)
        facts = [str(writer_of(metadata) or "unknown")]
        if newest.last_add_confirmed is not None:
            facts.append(f"confirmed up to {newest.last_add_confirmed}")
        if newest.stored_at_ms is not None:
            facts.append(f"newest entry {age(newest.stored_at_ms, now_ms)}")
        elif metadata.ctime_ms is not None:
            facts.append(f"created {age(metadata.ctime_ms, now_ms)}")
        return f"{ledger_id} ({', '.join(facts)})"

    named = "; ".join(context.runtime.map(name, gone[:MOST_NAMED]))
    more = "; ..." if len(gone) > MOST_NAMED else ""
    detail = f"{counts}: {named}{more}. Gone: {GONE}"
    return Diagnosis(check, "warning", detail, how_to_close(gone))


def how_to_close(gone: Sequence[LedgerId]) -> str:
    """Return what to do about ledgers whose writers are gone: a condition, then the command."""
    return f"{ENDED_FIRST}; then {_recover_ledgers(gone)}"


def endangered_ledgers(
    ledgers: Mapping[LedgerId, LedgerMetadata],
    lost: Set[BookieId],
    alive: Mapping[BookieId, Registration],
    attended: Callable[[Sequence[LedgerId]], str | None] = lambda _: None,
) -> Iterator[Diagnosis]:
    """Report ledgers that are not finished, and ledgers that the next loss may damage.

    Args:
        lost: bookies that are known and not registered.
        alive: registered bookies.
        attended: returns what already copies the data that ledgers lack; ``None``: nothing.
    """
    yield from _unfinished(ledgers, lost)
    total = f"{len(ledgers):,} ledgers"
    yield _on_ledgers(
        "accepted losses",
        total,
        [i for i, m in ledgers.items() if ACCEPTED_LOSS in m.custom_metadata],
        "were closed though entries may be missing, as somebody accepted",
        "`spark-bookkeeper ledger show` says which, who and when; said until they are deleted",
        "warning",
    )
    lacking = [i for i, m in ledgers.items() if lost & m.bookies()]
    named = sorted(lost & {bookie for i in lacking for bookie in ledgers[i].bookies()})
    yield _on_ledgers(
        "fragments on lost bookies",
        total,
        lacking,
        "name a lost bookie: they have fewer copies than they should",
        make_again(named, attended(lacking)),
        "problem",
    )
    registered = registered_incarnations(alive)
    limbo = {i: found for i, m in ledgers.items() if (found := needs_refill(m, registered))}
    empty = sorted({bookie for bookies in limbo.values() for bookie in bookies})
    yield _on_ledgers(
        "fragments on replaced disks",
        total,
        list(limbo),
        f"count on {', '.join(empty)}, formatted again since and not filled again",
        _refill(empty),
        "problem",
    )
    away = {i: lost | limbo.get(i, frozenset()) for i in ledgers}
    thin = {i: lacked for i, m in ledgers.items() if (lacked := _lacked(m, away[i]))}
    none = {i for i in thin if _is_without_copy(ledgers[i], away[i])}
    yield _on_ledgers(
        "entries without a live copy",
        total,
        [i for i in thin if i in none],
        "have entries of which no bookie that is there has a copy",
        _bring_back(frozenset().union(*(thin[i] for i in none)), lost),
        "problem",
    )
    thin = {i: lacked for i, lacked in thin.items() if i not in none}
    lacked_most = frozenset().union(*thin.values())
    yield _on_ledgers(
        "entries below their ack quorum",
        total,
        list(thin),
        "have entries with fewer live copies than their ack quorum; the next loss may be final",
        _before_all(sorted(lacked_most & lost), sorted(lacked_most - lost), attended(list(thin))),
        "problem",
    )


def _unfinished(
    ledgers: Mapping[LedgerId, LedgerMetadata], lost: Set[BookieId]
) -> Iterator[Diagnosis]:
    """Report ledgers whose end was not found yet."""
    total = f"{len(ledgers):,} ledgers"
    stuck = [i for i, m in ledgers.items() if m.state is LedgerState.IN_RECOVERY]
    yield _on_ledgers(
        "ledgers in recovery",
        total,
        stuck,
        "in recovery, so that their writers close them no more: a client is at it, or died, needs "
        "a bookie to come back, or only fenced it",
        f"this goes on, or says what is missing: {_recover_ledgers(stuck)}",
        "warning",
    )
    exposed = [
        i for i, m in ledgers.items() if not m.is_closed and lost & set(m.last_fragment.ensemble)
    ]
    yield _on_ledgers(
        "open ledgers on lost bookies",
        total,
        exposed,
        "open, and their last fragment names a lost bookie",
        "their writers replace it with the next append; of those that have none any more "
        "`writers of open ledgers` of spark-bookkeeper doctor says what to do",
        "warning",
    )


def _recover_ledgers(ledger_ids: Sequence[LedgerId]) -> str:
    """Return a complete command; for many ledgers it names the first ones."""
    shown = " ".join(map(str, ledger_ids[:MOST_NAMED]))
    more = len(ledger_ids) - MOST_NAMED
    others = f" and then the other {more:,}, which the next look names" if more > 0 else ""
    return f"spark-bookkeeper ledger recover {shown}{others}"


def make_again(lost: Sequence[BookieId], attended: str | None) -> str:
    """Return how to copy the data of lost bookies: ``attended``, or else a command."""
    return attended or RECOVER.format(" --bookie ".join(lost))


def _refill(bookies: Sequence[BookieId]) -> str:
    return ", then ".join(map(REFILL.format, bookies))


def _before_all(lost: Sequence[BookieId], empty: Sequence[BookieId], attended: str | None) -> str:
    """Return the remedies for entries that the next loss may destroy, one per kind of bookie."""
    remedies = [f"bring {', '.join(lost)} back; else {make_again(lost, attended)}"] if lost else []
    remedies += [_refill(empty)] if empty else []
    return f"before anything else: {'; and '.join(remedies)}"


def _is_without_copy(metadata: LedgerMetadata, away: Set[BookieId]) -> bool:
    """Whether some entry has a copy only on members that are away; tables are members, too."""
    live = metadata.members() - away
    quorum = metadata.quorum
    return any(
        not live_copies(quorum, fragment, live)
        if fragment.last_entry_id is None
        else any(unreadable_without(quorum, fragment, p, live) for p in range(quorum.ensemble_size))
        for fragment in metadata.fragment_ranges()
    )


def _bring_back(away: Set[BookieId], lost: Set[BookieId]) -> str:
    """Return the remedies for entries without a live copy, given lost bookies and empty ones."""
    gone, empty = ", ".join(sorted(away & lost)), ", ".join(sorted(away - lost))
    remedies = [f"start {gone} again, with its storage as it was"] if gone else []
    remedies += [OLD_DISK.format(bookies=empty)] if empty else []
    return f"{'; or '.join(remedies)}; or `spark-bookkeeper cluster restore` from a backup"


def _lacked(metadata: LedgerMetadata, away: Set[BookieId]) -> frozenset[BookieId]:
    """Return the bookies of ``away`` whose absence puts entries below their ack quorum."""
    quorum = metadata.quorum
    lacked: set[BookieId] = set()
    for fragment in metadata.fragments:
        for write_set in quorum.write_sets():
            absent = {fragment.ensemble[position] for position in write_set} & away
            if len(write_set) - len(absent) < quorum.ack_quorum_size:
                lacked |= absent
    return frozenset(lacked)


def _on_ledgers(
    check: str,
    total: str,
    found: Sequence[LedgerId],
    what: str,
    remedy: str,
    verdict: Verdict,
) -> Diagnosis:
    if not found:
        return Diagnosis(check, "ok", f"none of {total}")
    shown = " ".join(map(str, found[:MOST_NAMED])) + (" ..." if len(found) > MOST_NAMED else "")
    return Diagnosis(check, verdict, f"{len(found):,} of {total} {what}: {shown}", remedy)
