"""The scripts in ``jobs/``: the verbs of the command line, for ``spark-submit``.

A script takes the metadata URI first, as the documents write it, and never asks a question.
Everything else, exit codes included, is as in the verb.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from copy import copy
from typing import Any, Final

import click

from spark_bookkeeper.cli.autorecovery import group as autorecovery_group
from spark_bookkeeper.cli.autorecovery import work as autorecovery_work
from spark_bookkeeper.cli.backup import backup, restore
from spark_bookkeeper.cli.bookie import cluster_view as bookies
from spark_bookkeeper.cli.bookie.decommission import decommission
from spark_bookkeeper.cli.bookie.rebalance import drain, rebalance
from spark_bookkeeper.cli.bookie.refill import refill
from spark_bookkeeper.cli.bookie.upkeep import compact, gc
from spark_bookkeeper.cli.ledger import work as ledger_work
from spark_bookkeeper.cli.ledger.archive import archive
from spark_bookkeeper.cli.main import guarded
from spark_bookkeeper.cli.shell.logs import (
    LOG_FORMAT_VARIABLE,
    LOG_FORMATS,
    LogFormat,
    start_logging,
)
from spark_bookkeeper.cli.shell.output import Output
from spark_bookkeeper.cli.shell.parameters import refuse_empty
from spark_bookkeeper.cli.shell.settings import EXIT_DONE, Settings
from spark_bookkeeper.spark.submitted import separate_stderr

JOBS: Final[dict[str, click.Command]] = {
    "recover_bookie": bookies.recover,
    "recover_ledgers": ledger_work.recover,
    "check_ledgers": ledger_work.check,
    "archive_to_delta": archive,
    "backup": backup,
    "restore": restore,
    "audit": autorecovery_work.audit,
    "rereplicate": autorecovery_work.rereplicate,
    "autorecovery": autorecovery_group.start,
    "decommission_bookie": decommission,
    "refill_bookie": refill,
    "rebalance": rebalance,
    "drain_bookie": drain,
    "collect_garbage": gc,
    "compact": compact,
}
"""The command that each script runs."""

_GLOBAL: Final = ("--metadata-uri", "--json", "--verbose", "--log-format")
"""Options that a verb has if the command line ran in this process before; a job defines its own."""

_OURS: Final = ("yes", "on_spark")
"""Options of a verb that a job does not have: it asks no question, and always has Spark."""


def run_job(name: str, arguments: Sequence[str] | None = None) -> int:
    """Run a script with the arguments of this process; return the exit code.

    stdout gets the result and nothing else; progress, errors and stack traces go to stderr.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    program = f"jobs/{name}.py"
    with separate_stderr():
        return guarded(
            lambda: job_command(name).main(given, prog_name=program, standalone_mode=False), given
        )


def job_command(name: str) -> click.Command:
    """Return the click command of a script."""
    verb = JOBS[name]
    kept = [
        copy(parameter)
        for parameter in verb.params
        if parameter.name not in _OURS and parameter.opts[0] not in _GLOBAL
    ]
    answers = dict.fromkeys((p.name for p in verb.params if p.name in _OURS), True)
    for parameter in kept:
        if parameter.name == "bookie_id":
            parameter.metavar, parameter.required = "BOOKIE", True

    def callback(
        metadata_uri: str, is_json: bool, is_verbose: bool, log_format: LogFormat, **options: Any
    ) -> int:
        conf = {"spark_log_level": "INFO" if is_verbose else "WARN"}
        context = click.get_current_context()
        context.obj = Settings(metadata_uri, Output(is_json=is_json), is_verbose, conf, log_format)
        if log_format == "json":
            start_logging(log_format, logging.WARNING)
        assert verb.callback is not None
        return int(verb.callback(**options, **answers) or EXIT_DONE)

    _, _, example = (verb.epilog or "").partition(f" {verb.name} ")
    command = click.Command(
        name,
        params=[
            click.Argument(["metadata_uri"], metavar="METADATA_URI"),
            *kept,
            click.Option(["--json", "is_json"], is_flag=True, help="One JSON object on stdout."),
            click.Option(
                ["--log-format"],
                type=click.Choice(LOG_FORMATS),
                default="text",
                envvar=LOG_FORMAT_VARIABLE,
                help="Form of the log on stderr.",
            ),
            click.Option(
                ["--verbose", "is_verbose"], is_flag=True, help="Stack traces and Spark's own log."
            ),
        ],
        callback=callback,
        help=verb.help,
        epilog=f"Example: spark-submit jobs/{name}.py zk1:2181,zk2:2181 {example}",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    refuse_empty(command)
    return command
