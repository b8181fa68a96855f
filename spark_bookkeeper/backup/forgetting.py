"""Giving up unfinished restores: their copies become garbage, and are collected.

A killed restore leaves copies of ledgers that have no metadata, and its registers protect these
from garbage collection. An operator who does not repeat the restore forgets it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from spark_bookkeeper.backup.saving import BackupReport
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.writer_info import WriterInfo
from spark_bookkeeper.errors import BookKeeperError, InvalidArgumentError
from spark_bookkeeper.metadata import restores
from spark_bookkeeper.metadata.store import MetadataStore
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.replication.report import Outcome, Row
from spark_bookkeeper.replication.runner import Progress, no_progress


@dataclass(frozen=True, slots=True)
class _Copies:
    """The copies of one ledger that a restore has put on a bookie."""

    bookie: BookieId
    bytes: int


def forget_restores(
    context: ClientContext,
    ledger_ids: Sequence[LedgerId] | None = None,
    *,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> BackupReport:
    """Give up unfinished restores (``BookKeeper.forget_restores``).

    A ledger whose metadata exist is whole, and stays.
    """
    started = context.runtime.now()
    store, who = context.store, str(WriterInfo.of_this_process())
    rows: list[Row] = []
    with ExitStack() as is_alone:
        if dry_run:
            restores.check_none_runs(store.ballots, context.runtime)
        else:
            is_alone.enter_context(restores.giving_up(store.ballots, who, context.runtime))
        wanted = _wanted(store, ledger_ids)
        found = _copies_of(context, wanted, rows, progress)
        for done, (ledger_id, nonce) in enumerate(wanted.items(), start=1):
            rows += _forget(context, ledger_id, nonce, found[ledger_id], dry_run=dry_run)
            progress("forgetting restores", done, len(wanted), 0)
    duration_ms = round((context.runtime.now() - started) * 1000)
    return BackupReport("forget_restores", tuple(rows), dry_run, duration_ms)


def _wanted(
    store: MetadataStore, ledger_ids: Sequence[LedgerId] | None
) -> Mapping[LedgerId, bytes]:
    """Return the nonce of each ledger to be forgotten."""
    begun = restores.begun(store.registers)
    if unknown := [i for i in ledger_ids or () if i not in begun]:
        known = ", ".join(map(str, begun)) or "none"
        raise InvalidArgumentError(
            f"no restore of ledger {unknown[0]} is under way; nothing was forgotten. Begun and not "
            f"ended are those of: {known}"
        )
    chosen = begun if ledger_ids is None else sorted(ledger_ids)
    nonces = {ledger_id: restores.nonce_of(store.registers, ledger_id) for ledger_id in chosen}
    return {i: nonce for i, nonce in nonces.items() if nonce is not None}  # others have ended


def _copies_of(
    context: ClientContext, wanted: Mapping[LedgerId, bytes], rows: list[Row], progress: Progress
) -> dict[LedgerId, list[_Copies]]:
    """Return the copies on bookies; add a row for each bookie that does not answer."""
    found: dict[LedgerId, list[_Copies]] = {ledger_id: [] for ledger_id in wanted}
    bookies = sorted(context.bookies.registrations()) if wanted else []
    for done, bookie in enumerate(bookies, start=1):
        try:
            face = context.bookies.bookie(bookie)
            for key in face.ledgers():
                ledger_id = LedgerId(key.ledger_id)
                if wanted.get(ledger_id) == key.nonce.encode():
                    found[ledger_id].append(_Copies(bookie, sum(face.sizes_of(key))))
        except BookKeeperError as error:
            reason = f"what it has is not known, and is collected later: {error.message}"
            rows.append(Row(-1, "forget", Outcome.UNAVAILABLE, reason, source=bookie))
        progress("asking bookies what they have", done, len(bookies), 0)
    return found


def _forget(
    context: ClientContext,
    ledger_id: LedgerId,
    nonce: bytes,
    copies: Sequence[_Copies],
    *,
    dry_run: bool,
) -> Iterator[Row]:
    try:
        if dry_run:
            is_restored = restores.is_restored(context.store, ledger_id, nonce)
        else:
            is_restored = not restores.give_up(context.store, ledger_id, nonce)
    except BookKeeperError as error:
        yield Row(ledger_id, "forget", Outcome.LEFT, error.message)
        return
    if is_restored:
        reason = "it is whole, and stays: only the note of its restore goes"
        yield Row(ledger_id, "forget", Outcome.RESTORED, reason)
        return
    status = Outcome.PLANNED if dry_run else Outcome.NO_LONGER_NEEDED
    if not copies:
        yield Row(ledger_id, "forget", status, "no bookie that answers has copies of it")
    for each in copies:
        yield Row(
            ledger_id,
            "forget",
            status,
            "garbage collection takes these copies",
            source=each.bookie,
            bytes=each.bytes,
        )
