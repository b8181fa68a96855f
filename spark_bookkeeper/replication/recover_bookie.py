"""The Manual Bookie Recovery process, step by step.

1. Read the metadata of all ledgers. 2. Select those whose fragments name a lost bookie.
3. For each: recover it first when its last fragment is affected and still open; then run the
Rereplication process for every affected fragment. 4. When all are replicated, it is finished.

Source: Bookie Ledger Recovery, "The Manual Bookie Recovery process"; BookKeeper
``client/BookKeeperAdmin.recoverBookieData``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger, live_members, registered_incarnations
from spark_bookkeeper.errors import InvalidArgumentError, MetadataFormatError
from spark_bookkeeper.metadata.store import Registration, Versioned
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.underreplication import SKIPPED, live_copies, missing_replicas
from spark_bookkeeper.replication.fragments import Todo, copy_fragments
from spark_bookkeeper.replication.job import GROUP_ITEMS, Job, Reported, wanted_ids
from spark_bookkeeper.replication.pieces import PIECE_BYTES
from spark_bookkeeper.replication.recover_ledgers import Recovered, RecoverWork, recovering
from spark_bookkeeper.replication.recovery_plan import PlannedShare, PlanRow, planned_shares
from spark_bookkeeper.replication.report import Outcome, RecoveryReport
from spark_bookkeeper.replication.rereplicate import FragmentWork, ShareCopied
from spark_bookkeeper.replication.runner import Progress, Runner, no_progress, reason_of
from spark_bookkeeper.replication.shares import share_bytes
from spark_bookkeeper.replication.targets import Targets
from spark_bookkeeper.runtime.spool import Spool

_Planned = Recovered | PlannedShare | ShareCopied


@dataclass(frozen=True, slots=True)
class BookieRecovery:
    """Which bookies to recover, and how."""

    bookies: tuple[BookieId, ...]
    """The lost bookies."""
    target: BookieId | None = None
    """The bookie that gets the copies; ``None`` chooses a random suitable one for each fragment."""
    ledger_ids: tuple[LedgerId, ...] | None = None
    """Only these ledgers; ``None`` is all ledgers."""
    skip_open_ledgers: bool = False
    """Whether to leave out ledgers that must be fenced and closed first."""
    even_if_alive: bool = False
    """Whether to recover also a bookie that is registered, while it runs."""
    bytes_per_second: int | None = None
    """The limit on copying, for the whole job; ``None`` is no limit."""
    piece_bytes: int = PIECE_BYTES
    """Several tasks copy a fragment of which a bookie has several times this size."""


def recover_bookie(
    context: ClientContext,
    runner: Runner,
    wish: BookieRecovery,
    *,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> RecoveryReport:
    """Rereplicate every share of the lost bookies to other bookies; one row for each share.

    A crash at any moment loses nothing, and the next run does the rest: a fragment that is done
    names no lost bookie any more, so the next run does not select it.

    Raises:
        InvalidArgumentError: a bookie is alive, unknown, or an unfit target. Nothing was changed.
    """
    job = Job("recover_bookie", context, runner, progress, wish.bytes_per_second)
    registrations = context.bookies.registrations()
    survey = _Survey(wish)
    affected = survey.read(context, progress)
    if dry_run:
        targets = Targets(context.bookies, registrations, wish.bookies, wish.target)
        planned: Spool[_Planned] = Spool(
            each
            for ledger_id, found in affected
            for each in _plan(ledger_id, found.value, wish, targets, registrations)
        )
        _check(context, wish, registrations, survey)
        results: Iterable[Reported] = chain(survey.unreadable, planned)
        return job.report(RecoveryReport, results, dry_run=True, columns=PlanRow)
    todo = _Urgency()
    opened: Spool[RecoverWork] = Spool()
    left: Spool[ShareCopied] = Spool()
    for ledger_id, found in affected:
        is_open = _needs_recovery(found.value, wish)
        if is_open and not _is_skipped(found.value, wish):
            opened.append(RecoverWork(ledger_id, found))
            continue
        if is_open:
            left.append(_skipped(ledger_id, found.value, wish))
        todo.extend(_work(ledger_id, found.value, wish, registrations, left))
    _check(context, wish, registrations, survey)
    done: Iterable[Reported] = chain(
        survey.unreadable, _carry_out(job, context, wish, opened, todo, left), left
    )
    return job.report(RecoveryReport, done)


def _carry_out(
    job: Job,
    context: ClientContext,
    wish: BookieRecovery,
    opened: Spool[RecoverWork],
    todo: _Urgency,
    left: Spool[ShareCopied],
) -> Iterator[Reported]:
    """Close open ledgers, then copy fragments; add fragments that cannot be planned to ``left``."""
    yield from job.run(recovering("open ledgers"), opened, len(opened))
    alive = context.bookies.last_registrations()
    rest = iter(opened)
    while works := {work.ledger_id: work for work in islice(rest, GROUP_ITEMS)}:
        for ledger_id, now in context.store.read_ledgers(list(works)):
            # A deleted ledger, and one whose id another ledger took, has its own row already.
            known = works[ledger_id].known.value
            if isinstance(now, Versioned) and now.value.nonce == known.nonce:
                todo.extend(_work(ledger_id, now.value, wish, alive, left))
    alive = context.bookies.last_registrations()
    targets = Targets(context.bookies, alive, wish.bookies, wish.target)
    yield from copy_fragments(job, todo, len(todo), lambda _: targets, wish.piece_bytes)


class _Urgency:
    """The fragments to copy, those with the fewest live copies of any entry first.

    All fragments are planned before any is copied, so a spool keeps them out of memory.
    """

    def __init__(self) -> None:
        self._by_copies: dict[int, Spool[Todo]] = {}

    def extend(self, found: Iterable[tuple[int, Todo]]) -> None:
        """Add fragments, each with its number of live copies."""
        for copies, todo in found:
            self._by_copies.setdefault(copies, Spool()).append(todo)

    def __len__(self) -> int:
        return sum(map(len, self._by_copies.values()))

    def __iter__(self) -> Iterator[Todo]:
        for copies in sorted(self._by_copies):
            yield from self._by_copies[copies]


@dataclass
class _Survey:
    """Steps 1 and 2: select the ledgers that have a fragment on a lost bookie."""

    wish: BookieRecovery
    unreadable: Spool[ShareCopied] = field(default_factory=Spool)
    """Ledgers whose metadata cannot be read, so their fragments are unknown."""
    named: set[BookieId] = field(default_factory=set)
    """All bookies that the affected ledgers name."""
    with_target: Spool[str] = field(default_factory=Spool)
    """Affected fragments that already have a copy on the wanted target."""

    def read(
        self, context: ClientContext, progress: Progress
    ) -> Iterator[tuple[LedgerId, Versioned[LedgerMetadata]]]:
        """Yield the affected ledgers one by one; record what ``_check`` needs."""
        only = self.wish.ledger_ids
        wanted, lost = wanted_ids(context, only), frozenset(self.wish.bookies)
        done = 0

        def asked() -> Iterator[LedgerId]:
            nonlocal done
            for done, ledger_id in enumerate(wanted, 1):  # noqa: B007  (it is told below)
                yield ledger_id

        for ledger_id, found in context.store.read_ledgers(asked(), naming=lost):
            if found is None and only is not None:
                raise InvalidArgumentError(
                    f"ledger {ledger_id} does not exist; nothing was changed. `spark-bookkeeper "
                    "ledger list` shows those there are"
                )
            if isinstance(found, MetadataFormatError):
                self.unreadable.append(ShareCopied(ledger_id, Outcome.LEFT, found.message))
            elif found is not None:
                self._note(ledger_id, found.value)
                yield ledger_id, found
            progress("reading ledger metadata", done, len(wanted), 0)
        progress("reading ledger metadata", len(wanted), len(wanted), 0)

    def _note(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        self.named |= metadata.members()
        self.with_target.extend(
            f"ledger {ledger_id} fragment {fragment.first_entry_id}"
            for fragment in metadata.fragments
            if self.wish.target in fragment.ensemble
            and set(fragment.ensemble) & set(self.wish.bookies)
        )


def _check(
    context: ClientContext,
    wish: BookieRecovery,
    registrations: Mapping[BookieId, Registration],
    survey: _Survey,
) -> None:
    """Raise ``InvalidArgumentError`` when a bookie or the target does not fit."""
    known = {cookie.value.bookie_id for cookie in context.store.cookies()} | registrations.keys()
    known |= survey.named
    for bookie in wish.bookies:
        if bookie in registrations and not wish.even_if_alive:
            raise InvalidArgumentError(
                f"bookie {bookie} is alive (registered); nothing was changed. Stop its agent, "
                "or use even_if_alive (--even-if-alive), and its data is copied while it runs"
            )
        if bookie not in known and context.store.cookie_version(bookie) is None:
            raise InvalidArgumentError(
                f"bookie {bookie} is unknown: it has no registration, no cookie and no fragment "
                "names it; nothing was changed. `spark-bookkeeper bookie list` shows the bookies"
            )
    if wish.target is None:
        return
    target = registrations.get(wish.target)
    if wish.target in wish.bookies:
        raise InvalidArgumentError(
            f"target {wish.target} is one of the bookies to recover; nothing was changed. Choose "
            "another target, or none"
        )
    if target is None:
        raise InvalidArgumentError(
            f"target {wish.target} is not registered; nothing was changed. Registered bookies: "
            f"{', '.join(sorted(registrations)) or 'none'}"
        )
    if target.is_readonly:
        raise InvalidArgumentError(
            f"target {wish.target} is read-only and takes no copies; nothing was changed. Choose "
            "another target, or none"
        )
    inside = survey.with_target
    if inside:
        shown = ", ".join(inside[:5]) + (f" and {len(inside) - 5} more" if len(inside) > 5 else "")
        raise InvalidArgumentError(
            f"target {wish.target} is already in the ensemble of {shown}, and a bookie holds one "
            "copy of an entry; nothing was changed. Choose another target, or none to have a "
            "suitable one chosen for each fragment"
        )


def _needs_recovery(metadata: LedgerMetadata, wish: BookieRecovery) -> bool:
    return not metadata.is_closed and bool(set(metadata.last_fragment.ensemble) & set(wish.bookies))


def _is_skipped(metadata: LedgerMetadata, wish: BookieRecovery) -> bool:
    return wish.skip_open_ledgers and metadata.state is LedgerState.OPEN


def _skipped(ledger_id: LedgerId, metadata: LedgerMetadata, wish: BookieRecovery) -> ShareCopied:
    lost = next(b for b in metadata.last_fragment.ensemble if b in wish.bookies)
    first = metadata.last_fragment.first_entry_id
    return ShareCopied(ledger_id, Outcome.LEFT, SKIPPED, first, source=lost)


def _work(
    ledger_id: LedgerId,
    metadata: LedgerMetadata,
    wish: BookieRecovery,
    alive: Mapping[BookieId, Registration],
    left: Spool[ShareCopied],
) -> Sequence[tuple[int, Todo]]:
    """Return the affected fragments of one ledger; record a planning failure in ``left``."""
    try:
        return _todo(ledger_id, metadata, wish, alive)
    except Exception as error:  # noqa: BLE001  (one ledger of many becomes its row)
        reason = reason_of(error, f"planning the recovery of ledger {ledger_id}")
        left.append(ShareCopied(ledger_id, Outcome.LEFT, reason))
        return ()


def _todo(
    ledger_id: LedgerId,
    metadata: LedgerMetadata,
    wish: BookieRecovery,
    alive: Mapping[BookieId, Registration],
) -> Sequence[tuple[int, Todo]]:
    """Return each fragment with the fewest live copies that any of its entries has."""
    live = live_members(metadata, registered_incarnations(alive), wish.bookies)
    fragments = {m.fragment.index: m.fragment for m in missing_replicas(metadata, wish.bookies)}
    found: list[tuple[int, Todo]] = []
    for fragment in fragments.values():
        if fragment.last_entry_id is None:
            continue  # the ledger could not be recovered, or was skipped: another row shows that
        size = share_bytes(metadata, fragment)
        work = FragmentWork(
            ledger_id,
            fragment.first_entry_id,
            wish.bookies,
            wish.target,
            wish.even_if_alive,
            wish.bytes_per_second,
            size,
            nonce=metadata.nonce,
            sources=tuple(b for b in fragment.ensemble if b not in wish.bookies),
        )
        large = metadata if size >= 2 * wish.piece_bytes else None
        found.append((live_copies(metadata.quorum, fragment, live), Todo(work, large)))
    return found


def _plan(
    ledger_id: LedgerId,
    metadata: LedgerMetadata,
    wish: BookieRecovery,
    targets: Targets,
    alive: Mapping[BookieId, Registration],
) -> Sequence[_Planned]:
    try:
        return list(_planned(ledger_id, metadata, wish, targets, alive))
    except Exception as error:  # noqa: BLE001  (one ledger of many becomes its row)
        reason = reason_of(error, f"planning the recovery of ledger {ledger_id}")
        return [ShareCopied(ledger_id, Outcome.LEFT, reason)]


def _planned(
    ledger_id: LedgerId,
    metadata: LedgerMetadata,
    wish: BookieRecovery,
    targets: Targets,
    alive: Mapping[BookieId, Registration],
) -> Iterator[_Planned]:
    try:
        ledger = Ledger.of(ledger_id, metadata)
    except MetadataFormatError as error:
        yield ShareCopied(ledger_id, Outcome.LEFT, error.message)
        return
    is_skipped = _is_skipped(metadata, wish)
    if _needs_recovery(metadata, wish):
        if is_skipped:
            yield _skipped(ledger_id, metadata, wish)
        else:
            first = "fence, recover and close it first"
            yield Recovered(ledger_id, Outcome.PLANNED, first)
    yield from planned_shares(ledger, wish.bookies, targets, alive, with_open_end=not is_skipped)
