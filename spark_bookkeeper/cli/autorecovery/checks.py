"""``spark-bookkeeper autorecovery checks``: what the auditor's checks found."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from spark_bookkeeper.autorecovery.check_results import CheckResult
from spark_bookkeeper.cli.shell.cluster_options import Access, access_options, looking
from spark_bookkeeper.cli.shell.settings import EXIT_DONE, Settings
from spark_bookkeeper.client.presence import age
from spark_bookkeeper.replication.report import some_of


@click.command(epilog="Example: spark-bookkeeper autorecovery checks")
@access_options
@click.pass_obj
def checks(settings: Settings, access: Access) -> int:
    """What the auditor's checks of all ledgers found when each was done last, and in which."""
    with looking(settings, access) as bk:
        results = bk.autorecovery.checks()
        now_ms = bk.context.cluster_ms()

    def show() -> None:
        if not results:
            settings.output.say(
                "no check has come to its end yet; the configuration of autorecovery says how "
                "often each is done (ledger_check_interval_s and others)"
            )
            return
        settings.output.table(
            ["check", "ended", "took", "ledgers looked at", "found", "of them", "ledgers"],
            [row for result in results for row in _rows(result, now_ms)],
        )

    settings.output.result({"checks": [asdict(result) for result in results]}, show)
    return EXIT_DONE


def _rows(result: CheckResult, now_ms: int) -> list[list[Any]]:
    """One for each kind of finding; one that says so where nothing was found."""
    took = f"{result.duration_ms / 1000:,.1f} s"
    about = [result.check.replace("_", " "), age(result.ended_at_ms, now_ms), took, result.ledgers]
    if not result.found:
        return [[*about, "nothing", None, None]]
    return [
        [*about, what, count, some_of(result.named.get(what, ())) if count else None]
        for what, count in sorted(result.found.items())
    ]
