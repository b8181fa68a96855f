"""``spark-bookkeeper autorecovery checks | trigger-audit | trigger-checks``: the auditor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click

from spark_bookkeeper.autorecovery.checks import CheckResult
from spark_bookkeeper.autorecovery.control import AutorecoveryControl
from spark_bookkeeper.cli.shell.cluster_options import Access, access_options, connected, looking
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


@click.command(name="trigger-audit", epilog="Example: spark-bookkeeper autorecovery trigger-audit")
@access_options
@click.pass_obj
def trigger_audit(settings: Settings, access: Access) -> int:
    """Have the auditor look for lost bookies now, whatever the delay."""
    return _ask(settings, access, AutorecoveryControl.trigger_audit, "an audit")


@click.command(
    name="trigger-checks", epilog="Example: spark-bookkeeper autorecovery trigger-checks"
)
@access_options
@click.pass_obj
def trigger_checks(settings: Settings, access: Access) -> int:
    """Have the auditor do its checks of all ledgers now, as if none had ever been done.

    It begins at once, or when no bookie is waited for any more. A check whose interval is 0 in the
    auditor's configuration is not done. `autorecovery checks` shows what was found when they have
    ended.
    """
    return _ask(settings, access, AutorecoveryControl.trigger_checks, "its checks")


def _ask(
    settings: Settings, access: Access, trigger: Callable[[AutorecoveryControl], None], what: str
) -> int:
    with connected(settings, access) as bk:
        trigger(bk.autorecovery)
        name = bk.autorecovery.who_is_auditor()
    settings.output.result(
        {"auditor": name}, lambda: settings.output.say(f"{name} was asked for {what}")
    )
    return EXIT_DONE
