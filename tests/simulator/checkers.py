"""One function for each named invariant: raises ``InvariantError``, or returns nothing.

They judge the evidence (disks and metadata, read without the library's own reader) against the
history (what clients were told). After each change is asked what that can have broken, at the
end everything.

Source: SLOT-LOG, "Named invariants".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from spark_bookkeeper.protocol.metadata import LedgerState
from tests.simulator.evidence import Evidence, write_set
from tests.simulator.scheduler import SimulationError


class InvariantError(SimulationError):
    """A named invariant does not hold. The message begins with its name."""


def _demand(holds: bool, name: str, text: str) -> None:
    if not holds:
        raise InvariantError(f"{name}: {text}")


# Each invariant, whole


def acked_entries_are_readable(evidence: Evidence) -> None:
    """Every acknowledged entry is in the ledger, and on Qa bookies of its write set.

    A bookie whose storage was destroyed is excused, but never more than Qa - 1 of them.
    """
    closed = evidence.closed
    for acknowledged in evidence.history.acknowledged:
        entry_id = acknowledged.entry_id
        _demand(
            closed is None or closed.last_entry_id is None or entry_id <= closed.last_entry_id,
            "acked-entries-are-readable",
            f"entry {entry_id} was acknowledged to {acknowledged.actor} and is beyond the last "
            f"entry {closed and closed.last_entry_id}",
        )
        entries = range(acknowledged.first_entry_id, entry_id + 1)
        for each in entries:
            _demand_copies(evidence, "acked-entries-are-readable", each)
        rows = tuple(row for each in entries for row in evidence.content[each].rows)
        _demand(
            rows == acknowledged.rows,
            "acked-entries-are-readable",
            f"the entries {entries} hold {rows!r}, not the acknowledged {acknowledged.rows!r}",
        )


def closed_entries_reach_ack_quorum(evidence: Evidence) -> None:
    """When a ledger is closed, every entry up to the last is on Qa bookies of its write set."""
    closed = evidence.closed
    if closed is not None and closed.last_entry_id is not None:
        for entry_id in range(closed.last_entry_id + 1):
            _demand_copies(evidence, "closed-entries-reach-ack-quorum", entry_id)


def all_closes_agree(evidence: Evidence) -> None:
    """CLOSED is never left, and everybody who learns of the end learns of the same one."""
    ends = {
        (version.last_entry_id, version.length_bytes)
        for version in evidence.versions
        if version.state is LedgerState.CLOSED
    }
    told = {(c.last_entry_id, c.length_bytes) for c in evidence.history.closed}
    _demand(len(ends) <= 1, "all-closes-agree", f"the metadata held several ends: {sorted(ends)}")
    _demand(told <= ends, "all-closes-agree", f"told {sorted(told)}, in the metadata {ends}")
    states = [version.state.value for version in evidence.versions]
    _demand(states == sorted(states), "all-closes-agree", f"the state went back: {states}")


def confirmed_never_exceeds_last_entry(evidence: Evidence) -> None:
    """Nothing that was acknowledged, read, or called a LAC in a record is beyond the last entry."""
    closed = evidence.closed
    if closed is not None and closed.last_entry_id is not None:
        told = [a.entry_id for a in evidence.history.acknowledged]
        read = [r.entry_id for r in evidence.history.returned]
        highest = max((*told, *read, evidence.highest_lac), default=-1)
        _demand(
            highest <= closed.last_entry_id,
            "confirmed-never-exceeds-last-entry",
            f"entry {highest} was acknowledged, read, or a record's LAC; "
            f"the last entry is {closed.last_entry_id}",
        )


def entries_in_write_order(evidence: Evidence) -> None:
    """The rows of the entries are the rows appended, in that order, and so are rows that are read.

    Acknowledgements come in entry order, each payload in an entry of its own. The slots of a bookie
    ascend in entry ids.
    """
    history = evidence.history
    following = 0
    for told in history.acknowledged:
        _demand(
            told.first_entry_id == following
            and (told.entry_id == following or (len(told.rows) > 1 and told.entry_id > following)),
            "entries-in-write-order",
            f"acknowledged in the order {[a.entry_id for a in history.acknowledged]}",
        )
        following = told.entry_id + 1
    length = row = entry_id = 0
    while (found := evidence.content.get(entry_id)) is not None:
        length += found.size
        appended = tuple(history.appended[row : row + len(found.rows)])
        row += len(found.rows)
        _demand(
            (found.rows, found.length_after) == (appended, length),
            "entries-in-write-order",
            f"entry {entry_id} is {found}, appended was {appended!r} ending at {length}",
        )
        entry_id += 1
    known = set(history.appended)
    _demand(
        all(known.issuperset(entry.rows) for entry in evidence.content.values()),
        "entries-in-write-order",
        "there is a row that nobody appended",
    )
    for returned in history.returned:
        expected = evidence.content.get(returned.entry_id)
        _demand(
            expected is not None and returned.rows == expected.rows,
            "entries-in-write-order",
            f"{returned.actor} read {returned.rows!r} as entry {returned.entry_id}, "
            f"which is {expected}",
        )
    for bookie in sorted({b for v in evidence.versions for b in v.last_fragment.ensemble}):
        last = -1
        for slot, (kind, entries) in sorted(evidence.log(bookie).slots.items()):
            if kind == "ADD" and entries:
                _demand(
                    min(entries) > last,
                    "entries-in-write-order",
                    f"slot {slot} of {bookie} holds {sorted(entries)}, behind entry {last}",
                )
                last = max(entries)


def replicas_are_identical(evidence: Evidence) -> None:
    """Every copy of an entry, wherever and whenever it stood, has the same bytes and length."""
    _demand(not evidence.unlike, "replicas-are-identical", "; ".join(evidence.unlike[:3]))


def lac_is_confirmed(evidence: Evidence) -> None:
    """Every entry up to a LAC in any record is on an ack quorum."""
    for entry_id in range(evidence.highest_lac + 1):
        _demand_copies(evidence, "lac-is-confirmed", entry_id)


def fragments_are_sorted_and_valid(evidence: Evidence) -> None:
    """Fragments ascend from entry 0, of E distinct bookies each; the past is not rewritten."""
    for index in range(len(evidence.versions)):
        _demand_valid(evidence, index)


def _demand_valid(evidence: Evidence, index: int) -> None:
    """A version has valid fragments, which follow from those of the one before."""
    version = evidence.versions[index]
    firsts = [int(f.first_entry_id) for f in version.fragments]
    ensembles = [f.ensemble for f in version.fragments]
    size = version.quorum.ensemble_size
    _demand(
        bool(firsts) and firsts[0] == 0 and firsts == sorted(set(firsts)),
        "fragments-are-sorted-and-valid",
        f"fragments begin at {firsts}",
    )
    _demand(
        all(len(set(ensemble)) == len(ensemble) == size for ensemble in ensembles),
        "fragments-are-sorted-and-valid",
        f"not {size} distinct bookies each: {ensembles}",
    )
    if index > 0:
        before = evidence.versions[index - 1]
        kept = len(before.fragments) if before.is_closed else len(before.fragments) - 1
        firsts_before = [int(f.first_entry_id) for f in before.fragments[:kept]]
        _demand(
            firsts[:kept] == firsts_before and (not before.is_closed or len(firsts) == kept),
            "fragments-are-sorted-and-valid",
            f"fragments at {firsts_before} became fragments at {firsts}",
        )
        _demand(
            version.is_closed
            or evidence.is_rereplicated
            or version.fragments[:kept] == before.fragments[:kept],
            "fragments-are-sorted-and-valid",
            "an earlier fragment of an open ledger changed",
        )


def no_count_behind_a_fence(evidence: Evidence) -> None:
    """An acknowledged entry was counted on Qa bookies on which no fence stood below it.

    Exact when asked at the moment of the acknowledgement: a bookie that was destroyed since it
    gave its answer still counts, one that was destroyed before that never does. Where somebody
    copies meanwhile, a copy counts as well.
    """
    for acknowledged in evidence.history.acknowledged[-1:]:
        for entry_id in range(acknowledged.first_entry_id, acknowledged.entry_id + 1):
            bookies = write_set(evidence.written_under, entry_id)
            counted = [bookie for bookie in bookies if evidence.is_counted(bookie, entry_id)]
            _demand(
                len(counted) >= evidence.metadata.quorum.ack_quorum_size,
                "no-count-behind-a-fence",
                f"entry {entry_id} was acknowledged, and only {counted} of {bookies} hold it above "
                "nothing but adds, in the incarnation that the ledger names",
            )


def ledger_gets_closed(evidence: Evidence) -> None:
    """After faults stopped and somebody recovered the ledger, it is CLOSED."""
    _demand(
        evidence.metadata.state is LedgerState.CLOSED,
        "ledger-gets-closed",
        f"the ledger is still {evidence.metadata.state.name}",
    )


def _demand_copies(evidence: Evidence, name: str, entry_id: int) -> None:
    bookies = write_set(evidence.metadata, entry_id)
    holders = [bookie for bookie in bookies if entry_id in evidence.log(bookie).held]
    if len(holders) < evidence.metadata.quorum.ack_quorum_size:
        owed = evidence.copies_owed(bookies)
        _demand(
            len(holders) >= owed,
            name,
            f"entry {entry_id} is on {holders} of its write set {bookies}, "
            f"which makes {len(holders)} of {owed} (storage destroyed: {sorted(evidence.lost)})",
        )


# The same after one change, asking only what that can have broken


def newest_acked_entries_are_readable(evidence: Evidence) -> None:
    """``acked_entries_are_readable`` of what was not found to hold as things stand."""
    acknowledged, closed = evidence.history.acknowledged, evidence.closed
    if not acknowledged:
        return
    highest = acknowledged[-1].entry_id
    last = highest if closed is None or closed.last_entry_id is None else closed.last_entry_id
    if highest > last or len(acknowledged) > evidence.acked_checked:
        acked_entries_are_readable(evidence)
        evidence.acked_checked = len(acknowledged)
        evidence.kept.update(range(highest + 1))
    else:
        _demand_kept(evidence, "acked-entries-are-readable", highest)


def newest_closed_entries_reach_ack_quorum(evidence: Evidence) -> None:
    """``closed_entries_reach_ack_quorum`` of what was not found to hold as things stand."""
    closed = evidence.closed
    if closed is not None and closed.last_entry_id is not None:
        _demand_kept(evidence, "closed-entries-reach-ack-quorum", closed.last_entry_id)


def newest_lac_is_confirmed(evidence: Evidence) -> None:
    """``lac_is_confirmed`` of the entries that no earlier record called confirmed."""
    for entry_id in range(evidence.lac_checked + 1, evidence.highest_lac + 1):
        _demand_copies(evidence, "lac-is-confirmed", entry_id)
    evidence.lac_checked = evidence.highest_lac


def newest_version_is_valid(evidence: Evidence) -> None:
    """``fragments_are_sorted_and_valid`` of the versions that are new."""
    for index in range(evidence.versions_checked, len(evidence.versions)):
        _demand_valid(evidence, index)
    evidence.versions_checked = len(evidence.versions)


def _demand_kept(evidence: Evidence, name: str, last: int) -> None:
    kept = evidence.kept
    for entry_id in range(last + 1):
        if entry_id not in kept:
            _demand_copies(evidence, name, entry_id)
            kept.add(entry_id)


Checker = Callable[[Evidence], None]

AFTER_STORING: Final[tuple[Checker, ...]] = (
    replicas_are_identical,
    newest_lac_is_confirmed,
)
"""What a file that landed or went can break."""

AFTER_METADATA: Final[tuple[Checker, ...]] = (
    all_closes_agree,
    confirmed_never_exceeds_last_entry,
    newest_acked_entries_are_readable,
    newest_closed_entries_reach_ack_quorum,
    newest_version_is_valid,
)
"""What a write of the ledger's metadata can break."""

AFTER_TELLING: Final[tuple[Checker, ...]] = (confirmed_never_exceeds_last_entry,)
"""What telling a client about an entry, or the end, can break."""

AFTER_ACKNOWLEDGING: Final[tuple[Checker, ...]] = (*AFTER_TELLING, no_count_behind_a_fence)
"""What an acknowledgement can break."""

ALWAYS: Final[tuple[Checker, ...]] = (
    acked_entries_are_readable,
    closed_entries_reach_ack_quorum,
    all_closes_agree,
    confirmed_never_exceeds_last_entry,
    entries_in_write_order,
    replicas_are_identical,
    lac_is_confirmed,
    fragments_are_sorted_and_valid,
)
"""What holds at any moment."""

AT_THE_END: Final[tuple[Checker, ...]] = (*ALWAYS, ledger_gets_closed)
"""What holds after faults stopped and the ledger was recovered."""


def check(evidence: Evidence, checkers: Iterable[Checker]) -> None:
    """Call each checker, once the ledger exists."""
    if evidence.versions:
        for checker in checkers:
            checker(evidence)
