"""Restores logs from a backup: checks their ledgers, and writes their registers, head last."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import replace

from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.errors import BookKeeperError, VersionConflictError
from spark_bookkeeper.metadata import logs
from spark_bookkeeper.metadata.consumers import CONSUMERS_PARENT
from spark_bookkeeper.protocol.ids import LedgerId
from spark_bookkeeper.replication.report import Outcome, Row, counted


def saved_logs(registers: Mapping[str, bytes]) -> list[str]:
    """Return the names of the logs in a snapshot, ascending."""
    parts = (name.partition("/") for name in registers)
    return sorted(log for parent, _, log in parts if parent == logs.LOGS_PARENT and "/" not in log)


def ledgers_of_log(registers: Mapping[str, bytes], log: str) -> list[LedgerId]:
    """Return the ids of a log's ledgers that were not truncated, from its registers."""
    path = f"{logs.LOGS_PARENT}/{log}"
    head = json.loads(registers[path])
    ids = [i for name, *_ in head["chunks"] for i in json.loads(registers[f"{path}/{name}"])]
    return [LedgerId(i) for i in (*ids, *head["recent"]) if i >= head["begins_at"]]


def planned_log(
    context: ClientContext, registers: Mapping[str, bytes], log: str, saved: Set[LedgerId]
) -> Row:
    """Return the row of a log in a dry run.

    Args:
        saved: the ledgers that the snapshot has.
    """
    ledgers = ledgers_of_log(registers, log)
    if context.store.registers.read(f"{logs.LOGS_PARENT}/{log}") is not None:
        row = _row_of_found(context, registers, log)
        is_there = row.status is Outcome.RESTORED
        return replace(row, status=Outcome.THERE_ALREADY) if is_there else row
    for ledger_id, there in context.store.read_ledgers([i for i in ledgers if i not in saved]):
        if there is None:
            return _row(registers, log, Outcome.LEFT, _lacks(ledger_id))
    return _row(registers, log, Outcome.PLANNED, counted(len(ledgers), "ledger"))


def restore_log(
    context: ClientContext, registers: Mapping[str, bytes], log: str, *, is_whole: bool
) -> Row:
    """Create a log's registers, the head last, but only if all of its ledgers exist."""
    ledgers = ledgers_of_log(registers, log)
    path = f"{logs.LOGS_PARENT}/{log}"
    if not is_whole:
        reason = "not all ledgers are there yet; repeat it when they are"
        return _row(registers, log, Outcome.LEFT, reason)
    for ledger_id, there in context.store.read_ledgers(ledgers):
        if there is None:
            return _row(registers, log, Outcome.LEFT, _lacks(ledger_id))
    beside = f"{CONSUMERS_PARENT}/{log}/"
    order = sorted(name for name in registers if name.startswith((f"{path}/", beside)))
    try:
        for name in [*order, path]:
            context.store.registers.create(name, registers[name])
    except VersionConflictError:
        return _row_of_found(context, registers, log)
    except BookKeeperError as error:
        return _row(registers, log, Outcome.LEFT, error.message)
    return _row(registers, log, Outcome.RESTORED, counted(len(ledgers), "ledger"))


def _row_of_found(context: ClientContext, registers: Mapping[str, bytes], log: str) -> Row:
    """Return the row of a log whose name the cluster has used, perhaps for this very log."""
    found = logs.find_log(context.store.registers, log)
    saved = json.loads(registers[f"{logs.LOGS_PARENT}/{log}"])
    if found is not None and found.nonce == saved["nonce"]:
        return _row(registers, log, Outcome.RESTORED, "it was there already")
    if found is None:
        return _row(
            registers,
            log,
            Outcome.LEFT,
            "a log of that name was deleted here, which the cluster remembers; restore it into an "
            "empty cluster",
        )
    return _row(
        registers,
        log,
        Outcome.LEFT,
        "the cluster has another log of that name, which was not touched; delete it if nobody "
        f"needs it (`spark-bookkeeper log delete {log}`), or restore into an empty cluster",
    )


def _lacks(ledger_id: LedgerId) -> str:
    return (
        f"its ledger {ledger_id} is not in this snapshot, as it could not be saved then, and not "
        "in the cluster; take an earlier or later snapshot"
    )


def _row(registers: Mapping[str, bytes], log: str, status: Outcome, reason: str) -> Row:
    ledgers = ledgers_of_log(registers, log)
    newest = ledgers[-1] if ledgers else -1
    return Row(newest, "restore log", status, f"log {log!r}: {reason}")
