"""The Manual Bookie Recovery process, step by step.

1. Read the metadata of all ledgers. 2. Select those whose fragments name a lost bookie.
3. For each: recover it first when its last fragment is affected and still open; then run the
Rereplication process for every affected fragment. 4. When all are replicated, it is finished.

Source: Bookie Ledger Recovery, "The Manual Bookie Recovery process"; BookKeeper
``client/BookKeeperAdmin.recoverBookieData``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import Ledger
from spark_bookkeeper.errors import InvalidArgumentError, MetadataFormatError, NotEnoughBookiesError
from spark_bookkeeper.metadata.store import Registration, Versioned
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import LedgerMetadata, LedgerState
from spark_bookkeeper.protocol.underreplication import (
    entries_at,
    live_bookies,
    live_copies,
    missing_replicas,
)
from spark_bookkeeper.replication.pieces import (
    PIECE_BYTES,
    PieceWork,
    copy_piece,
    pieces_of,
    told,
)
from spark_bookkeeper.replication.recover_ledgers import RecoverWork, recover_one
from spark_bookkeeper.replication.report import PLANNED, RecoveryReport, Row
from spark_bookkeeper.replication.rereplicate import FragmentWork, rereplicate_fragment
from spark_bookkeeper.replication.runner import (
    Progress,
    Runner,
    limited,
    no_progress,
    reason_of,
)
from spark_bookkeeper.replication.shares import share_bytes
from spark_bookkeeper.replication.targets import Targets

_Copying = FragmentWork | PieceWork


@dataclass(frozen=True, slots=True)
class BookieRecovery:
    """What to recover, and how."""

    bookies: tuple[BookieId, ...]
    """The lost bookies."""
    target: BookieId | None = None
    """Where to copy to; ``None`` chooses a random suitable bookie for each fragment."""
    ledger_ids: tuple[LedgerId, ...] | None = None
    """Only these ledgers; ``None`` is all of them."""
    skip_open_ledgers: bool = False
    """Leave ledgers alone that would have to be fenced and closed first."""
    even_if_alive: bool = False
    """Also take data off a bookie that is registered."""
    bytes_per_second: int | None = None
    """Limit on copying, for the whole job; ``None`` is none."""
    piece_bytes: int = PIECE_BYTES
    """Fragments of which a bookie has several times as much are copied by several tasks."""


def recover_bookie(
    context: ClientContext,
    runner: Runner,
    wish: BookieRecovery,
    *,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> RecoveryReport:
    """Make every share of the lost bookies again on other bookies; one row for each share.

    Killed at any moment it loses nothing, and run again it finishes the rest: what is done
    names no lost bookie any more, so there is nothing to repeat.

    Raises:
        InvalidArgumentError: a bookie is alive, unknown, or no fit target. Nothing was changed.
    """
    started = context.runtime.now()
    registrations = context.bookies.registrations()
    affected, rows = _affected(context, wish, progress)
    _check(context, wish, registrations, affected)
    if dry_run:
        targets = Targets(context.bookies, registrations, wish.bookies, wish.target)
        rows += [
            row
            for i, m in affected.items()
            for row in _plan(i, m.value, wish, targets, registrations)
        ]
    else:
        opened = [i for i, m in affected.items() if _needs_recovery(m.value, wish)]
        skipped: set[LedgerId] = set()
        if wish.skip_open_ledgers:
            skipped = {i for i in opened if affected[i].value.state is LedgerState.OPEN}
            opened = [i for i in opened if i not in skipped]
        recoveries = [RecoverWork(i, affected[i]) for i in opened]
        if recoveries:
            rows += runner.run("recovering open ledgers", recoveries, recover_one, progress)
        for ledger_id, now in context.store.read_ledgers(opened):
            # What became of one that is gone, or whose id is another's now, its row says.
            before = affected.pop(ledger_id)
            if isinstance(now, Versioned) and now.value.nonce == before.value.nonce:
                affected[ledger_id] = now
        rows += _copy(context, runner, wish, affected, progress)
        rows += [
            _open_share(i, affected[i].value, wish, "skipped: its last fragment is still open")
            for i in skipped
        ]
    duration_ms = round((context.runtime.now() - started) * 1000)
    rows.sort(key=lambda row: (row.ledger_id, row.first_entry_id or 0, row.source or ""))
    return RecoveryReport("recover_bookie", tuple(rows), dry_run, duration_ms)


def _copy(
    context: ClientContext,
    runner: Runner,
    wish: BookieRecovery,
    affected: Mapping[LedgerId, Versioned[LedgerMetadata]],
    progress: Progress,
) -> Iterable[Row]:
    """The Rereplication process for every affected fragment, those in most danger first."""
    alive = context.bookies.last_registrations()
    fragments, unplanned = _work(affected, wish, alive)
    if not fragments:
        return unplanned
    targets = Targets(context.bookies, alive, wish.bookies, wish.target)
    items: list[_Copying] = []
    pieces: dict[FragmentWork, Sequence[PieceWork]] = {}
    for work in fragments:
        metadata = affected[work.ledger_id].value
        try:
            pieces[work] = list(pieces_of(work, metadata, targets, wish.piece_bytes))
        except Exception as error:  # noqa: BLE001  (one ledger of many; its own work says so)
            reason_of(error, f"cutting ledger {work.ledger_id} into pieces")
            pieces[work] = ()
        items += pieces[work] or [work]
    # The width may be known only when Spark has started, and that takes its time.
    progress("copying fragments", 0, len(items), 0)
    copies = limited(items, wish.bytes_per_second, runner)
    rows = [*unplanned, *runner.run("copying fragments", copies, _copy_one, progress)]
    large = told(pieces, rows)
    if not large:
        return rows
    cut = {(work.ledger_id, work.first_entry_id) for work in large}
    finish = limited(large, wish.bytes_per_second, runner)
    return [
        *(row for row in rows if (row.ledger_id, row.first_entry_id) not in cut),
        *runner.run("replacing bookies", finish, _copy_one, progress),
    ]


def _copy_one(context: ClientContext, work: _Copying) -> Sequence[Row]:
    if isinstance(work, PieceWork):
        return copy_piece(context, work)
    return rereplicate_fragment(context, work)


def _affected(
    context: ClientContext, wish: BookieRecovery, progress: Progress
) -> tuple[dict[LedgerId, Versioned[LedgerMetadata]], list[Row]]:
    """Steps 1 and 2: the ledgers with a fragment that names a lost bookie.

    And a row for each ledger of which that cannot be told.
    """
    affected: dict[LedgerId, Versioned[LedgerMetadata]] = {}
    rows: list[Row] = []
    wanted = list(context.store.ledger_ids()) if wish.ledger_ids is None else wish.ledger_ids
    for done, (ledger_id, found) in enumerate(context.store.read_ledgers(wanted), 1):
        if found is None and wish.ledger_ids is not None:
            raise InvalidArgumentError(
                f"ledger {ledger_id} does not exist; nothing was changed. `spark-bookkeeper ledger "
                "list` shows those there are"
            )
        if isinstance(found, Versioned):
            if found.value.bookies() & set(wish.bookies):
                affected[ledger_id] = found
        elif found is not None:
            rows.append(Row(ledger_id, "copy", "left", found.message))
        progress("reading ledger metadata", done, len(wanted), 0)
    return affected, rows


def _check(
    context: ClientContext,
    wish: BookieRecovery,
    registrations: Mapping[BookieId, Registration],
    affected: Mapping[LedgerId, Versioned[LedgerMetadata]],
) -> None:
    known = {cookie.value.bookie_id for cookie in context.store.cookies()} | registrations.keys()
    known |= {b for found in affected.values() for b in found.value.bookies()}
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
    inside = [
        f"ledger {i} fragment {f.first_entry_id}"
        for i, found in affected.items()
        for f in found.value.fragments
        if wish.target in f.ensemble and set(f.ensemble) & set(wish.bookies)
    ]
    if inside:
        shown = ", ".join(inside[:5]) + (f" and {len(inside) - 5} more" if len(inside) > 5 else "")
        raise InvalidArgumentError(
            f"target {wish.target} is already in the ensemble of {shown}, and a bookie holds one "
            "copy of an entry; nothing was changed. Choose another target, or none to have a "
            "suitable one chosen for each fragment"
        )


def _needs_recovery(metadata: LedgerMetadata, wish: BookieRecovery) -> bool:
    return not metadata.is_closed and bool(set(metadata.last_fragment.ensemble) & set(wish.bookies))


def _work(
    affected: Mapping[LedgerId, Versioned[LedgerMetadata]],
    wish: BookieRecovery,
    alive: Mapping[BookieId, Registration],
) -> tuple[Sequence[FragmentWork], list[Row]]:
    """One piece for each affected fragment, those with the fewest live copies first.

    And a row for each ledger that cannot be planned.
    """
    pieces: list[tuple[int, FragmentWork]] = []
    rows: list[Row] = []
    for ledger_id, found in affected.items():
        try:
            pieces += _work_on(ledger_id, found.value, wish, alive)
        except Exception as error:  # noqa: BLE001  (one ledger of many becomes its row)
            reason = reason_of(error, f"planning the recovery of ledger {ledger_id}")
            rows.append(Row(ledger_id, "copy", "left", reason))
    pieces.sort(key=lambda pair: pair[0])
    return [piece for _, piece in pieces], rows


def _work_on(
    ledger_id: LedgerId,
    metadata: LedgerMetadata,
    wish: BookieRecovery,
    alive: Mapping[BookieId, Registration],
) -> Sequence[tuple[int, FragmentWork]]:
    """The pieces of one ledger, each with how many live copies there are at the least."""
    live = _live(ledger_id, metadata, wish, alive)
    fragments = {m.fragment.index: m.fragment for m in missing_replicas(metadata, wish.bookies)}
    return [
        (
            live_copies(metadata.quorum, fragment, live),
            FragmentWork(
                ledger_id,
                fragment.first_entry_id,
                wish.bookies,
                wish.target,
                wish.even_if_alive,
                wish.bytes_per_second,
                share_bytes(metadata, fragment),
                nonce=metadata.nonce,
            ),
        )
        for fragment in fragments.values()
        # Without an end its ledger could not be recovered, or was skipped: said elsewhere.
        if fragment.last_entry_id is not None
    ]


def _plan(
    ledger_id: LedgerId,
    metadata: LedgerMetadata,
    wish: BookieRecovery,
    targets: Targets,
    alive: Mapping[BookieId, Registration],
) -> Sequence[Row]:
    try:
        return list(_planned(ledger_id, metadata, wish, targets, alive))
    except Exception as error:  # noqa: BLE001  (one ledger of many becomes its row)
        reason = reason_of(error, f"planning the recovery of ledger {ledger_id}")
        return [Row(ledger_id, "copy", "left", reason)]


def _live(
    ledger_id: LedgerId,
    metadata: LedgerMetadata,
    wish: BookieRecovery,
    alive: Mapping[BookieId, Registration],
) -> frozenset[BookieId]:
    """Where a ledger has live copies now: not on a lost bookie, nor on any other that is down."""
    try:
        meant = Ledger.of(ledger_id, metadata).incarnations
    except MetadataFormatError:
        meant = {}  # its work says that it cannot be read
    registered = {bookie: found.incarnation for bookie, found in alive.items()}
    return live_bookies(registered, meant, wish.bookies)


def _planned(
    ledger_id: LedgerId,
    metadata: LedgerMetadata,
    wish: BookieRecovery,
    targets: Targets,
    alive: Mapping[BookieId, Registration],
) -> Iterable[Row]:
    """What a run would do, and what it would have to leave, as far as that is known now."""
    try:
        ledger = Ledger.of(ledger_id, metadata)
    except MetadataFormatError as error:
        yield Row(ledger_id, "copy", "left", error.message)
        return
    is_skipped = False
    if _needs_recovery(metadata, wish):
        is_skipped = wish.skip_open_ledgers and metadata.state is LedgerState.OPEN
        if is_skipped:
            yield _open_share(ledger_id, metadata, wish, "skipped: its last fragment is still open")
        else:
            yield Row(ledger_id, "recover", PLANNED, "fence, recover and close it first")
    size = metadata.length_bytes or 0
    total = (metadata.last_entry_id or 0) + 1
    live = _live(ledger_id, metadata, wish, alive)
    taken: dict[int, list[BookieId]] = {}
    for missing in missing_replicas(metadata, wish.bookies):
        fragment = missing.fragment
        first, last = fragment.first_entry_id, fragment.last_entry_id
        if last is None and is_skipped:
            continue
        chosen = taken.setdefault(fragment.index, [])
        try:
            target = targets.choose(ledger, fragment, missing.position, chosen)
        except NotEnoughBookiesError as error:
            yield Row(ledger_id, "copy", "left", error.message, first, last, missing.bookie)
            continue
        chosen.append(target)
        copies = _copies_text(live_copies(metadata.quorum, fragment, live))
        if last is None:
            reason = f"{copies}; how much there is to copy is known when it is closed"
            yield Row(ledger_id, "copy", PLANNED, reason, first, None, missing.bookie, target)
            continue
        count = sum(map(len, entries_at(metadata.quorum, missing.position, first, last)))
        yield Row(
            ledger_id,
            "copy" if count else "metadata",
            PLANNED,
            copies,
            first,
            last,
            missing.bookie,
            target,
            count,
            size * count // total if total else 0,
        )


def _copies_text(count: int) -> str:
    return f"{count} live {'copy' if count == 1 else 'copies'} at the least"


def _open_share(
    ledger_id: LedgerId, metadata: LedgerMetadata, wish: BookieRecovery, reason: str
) -> Row:
    lost = next(b for b in metadata.last_fragment.ensemble if b in wish.bookies)
    first = metadata.last_fragment.first_entry_id
    return Row(ledger_id, "copy", "left", reason, first, None, lost)
