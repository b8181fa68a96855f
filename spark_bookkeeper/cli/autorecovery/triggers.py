"""``spark-bookkeeper autorecovery trigger-audit | trigger-checks``: the auditor is asked."""

from __future__ import annotations

from collections.abc import Callable

import click

from spark_bookkeeper.autorecovery.control import AutorecoveryControl
from spark_bookkeeper.cli.shell.cluster_options import Access, access_options, connected
from spark_bookkeeper.cli.shell.settings import EXIT_DONE, Settings


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
