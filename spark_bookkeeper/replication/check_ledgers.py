"""Do the bookies hold what the metadata says they hold?

A closed ledger is checked up to its last entry, one that is not closed up to the LAC that its
bookies know. What is beyond the LAC is not owed by any bookie yet, and is not looked at. But
every bookie that the metadata names is asked, also one whose share is empty so far.

Source: BookKeeper ``client/LedgerChecker``: the first and the last entry of every share are
always looked at, and a sample of the others; a bookie with nothing to hold must be alive. Unlike
it, whatever is looked at is read and its digest verified.
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
"""A ledger of which so much is to be read, of all replicas together, is several pieces of work."""

_ENDED: Final = "it was ended before everything was looked at"


@dataclass(frozen=True, slots=True)
class CheckWork:
    """Check one ledger, or one share in it. Picklable."""

    ledger_id: LedgerId
    percentage: int
    share: tuple[EntryId, BookieId] | None = None
    """The first entry of a fragment and one of its bookies; ``None`` is all of the ledger."""
    size_bytes: int = 0
    """To be read, about, where it is known; so work can be shared out."""
    nonce: bytes | None = None
    """Of the ledger it was planned for; ``None`` takes the one that is there."""
    bytes_per_second: int | None = None
    """Limit on reading."""
    rate_now: RateNow | None = None
    """The limit while it reads; ``None`` is the same as at first."""

    def name(self) -> str:
        """For people."""
        first, bookie = self.share or (None, None)
        return name_of(self.ledger_id, first, bookie)

    @property
    def sources(self) -> Sequence[BookieId]:
        """The bookies that it reads, where it reads one only."""
        return self.share[1:] if self.share else ()


@dataclass(frozen=True, slots=True)
class Finding(ShareResult):
    """What was found of one share, or of a ledger of which no share could be looked at: up to which
    entry, how many entries were looked at, and how many bytes verified.
    """

    refused: Sequence[EntryId] = ()
    """Entries that were looked at and not found there as they should be; ascending."""

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
    """Check every share of every fragment; one row for each, ``healthy`` or what is wrong and
    what to do about it.

    * ``healthy``: the bookie answers, and has all that was looked at.
    * ``missing``: it answers, lacks entries, and nobody is going to send them.
    * ``damaged``: it has them and they do not match their digests, or a file is spoilt or gone in
      which they were. With a percentage of 100 also where a file is spoilt around its entries: they
      can be read, and Arrow cannot open it.
    * ``unreadable``: it answers, and could not read some of them: a bad sector, a time-out, a file
      that it may not open. Whether they are damaged is not known. A ledger has one row of this
      kind, without a bookie, when its check ended with an error that nobody expected.
    * ``pending``: the ledger is open, and the bookie lacks the last of its acknowledged entries: a
      writer that lives is still sending them (an append waits for Qa of the Qw copies). Whether
      it lives is not known here, and the replica is not there, so the report is not complete.
    * ``unavailable``: the bookie cannot be asked: it does not answer, its storage is gone, or it
      was formatted again. What it holds is not known, and nothing of it is called healthy.
    * ``left``: the ledger cannot be checked, or not its last fragment: it is open there, and no
      bookie that could know its LAC answers.
    * ``gone``: it was deleted.
    """
    job = Job("check_ledgers", context, runner, progress, bytes_per_second)
    wanted = wanted_ids(context, ledger_ids)
    works = check_works(context, wanted, percentage)
    return job.report(CheckReport, job.run(check_step(), works, len(wanted)))


def check_step(is_stopping: Callable[[], bool] | None = None) -> Step[CheckWork, Finding]:
    """The checking of many ledgers, with a limit on what is read.

    Args:
        is_stopping: see ``check_one``. It cannot be pickled, so it is for this process only.
    """
    do = check_one if is_stopping is None else partial(check_one, is_stopping=is_stopping)
    return Step("checking ledgers", do, _failed, limited)


def check_works(
    context: ClientContext, ledger_ids: Sequence[LedgerId], percentage: int
) -> Iterator[CheckWork]:
    """The work of checking ledgers; of a ledger with much to read, a piece for each share."""
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
        is_stopping: asked between two shares and between two pieces of one (``ShareCheck``), and
            every few seconds by who waits because of the limit; where it says yes, the share in
            hand and those that are left are not looked at.

    Raises:
        MetadataUnavailableError: that says nothing of the ledger.
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
    """The limit, which holds up nobody who is to end."""
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
    """``None`` where it was stopped in the middle."""
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
    """What to do about a finding; reads take the other replicas meanwhile."""
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
    """The first, the last, and a spread of the others; the same ones at every call."""
    if percentage >= 100 or len(entries) <= 2:
        return entries
    wanted = len(entries) * percentage // 100
    middle = sorted(entries[1:-1], key=_mix)[: wanted - 2] if wanted > 2 else []
    return [entries[0], *sorted(middle), entries[-1]]


def _mix(entry_id: EntryId) -> bytes:
    return hashlib.sha256(str(entry_id).encode()).digest()
