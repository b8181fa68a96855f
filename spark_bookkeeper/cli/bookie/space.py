"""``spark-bookkeeper bookie space``: the use of space, and how much could be freed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from spark_bookkeeper.cli.shell.cluster_options import Access, access_options, looking
from spark_bookkeeper.cli.shell.output import number
from spark_bookkeeper.cli.shell.settings import EXIT_DONE, EXIT_LEFT_UNDONE, Settings
from spark_bookkeeper.cli.shell.work import MOST_ROWS
from spark_bookkeeper.client.views import bookie_rows
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.ids import parse_bookie_id

_BYTES: Final = ("live_bytes", "garbage_bytes", "orphan_bytes")
_KINDS: Final = (*_BYTES, "files")


@click.command(epilog="Example: spark-bookkeeper bookie space 10.0.0.3:3181 --ledgers")
@click.argument("bookie_ids", metavar="[BOOKIE...]", nargs=-1)
@click.option("--ledgers", "by_ledger", is_flag=True, help="Also each ledger on each bookie.")
@click.option("--logs", "by_log", is_flag=True, help="Also each log, over all of its bookies.")
@access_options
@click.pass_obj
def space(
    settings: Settings, access: Access, bookie_ids: Sequence[str], by_ledger: bool, by_log: bool
) -> int:
    """Show live, garbage and orphan bytes, and files, per bookie; nothing is changed.

    Orphan bytes are those of `ledger orphans`; garbage is what was deleted, or copies that no
    metadata name. Every file of each BOOKIE is looked at, or of all of them. Exit code 1 when a
    bookie could not be asked.
    """
    wanted = {parse_bookie_id(bookie) for bookie in bookie_ids}
    with looking(settings, access, "looking at bookies") as bk:
        known = {row["bookie_id"] for row in bookie_rows(bk.context)}
        for bookie in sorted(wanted - known):
            raise InvalidArgumentError(
                f"bookie {bookie} is unknown; `spark-bookkeeper bookie list` shows the bookies"
            )
        shown = bk.space_arrow(sorted(wanted) or None).to_pylist()
    # A bookie without ledgers has no rows, but is shown too.
    bookies = [_sum(bookie, shown) for bookie in sorted(wanted or known)]

    logs = _by_log(shown) if by_log else []

    def show() -> None:
        settings.output.table(
            ["bookie", "ledgers", "live bytes", "garbage", "orphan", "files", "not asked because"],
            [
                [b["bookie_id"], b["ledgers"], *(number(b[kind]) for kind in _KINDS), b["reason"]]
                for b in bookies
            ],
        )
        if by_log:
            settings.output.table(
                ["log", "ledgers", "live bytes", "garbage", "orphan", "files"],
                [
                    [each["log"], each["ledgers"], *(number(each[k]) for k in _KINDS)]
                    for each in logs
                ],
            )
        if not by_ledger:
            return
        held = [row for row in shown if row["ledger_id"] is not None]
        held.sort(key=lambda row: -sum(row[kind] for kind in _BYTES))
        settings.output.table(
            ["bookie", "ledger", "log", "live bytes", "garbage", "orphan", "files", "why"],
            [
                [
                    *(row[name] for name in ("bookie_id", "ledger_id", "log")),
                    *(number(row[kind]) for kind in _KINDS),
                    row["reason"],
                ]
                for row in held[:MOST_ROWS]
            ],
        )
        if len(held) > MOST_ROWS:
            settings.output.say(f"the {MOST_ROWS} largest of {len(held):,}; --json has all")

    settings.output.result(
        {"bookies": bookies, "ledgers": shown if by_ledger else [], "logs": logs}, show
    )
    return EXIT_LEFT_UNDONE if any(bookie["reason"] for bookie in bookies) else EXIT_DONE


def _sum(bookie: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    here = [row for row in rows if row["bookie_id"] == bookie]
    reasons = [row["reason"] for row in here if row["ledger_id"] is None]
    held = [row for row in here if row["ledger_id"] is not None]
    sizes = {kind: None if reasons else sum(row[kind] for row in held) for kind in _KINDS}
    return {
        "bookie_id": bookie,
        "ledgers": None if reasons else len({row["ledger_id"] for row in held}),
        **sizes,
        "reason": reasons[0] if reasons else None,
    }


def _by_log(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sum up each log, the largest first; the log ``None`` stands for ledgers without one."""
    logs: dict[str | None, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["ledger_id"] is not None:
            logs.setdefault(row["log"], []).append(row)
    sums: list[dict[str, Any]] = [
        {
            "log": log,
            "ledgers": len({row["ledger_id"] for row in held}),
            **{kind: sum(row[kind] for row in held) for kind in _KINDS},
        }
        for log, held in logs.items()
    ]
    return sorted(sums, key=lambda each: -sum(each[kind] for kind in _BYTES))
