"""Check whether the bookies hold what the metadata says.

A closed ledger is checked up to its last entry, an open one up to the LAC that its bookies know. No
bookie must have the entries after the LAC yet, so they are not checked. But every bookie in the
metadata is queried, also one whose share is still empty.

Source: BookKeeper ``client/LedgerChecker``: it always checks the first and the last entry of every
share, and a sample of the others; a bookie with nothing to hold must be alive. Unlike it, this
check reads every checked entry and verifies its digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from typing_extensions import override

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.client.read.last_add_confirmed import read_last_add_confirmed
from spark_bookkeeper.errors import (
    BookieError,
    BookKeeperError,
    MetadataFormatError,
    NoSuchLedgerError,
)
from spark_bookkeeper.metadata.store import Versioned
from spark_bookkeeper.protocol.ids import BookieId, EntryId, LedgerId
from spark_bookkeeper.protocol.metadata import FragmentRange, LedgerMetadata, is_table
from spark_bookkeeper.protocol.underreplication import RECOVER
from spark_bookkeeper.replication.job import Job, wanted_ids
from spark_bookkeeper.replication.rates import RateNow, throttle_for
from spark_bookkeeper.replication.report import CheckReport, Outcome, ShareResult
from spark_bookkeeper.replication.runner import (
    Failure,
    Progress,
    Runner,
    Step,
    limited,
    never,
    no_progress,
    reason_of,
)
from spark_bookkeeper.replication.share_check import Seen, ShareCheck
from spark_bookkeeper.replication.shares import share_bytes, share_of
from spark_bookkeeper.replication.stragglers import name_of
from spark_bookkeeper.runtime.throttle import Throttle

LARGE_BYTES: Final = 256 << 20
"""A ledger of which all replicas have this much to read is cut into several pieces of work."""

_ENDED: Final = "it was ended before everything was looked at"


@dataclass(frozen=True, slots=True)
class CheckWork:
    """Check one ledger, or one of its shares. Picklable."""

    ledger_id: LedgerId
    percentage: int
    share: tuple[EntryId, BookieId] | None = None
    """The first entry of a fragment and one of its bookies; ``None`` is the whole ledger."""
    size_bytes: int = 0
    """About how many bytes are to be read, where known, for sharing out work."""
    nonce: bytes | None = None
    """The nonce of the ledger that was planned; ``None`` accepts any ledger of this id."""
    bytes_per_second: int | None = None
    """The limit on reading."""
    rate_now: RateNow | None = None
    """Returns the limit while the work runs; ``None`` keeps the first limit."""

    def name(self) -> str:
        """Return the name in progress messages."""
        first, bookie = self.share or (None, None)
        return name_of(self.ledger_id, first, bookie)

    @property
    def sources(self) -> Sequence[BookieId]:
        """The bookie that the check reads, where it reads only one."""
        return self.share[1:] if self.share else ()


@dataclass(frozen=True, slots=True)
class Finding(ShareResult):
    """The result for one share, or for a ledger whose shares could not be checked: the last entry
    of the check, how many entries were checked, and how many bytes were verified.
    """

    refused: Sequence[EntryId] = ()
    """Entries that were checked and are not as they should be; ascending."""

    @property
    @override
    def action(self) -> str:
        return "check"


def check_ledgers(
    context: ClientContext,
    runner: Runner,
    ledger_ids: Sequence[LedgerId] | None,
    percentage: int,
    *,
    bytes_per_second: int | None = None,
    progress: Progress = no_progress,
) -> CheckReport:
    """Check every share of every fragment; one row for each. A row says ``healthy``, or names the
    fault and its remedy.

    * ``healthy``: the bookie answers, and has all entries that were checked.
    * ``missing``: it answers and lacks entries, and no writer is going to send them.
    * ``damaged``: it has entries that do not match their digests, or a file with entries is spoilt
      or gone. With a percentage of 100 also a file that is spoilt around its entries: they can be
      read, but Arrow cannot open the file.
    * ``unreadable``: it answers, but could not read some entries: a bad sector, a time-out, a file
      without permission. Whether they are damaged is unknown. A ledger has one row of this kind,
      without a bookie, when its check ended with an unexpected error.
    * ``pending``: the ledger is open, and the bookie lacks the last of its acknowledged entries. A
      living writer is still sending them (an append waits for Qa of the Qw copies), but the check
      does not know whether it lives. The replica does not exist, so the report is not complete.
    * ``unavailable``: the bookie cannot be queried: it does not answer, its storage is gone, or it
      was formatted again. Its content is unknown, so none of it counts as healthy.
    * ``left``: the ledger or its last fragment cannot be checked: the fragment is open, and no
      bookie that could know the LAC answers.
    * ``gone``: the ledger was deleted.
    """
    job = Job("check_ledgers", context, runner, progress, bytes_per_second)
    wanted = wanted_ids(context, ledger_ids)
    works = check_works(context, wanted, percentage)
    return job.report(CheckReport, job.run(check_step(), works, len(wanted)))


def check_step(is_stopping: Callable[[], bool] | None = None) -> Step[CheckWork, Finding]:
    """Return the step that checks many ledgers, with a limit on reading.

    Args:
        is_stopping: see ``check_one``. It cannot be pickled, so it works in this process only.
    """
    do = check_one if is_stopping is None else partial(check_one, is_stopping=is_stopping)
    return Step("checking ledgers", do, _failed, limited)


def check_works(
    context: ClientContext, ledger_ids: Sequence[LedgerId], percentage: int
) -> Iterator[CheckWork]:
    """Yield the work of checking ledgers; a ledger with much to read is cut into its shares."""
    if not percentage:
        for ledger_id in ledger_ids:
            yield CheckWork(ledger_id, percentage)
        return
    for ledger_id, found in context.store.read_ledgers(ledger_ids):
        shares: list[CheckWork] = []
        nonce = found.value.nonce if isinstance(found, Versioned) else None
        if isinstance(found, Versioned) and found.value.is_closed:
            try:
                shares = _shares(ledger_id, found.value, percentage)
            except Exception as error:  # noqa: BLE001  (one ledger of many)
                reason_of(error, f"cutting the check of ledger {ledger_id}")  # it is not cut
        size = sum(share.size_bytes for share in shares)
        if size >= LARGE_BYTES:
            yield from shares
        else:
            yield CheckWork(ledger_id, percentage, size_bytes=size, nonce=nonce)


def _failed(work: CheckWork, failure: Failure) -> Finding:
    status = Outcome.UNREADABLE if failure.is_foreign else Outcome.LEFT
    return Finding(work.ledger_id, status, failure.reason)


def _shares(ledger_id: LedgerId, metadata: LedgerMetadata, percentage: int) -> list[CheckWork]:
    return [
        CheckWork(
            ledger_id,
            percentage,
            (fragment.first_entry_id, bookie),
            share_bytes(metadata, fragment) * percentage // 100,
            metadata.nonce,
        )
        for fragment in metadata.fragment_ranges()
        for bookie in fragment.ensemble
    ]


def check_one(
    context: ClientContext, work: CheckWork, is_stopping: Callable[[], bool] | None = None
) -> Sequence[Finding]:
    """Check one ledger up to its last entry, or up to the LAC while it is open.

    Args:
        is_stopping: called between two shares, between two pieces of one (``ShareCheck``), and
            every few seconds during a wait for the limit. If it returns true, the check leaves the
            current share and all later ones.

    Raises:
        MetadataUnavailableError: the metadata store failed; this shows nothing about the ledger.
    """
    try:
        ledger, found = context.ledger(work.ledger_id, work.nonce)
    except NoSuchLedgerError as error:
        return [Finding(work.ledger_id, Outcome.GONE, error.message)]
    except MetadataFormatError as error:
        return [Finding(work.ledger_id, Outcome.LEFT, error.message)]
    if is_stopping is None:
        throttle = throttle_for(context, work.bytes_per_second, work.rate_now)
        is_stopping = never
    else:
        again = partial(_unless, is_stopping)
        throttle = Throttle(context.runtime, work.bytes_per_second, again)
    all_found: list[Finding] = []
    for fragment in found.value.fragment_ranges():
        first, last = fragment.first_entry_id, fragment.last_entry_id
        wanted = [
            (position, bookie)
            for position, bookie in enumerate(fragment.ensemble)
            if work.share in (None, (first, bookie))
        ]
        if not wanted:
            continue
        try:
            end = read_last_add_confirmed(context, ledger) if last is None else last
        except BookKeeperError as error:
            all_found.append(Finding(work.ledger_id, Outcome.LEFT, error.message, first))
            continue
        for position, bookie in wanted:
            finding = None
            if not is_stopping():
                finding = _check_share(
                    context, ledger, work, fragment, position, bookie, end, throttle, is_stopping
                )
            if finding is None:
                return [*all_found, Finding(work.ledger_id, Outcome.LEFT, _ENDED, first)]
            all_found.append(finding)
    if not all_found and work.share is not None:
        first, bookie = work.share
        reason = f"{bookie} has no share of it any more: check again"
        all_found.append(Finding(work.ledger_id, Outcome.LEFT, reason, first, source=bookie))
    return all_found


def _unless(is_stopping: Callable[[], bool], limit: int | None) -> int | None:
    """Return the limit, or none when the check is to stop, so that the limit does not delay it."""
    return None if is_stopping() else limit


def _check_share(
    context: ClientContext,
    ledger: Ledger,
    work: CheckWork,
    fragment: FragmentRange,
    position: int,
    bookie: BookieId,
    last: EntryId,
    throttle: Throttle,
    is_stopping: Callable[[], bool],
) -> Finding | None:
    """Return the finding for one share; ``None`` if the check was stopped on the way."""
    first = fragment.first_entry_id
    try:
        entries = _sample(share_of(ledger, position, first, last), work.percentage)
    except MetadataFormatError as error:
        return Finding(work.ledger_id, Outcome.LEFT, error.message, first, last, bookie)
    try:
        replica = context.bookies.replica(bookie, ledger)
    except BookieError as error:
        seen: Seen | None = Seen(Outcome.UNAVAILABLE, error.message)
    else:
        check = ShareCheck(context, ledger, replica, entries, with_files=work.percentage >= 100)
        seen = check.run(first, throttle, is_stopping)
    if seen is None:
        return None
    reason = seen.reason
    if reason is not None:
        is_open = fragment.last_entry_id is None
        reason = f"{reason}. {_advice(seen.status, bookie, work.ledger_id, is_open)}"
    found = Finding(work.ledger_id, seen.status, reason, first, last, bookie, entries=len(entries))
    return replace(found, bytes=seen.bytes, refused=seen.refused)


def _advice(status: Outcome, bookie: BookieId, ledger_id: LedgerId, is_open: bool) -> str:
    """Return the remedy for a finding; until it is applied, reads use the other replicas."""
    recover = f"`{RECOVER.format(bookie)}`"
    if is_table(bookie):
        return (
            "It stands for copies that were released: restore the table to a version that has "
            f"them, or bring it back where it was. {recover} has bookies "
            "keep copies again, as far as any are left"
        )
    if status is Outcome.UNAVAILABLE:
        return (
            f"Bring the bookie back with its storage; if that is lost, {recover}. If the bookie is "
            f"there and a file of this ledger cannot be read, {recover[:-1]} --even-if-alive "
            f"--ledger {ledger_id}` copies its share to another one"
        )
    repair = f"`spark-bookkeeper ledger repair {ledger_id}` makes the copies again from good ones"
    if status is Outcome.PENDING:
        return f"Check again; if its writer has ended, `ledger recover` it, and then {repair}"
    repair = f"{repair}, when it is closed" if is_open else repair
    return f"Check again; if it stays so, {repair}" if status is Outcome.UNREADABLE else repair


def _sample(entries: Sequence[EntryId], percentage: int) -> Sequence[EntryId]:
    """Return the first entry, the last, and a spread of the others; the same at every call."""
    if percentage >= 100 or len(entries) <= 2:
        return entries
    wanted = len(entries) * percentage // 100
    middle = sorted(entries[1:-1], key=_mix)[: wanted - 2] if wanted > 2 else []
    return [entries[0], *sorted(middle), entries[-1]]


def _mix(entry_id: EntryId) -> bytes:
    return hashlib.sha256(str(entry_id).encode()).digest()
