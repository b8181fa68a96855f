"""``spark-bookkeeper autorecovery``: run it, configure it, and see why a ledger is not repaired."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any, Final

import click
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from spark_bookkeeper.agent.pages import PageHandler, PageServer
from spark_bookkeeper.autorecovery.checks import CheckResult
from spark_bookkeeper.autorecovery.control import AutorecoveryControl
from spark_bookkeeper.autorecovery.daemon import Autorecovery
from spark_bookkeeper.autorecovery.names import NONE_RUNS
from spark_bookkeeper.cli.autorecovery.work import audit, rereplicate, run_once
from spark_bookkeeper.cli.shell.cluster_options import Access, access_options, connected, looking
from spark_bookkeeper.cli.shell.logs import start_logging
from spark_bookkeeper.cli.shell.parameters import WholeNumber
from spark_bookkeeper.cli.shell.settings import EXIT_DONE, Settings
from spark_bookkeeper.cli.shell.termination import STOPPING, until_signalled
from spark_bookkeeper.cli.shell.work import MOST_ROWS, kept_in_file, open_table, report_table
from spark_bookkeeper.client.presence import age
from spark_bookkeeper.protocol.ids import parse_bookie_id
from spark_bookkeeper.protocol.underreplication import NEEDS_BOOKIE
from spark_bookkeeper.replication.report import some_of
from spark_bookkeeper.session import BookKeeper
from spark_bookkeeper.session.arguments import known_bookies

_LOOPBACK: Final = "127.0.0.1"


@click.group(name="autorecovery", epilog="Example: spark-bookkeeper autorecovery underreplicated")
def autorecovery() -> None:
    """Notices lost bookies and makes their data again: run it, set it, ask it."""


autorecovery.add_command(audit)
autorecovery.add_command(rereplicate)


@autorecovery.command(
    epilog="Example: spark-bookkeeper --metadata-uri zk://zk1:2181/ledgers autorecovery start "
    "--once"
)
@click.option(
    "--engine",
    type=click.Choice(["spark", "local"]),
    default="spark",
    show_default=True,
    help="Do the work as Spark jobs, or in this process.",
)
@click.option("--beside", metavar="BOOKIE", help="Copy to this bookie, and to no other.")
@click.option(
    "--metrics-port",
    type=WholeNumber(min=1, max=65_535),
    help="Serve metrics for Prometheus there, at http://127.0.0.1:PORT/metrics.",
)
@click.option("--once", is_flag=True, help="One audit and one round of work, and end.")
@click.option("--dry-run", is_flag=True, help="Of --once: show what it would do; change nothing.")
@report_table
@access_options
@click.pass_obj
def start(
    settings: Settings,
    access: Access,
    engine: str,
    beside: str | None,
    metrics_port: int | None,
    once: bool,
    dry_run: bool,
    report_table: str | None,
) -> int:
    """Run auditor and replication worker until Ctrl-C or SIGTERM; any number of these may run.

    One of all that run is elected auditor, and another takes over when it dies.
    """
    if beside is not None:
        parse_bookie_id(beside)
    if not once:
        for option, is_given in (
            ("--report-table keeps the report of", report_table is not None),
            ("--report-file keeps the report of", kept_in_file() is not None),
            ("--dry-run shows what would be done by", dry_run),
        ):
            if is_given:
                raise click.UsageError(f"{option} --once, which was not asked for")
    elif metrics_port is not None:
        raise click.UsageError("--metrics-port serves what runs on, and --once ends")
    with connected(settings, access, waits=not once) as bk:
        bk.runs_here = engine != "spark"
        if beside is not None:
            known_bookies(bk.context, [beside])
        config = access.conf.autorecovery
        if once:
            table = open_table(settings, report_table)
            return run_once(settings, bk, config, beside, table, dry_run=dry_run)
        start_logging(settings.log_format)
        with _served_metrics(settings, bk, metrics_port), until_signalled() as stopping:
            note_warning(settings, bk)
            running: Autorecovery = bk.autorecovery.start(bookie_id=beside, config=config)
            try:
                settings.output.note("autorecovery runs; Ctrl-C stops it")
                while not stopping.wait(1.0):
                    pass  # a signal just before a wait without time-out would have no effect
                settings.output.note(STOPPING)
            finally:
                running.stop()
    settings.output.note("autorecovery has stopped; what it was at is done by others")
    return EXIT_DONE


@contextmanager
def _served_metrics(settings: Settings, bk: BookKeeper, port: int | None) -> Iterator[None]:
    """Serve metrics of auditor and worker over HTTP. If the port is in use, only the page fails."""
    if port is None:
        yield
        return

    class Page(PageHandler):
        def do_GET(self) -> None:
            self.answer(200, CONTENT_TYPE_LATEST, generate_latest(bk.metrics_registry))

        def do_HEAD(self) -> None:
            self.do_GET()

    try:
        server = PageServer((_LOOPBACK, port), Page)
    except OSError as error:
        settings.output.note(f"no metrics are served: port {port} of {_LOOPBACK}: {error}")
        yield
        return
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    settings.output.note(f"its /metrics are at http://{_LOOPBACK}:{server.server_port}")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def note_warning(settings: Settings, bk: BookKeeper) -> None:
    """Print, at the start of autorecovery, why it will do nothing, or will not be auditor."""
    warning = bk.autorecovery.warning()
    if warning is not None and warning != NONE_RUNS:  # starting this one resolves that
        settings.output.note(warning)


@autorecovery.command(epilog="Example: spark-bookkeeper autorecovery enable")
@access_options
@click.pass_obj
def enable(settings: Settings, access: Access) -> int:
    """Let autorecovery go on in the whole cluster."""
    with connected(settings, access) as bk:
        is_changed = bk.autorecovery.enable()
        warning = bk.autorecovery.warning()
    code = _switched(settings, is_changed, is_enabled=True)
    if warning is not None:  # enabled, but no process does the work
        settings.output.note(warning)
    return code


@autorecovery.command(epilog="Example: spark-bookkeeper autorecovery disable")
@access_options
@click.pass_obj
def disable(settings: Settings, access: Access) -> int:
    """Stop autorecovery in the whole cluster, for maintenance; what is under way is finished."""
    with connected(settings, access) as bk:
        is_changed = bk.autorecovery.disable()
    return _switched(settings, is_changed, is_enabled=False)


def _switched(settings: Settings, is_changed: bool, *, is_enabled: bool) -> int:
    word = "enabled" if is_enabled else "disabled"
    settings.output.result(
        {"is_enabled": is_enabled, "changed": is_changed},
        lambda: settings.output.say(f"autorecovery {'is' if is_changed else 'was already'} {word}"),
    )
    return EXIT_DONE


@autorecovery.command(epilog="Example: spark-bookkeeper autorecovery status")
@access_options
@click.pass_obj
def status(settings: Settings, access: Access) -> int:
    """Is it enabled, who is auditor, how much is there to do, and is anything wrong with it?"""
    with looking(settings, access) as bk:
        found = bk.autorecovery.status()

    def show() -> None:
        facts = found.to_dict()
        warning = facts.pop("warning")
        shown = {k.replace("_", " "): "none" if v is None else str(v) for k, v in facts.items()}
        settings.output.table(["what", "value"], [[k, v] for k, v in shown.items()])
        if warning is not None:
            settings.output.say(warning)

    settings.output.result(found.to_dict(), show)
    return EXIT_DONE


@autorecovery.command(epilog="Example: spark-bookkeeper autorecovery underreplicated --json")
@access_options
@click.pass_obj
def underreplicated(settings: Settings, access: Access) -> int:
    """Every ledger that lacks replicas: since when, how much is left, what was tried, what blocks.

    The one with the fewest live copies comes first.
    """
    with looking(settings, access) as bk:
        rows = bk.underreplicated_arrow().to_pylist()
        warning = bk.autorecovery.warning()
        now = datetime.fromtimestamp(bk.context.cluster_ms() / 1000, timezone.utc)
    rows.sort(key=lambda row: (row["live_copies"] or 0, row["marked_at"] or now))

    def show() -> None:
        if not rows:
            settings.output.say("no ledger is under-replicated, as far as anybody has published")
            return
        heads = ["ledger", "missing", "live copies", "age", "locked by", "attempts"]
        settings.output.table(
            [*heads, "next try", "blocker", "last error"],
            [_cells(row, now) for row in rows[:MOST_ROWS]],
        )
        if len(rows) > MOST_ROWS:
            settings.output.say(f"the {MOST_ROWS} most endangered of {len(rows):,}; --json has all")

    settings.output.result({"underreplicated": rows}, show)
    if any(NEEDS_BOOKIE in (row["blocker"] or "") for row in rows):
        settings.output.note(
            f"{NEEDS_BOOKIE}: start a lost bookie again, make one writable (`spark-bookkeeper "
            "bookie set-writable BOOKIE`), or add one (`spark-bookkeeper bookie start --bookie-id "
            "HOST:3181 --root DIRECTORY`); `spark-bookkeeper bookie list` shows them"
        )
    if warning is not None:  # the reason why no ledger is published, or none is repaired
        settings.output.note(warning)
    return EXIT_DONE


def _cells(row: dict[str, Any], now: datetime) -> list[Any]:
    def distance(at: datetime | None, sign: int) -> str | None:
        return None if at is None else f"{max(0.0, (at - now).total_seconds() * sign):,.0f} s"

    return [
        row["ledger_id"],
        ", ".join(row["missing_replicas"]),
        row["live_copies"],
        distance(row["marked_at"], -1),
        row["locked_by"],
        row["attempts"],
        distance(row["next_try_at"], 1),
        row["blocker"],
        row["last_error"],
    ]


@autorecovery.command(
    name="who-is-auditor", epilog="Example: spark-bookkeeper autorecovery who-is-auditor"
)
@access_options
@click.pass_obj
def who_is_auditor(settings: Settings, access: Access) -> int:
    """The name of the auditor: the bookie beside which it runs, or its machine and process."""
    with looking(settings, access) as bk:
        name = bk.autorecovery.who_is_auditor()
    settings.output.result(
        {"auditor": name}, lambda: settings.output.say(name or "there is no auditor")
    )
    return EXIT_DONE


@autorecovery.command(epilog="Example: spark-bookkeeper autorecovery delay 600")
@click.argument("seconds", type=WholeNumber(min=0, max=(1 << 31) - 1), required=False)
@access_options
@click.pass_obj
def delay(settings: Settings, access: Access, seconds: int | None) -> int:
    """Show, or set to SECONDS, how long one bookie may be away before its ledgers are published.

    Several that are away at once have a tenth of it, and at least as long as a session lasts.
    """
    with connected(settings, access) as bk:
        if seconds is not None:
            bk.autorecovery.lost_bookie_recovery_delay = seconds
        found = bk.autorecovery.lost_bookie_recovery_delay
    settings.output.result(
        {"lost_bookie_recovery_delay": found}, lambda: settings.output.say(f"{found} s")
    )
    return EXIT_DONE


@autorecovery.command(epilog="Example: spark-bookkeeper autorecovery limit 50000000")
@click.argument("bytes_per_second", type=WholeNumber(min=0), required=False)
@access_options
@click.pass_obj
def limit(settings: Settings, access: Access, bytes_per_second: int | None) -> int:
    """Show, or set, how many BYTES_PER_SECOND each worker may copy; 0 is no limit.

    Workers that run obey within seconds, also in the middle of a ledger.
    """
    with connected(settings, access) as bk:
        if bytes_per_second is not None:
            bk.autorecovery.bytes_per_second = bytes_per_second or None
        found = bk.autorecovery.bytes_per_second
    settings.output.result(
        {"bytes_per_second": found},
        lambda: settings.output.say("no limit" if found is None else f"{found:,} bytes per second"),
    )
    return EXIT_DONE


@autorecovery.command(epilog="Example: spark-bookkeeper autorecovery checks")
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
            [row for result in results for row in _check_rows(result, now_ms)],
        )

    settings.output.result({"checks": [asdict(result) for result in results]}, show)
    return EXIT_DONE


def _check_rows(result: CheckResult, now_ms: int) -> list[list[Any]]:
    """Return a row for each kind of finding; one row ``nothing`` if there is none."""
    took = f"{result.duration_ms / 1000:,.1f} s"
    about = [result.check.replace("_", " "), age(result.ended_at_ms, now_ms), took, result.ledgers]
    if not result.found:
        return [[*about, "nothing", None, None]]
    return [
        [*about, what, count, some_of(result.named.get(what, ())) if count else None]
        for what, count in sorted(result.found.items())
    ]


@autorecovery.command(
    name="trigger-audit", epilog="Example: spark-bookkeeper autorecovery trigger-audit"
)
@access_options
@click.pass_obj
def trigger_audit(settings: Settings, access: Access) -> int:
    """Have the auditor look for lost bookies now, whatever the delay."""
    return _trigger(settings, access, AutorecoveryControl.trigger_audit, "an audit")


@autorecovery.command(
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
    what = "its checks; they begin at once, or when no bookie is waited for any more"
    return _trigger(settings, access, AutorecoveryControl.trigger_checks, what)


def _trigger(
    settings: Settings, access: Access, trigger: Callable[[AutorecoveryControl], None], what: str
) -> int:
    with connected(settings, access) as bk:
        trigger(bk.autorecovery)
        name = bk.autorecovery.who_is_auditor()
    settings.output.result(
        {"auditor": name}, lambda: settings.output.say(f"{name} was asked for {what}")
    )
    return EXIT_DONE
