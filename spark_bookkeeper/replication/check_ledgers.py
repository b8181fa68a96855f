"""Do the bookies hold what the metadata says they hold?

Source: BookKeeper ``client/LedgerChecker``: the first and the last entry of every share are
always looked at, and a sample of the others. Unlike it, whatever is looked at is read and its
digest verified.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.holdings import locate, verify
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.reader import read_last_add_confirmed
from spark_bookkeeper.errors import BookieError, BookKeeperError, NoSuchLedgerError
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import FragmentRange
from spark_bookkeeper.protocol.underreplication import entries_at
from spark_bookkeeper.replication.report import CheckReport, Row
from spark_bookkeeper.replication.runner import Progress, Runner, no_progress


@dataclass(frozen=True, slots=True)
class CheckWork:
    """Check one ledger. Picklable."""

    action: ClassVar[str] = "check"
    ledger_id: LedgerId
    percentage: int


def check_ledgers(
    context: ClientContext,
    runner: Runner,
    ledger_ids: Sequence[LedgerId] | None,
    percentage: int,
    *,
    progress: Progress = no_progress,
) -> CheckReport:
    """Check every share of every fragment; one row for each, ``healthy`` or what is wrong and
    what to do about it.

    ``missing``: the bookie answers and lacks entries. ``damaged``: it has them, and they do not
    match their digests. ``unavailable``: it cannot be read now.
    """
    started = context.runtime.now()
    wanted = list(context.store.ledger_ids()) if ledger_ids is None else list(ledger_ids)
    work = [CheckWork(ledger_id, percentage) for ledger_id in wanted]
    rows = list(runner.run("checking ledgers", work, check_one, progress))
    duration_ms = round((context.runtime.now() - started) * 1000)
    rows.sort(key=lambda row: (row.ledger_id, row.first_entry_id or 0, row.source or ""))
    return CheckReport("check_ledgers", tuple(rows), True, duration_ms)


def check_one(context: ClientContext, work: CheckWork) -> Sequence[Row]:
    """Check one ledger up to its last entry, or up to the LAC while it is open."""
    try:
        ledger, found = context.ledger(work.ledger_id)
        metadata = found.value
        last = metadata.last_entry_id
        end = read_last_add_confirmed(context, ledger) if last is None else last
    except NoSuchLedgerError:
        return [Row(work.ledger_id, "check", "gone", "the ledger does not exist")]
    except BookKeeperError as error:
        return [Row(work.ledger_id, "check", "left", error.message)]
    return [
        _check_share(context, ledger, work, fragment, position, bookie, end)
        for fragment in metadata.fragment_ranges()
        for position, bookie in enumerate(fragment.ensemble)
    ]


def _check_share(
    context: ClientContext,
    ledger: Ledger,
    work: CheckWork,
    fragment: FragmentRange,
    position: int,
    bookie: BookieId,
    end: EntryId,
) -> Row:
    first = fragment.first_entry_id
    last = end if fragment.last_entry_id is None else fragment.last_entry_id
    runs = entries_at(ledger.metadata.quorum, position, first, last)
    entries = _sample([EntryId(e) for run in runs for e in run], work.percentage)
    status, reason, size = "healthy", None, 0
    if entries:
        status, reason, size = _look(context, ledger, bookie, entries)
    if reason is not None:
        reason = f"{reason}. {_advice(status, bookie, work.ledger_id)}"
    return Row(
        work.ledger_id, "check", status, reason, first, last, bookie, None, len(entries), size
    )


def _look(
    context: ClientContext, ledger: Ledger, bookie: BookieId, entries: Sequence[EntryId]
) -> tuple[str, str | None, int]:
    try:
        log = context.bookies.log(bookie, ledger)
        index = locate(log, entries)
    except BookieError as error:
        return "unavailable", error.message, 0
    good, refused = verify(log, entries, index)
    size = sum(place.size for place in good.values())
    lacking = [e for e in refused if e not in index and not index.doubts]
    damaged = {e: why for e, why in refused.items() if e not in lacking}
    if damaged:
        try:
            locate(log, entries)
        except BookieError as error:  # it went away meanwhile: that says nothing of its entries
            return "unavailable", error.message, size
        shown = "; ".join(f"entry {e}: {why}" for e, why in list(damaged.items())[:3])
        return "damaged", f"{len(damaged)} of {len(entries)} entries are damaged: {shown}", size
    if lacking:
        text = f"lacks {len(lacking)} of {len(entries)} entries, the first is {lacking[0]}"
        return "missing", text, size
    return "healthy", None, size


def _advice(status: str, bookie: BookieId, ledger_id: LedgerId) -> str:
    """What to do about a finding; reads take the other replicas meanwhile."""
    if status == "unavailable":
        lost = f"`spark-bookkeeper bookie recover {bookie}`"
        return f"Bring the bookie back with its storage; if that is lost, {lost}"
    return f"`spark-bookkeeper ledger repair {ledger_id}` makes the copies again from good ones"


def _sample(entries: Sequence[EntryId], percentage: int) -> Sequence[EntryId]:
    """The first, the last, and a spread of the others; the same ones at every call."""
    if percentage >= 100 or len(entries) <= 2:
        return entries
    wanted = len(entries) * percentage // 100
    middle = sorted(entries[1:-1], key=_mix)[: max(0, wanted - 2)]
    return [entries[0], *sorted(middle), entries[-1]]


def _mix(entry_id: EntryId) -> bytes:
    return hashlib.sha256(str(entry_id).encode()).digest()
