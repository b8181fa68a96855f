"""The root of the command line: global options, nouns, and the display of errors.

A noun is a module ``cli/<noun>.py`` with a click group of its name. It is imported only when it is
used, so that ``--help`` is quick and one noun cannot break another.

Exit codes: 0 everything requested is done; 1 something is left undone; 2 the call was wrong or
the cluster cannot be reached, and nothing was changed; 141 the reader of the output has ended.
"""

from __future__ import annotations

import errno
import importlib.util
import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from io import StringIO
from typing import Any, Final, NoReturn

import click

import spark_bookkeeper
from spark_bookkeeper.cli.shell.logs import (
    LOG_FORMAT_VARIABLE,
    LOG_FORMATS,
    LogFormat,
    start_logging,
)
from spark_bookkeeper.cli.shell.output import (
    Output,
    open_closed_streams,
    plain,
    print_what_can_be_printed,
)
from spark_bookkeeper.cli.shell.parameters import refuse_empty
from spark_bookkeeper.cli.shell.prompt import NotConfirmedError
from spark_bookkeeper.cli.shell.remedies import in_commands, pasteable
from spark_bookkeeper.cli.shell.settings import (
    EXIT_CLOSED_PIPE,
    EXIT_DONE,
    EXIT_LEFT_UNDONE,
    EXIT_NOTHING_CHANGED,
    METADATA_URI_VARIABLE,
    Settings,
    exit_code_of,
)
from spark_bookkeeper.cli.shell.termination import (
    INTERRUPTED,
    is_first_to_say,
    termination_interrupts,
)
from spark_bookkeeper.errors import BookKeeperError, InvalidArgumentError
from spark_bookkeeper.secrecy import without_passwords

NOUNS: Final = {
    "demo": "The whole story on real rows, from nothing, on this machine.",
    "local": "A cluster on this machine that stays, to play with.",
    "doctor": "Is everything set up right, and what to do if not.",
    "cluster": "The cluster as a whole.",
    "bookie": "Storage partitions and their agents.",
    "ledger": "Create, list, show, read, append, fence, recover, check, delete ledgers.",
    "autorecovery": "Notices lost bookies and makes their data again: run it, set it, ask it.",
    "log": "Logs made of ledgers: create, list, show, append, read, truncate, delete.",
}
"""All possible nouns, with their lines in ``--help``; those without a module are not shown."""


class _Nouns(click.Group):
    """A group whose subcommands are the modules and folders of this package."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [noun for noun in NOUNS if _module(noun)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = _module(cmd_name) if cmd_name in NOUNS else None
        if name is None:
            return None
        command = getattr(import_module(name), cmd_name)
        assert isinstance(command, click.Command)
        _accept_global_options(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # click's own version would import every noun for its line of help.
        rows = [(noun, NOUNS[noun]) for noun in self.list_commands(ctx)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def _module(noun: str) -> str | None:
    """Return the module of a noun: one of its name, or ``group`` in a folder of its name."""
    name = f"spark_bookkeeper.cli.{noun}"
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    return name if spec.submodule_search_locations is None else f"{name}.group"


def _accept_global_options(command: click.Command) -> None:
    """Let every verb below ``command`` take the global options after it as well.

    People write ``ledger list --json``, not ``--json ledger list``. A verb that has an option of
    that name keeps its own.
    """
    if isinstance(command, click.Group):
        for child in command.commands.values():
            # Show the whole first sentence: click would cut it after 45 characters.
            child.short_help = child.get_short_help_str(limit=1_000)
            _accept_global_options(child)
        return
    taken = {text for parameter in command.params for text in parameter.opts}
    command.params.extend(option for option in _global_options() if option.opts[0] not in taken)
    refuse_empty(command)


def _global_options() -> list[click.Option]:
    return [
        click.Option(
            ["--metadata-uri"],
            metavar="URI",
            expose_value=False,
            callback=_set_metadata_uri,
            help="Where the cluster's metadata is.",
        ),
        click.Option(
            ["--json", "is_json"],
            is_flag=True,
            expose_value=False,
            callback=_set_json,
            help="One JSON object on stdout, for programs.",
        ),
        click.Option(
            ["--verbose", "is_verbose"],
            is_flag=True,
            expose_value=False,
            callback=_set_verbose,
            help="Stack traces and more progress.",
        ),
        click.Option(
            ["--log-format"],
            type=click.Choice(LOG_FORMATS),
            expose_value=False,
            callback=_set_log_format,
            help="Form of the log on stderr.",
        ),
    ]


def _set_metadata_uri(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value:
        _change_settings(ctx, metadata_uri=value)


def _set_json(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        _change_settings(ctx, output=replace(ctx.obj.output, is_json=True))


def _set_verbose(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        _change_settings(ctx, is_verbose=True)


def _set_log_format(ctx: click.Context, _: click.Parameter, value: LogFormat | None) -> None:
    if value:
        _change_settings(ctx, log_format=value)
        _log_in(value)


def _log_in(log_format: LogFormat) -> None:
    """Log warnings of a command as JSON; as text they go to stderr anyway."""
    if log_format == "json":
        start_logging(log_format, logging.WARNING)


def _change_settings(ctx: click.Context, **changes: Any) -> None:
    if isinstance(ctx.obj, Settings):  # not so while a shell completes a line
        ctx.obj = replace(ctx.obj, **changes)


def _print_version(ctx: click.Context, _: click.Parameter, is_asked_for: bool) -> None:
    if is_asked_for and not ctx.resilient_parsing:
        click.echo(f"spark-bookkeeper {spark_bookkeeper.__version__}")
        ctx.exit()


@click.group(
    cls=_Nouns,
    name="spark-bookkeeper",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: `spark-bookkeeper demo` shows what this is. On a cluster of yours: "
    "spark-bookkeeper --metadata-uri zk://zk1:2181/ledgers ledger list",
)
@click.option(
    "--metadata-uri",
    envvar=METADATA_URI_VARIABLE,
    show_envvar=True,
    metavar="URI",
    help="Where the cluster's metadata is, for example zk://zk1:2181,zk2:2181/ledgers.",
)
@click.option("--json", "is_json", is_flag=True, help="One JSON object on stdout, for programs.")
@click.option("--verbose", "is_verbose", is_flag=True, help="Stack traces and more progress.")
@click.option(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    default="text",
    show_default=True,
    envvar=LOG_FORMAT_VARIABLE,
    show_envvar=True,
    help="Form of the log on stderr: for people, or JSON with ledger, bookie and job.",
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version)
@click.pass_context
def root(
    ctx: click.Context,
    metadata_uri: str | None,
    is_json: bool,
    is_verbose: bool,
    log_format: LogFormat,
) -> None:
    """Replicated, fenced, recoverable ledgers for Apache Spark."""
    output = Output(is_json, ctx.obj or ())
    ctx.obj = Settings(metadata_uri, output, is_verbose, log_format=log_format)
    _log_in(log_format)


# Click suggests similar names from this dict; ``_Nouns.get_command`` finds the commands.
root.commands.update(dict.fromkeys(NOUNS, root))
refuse_empty(root)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code; show stack traces only with ``--verbose``."""
    open_closed_streams()
    print_what_can_be_printed()
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code.

    A command returns ``None`` or an exit code. Errors become one message on stderr, and with
    ``--json`` also an object on stdout.
    """
    return guarded(
        lambda: root.main(arguments, "spark-bookkeeper", standalone_mode=False, obj=arguments),
        arguments,
    )


def guarded(command: Callable[[], object], arguments: Sequence[str]) -> int:
    """Run a click command that does not exit by itself; return the exit code."""
    facts: Mapping[str, Any] = {}
    try:
        with termination_interrupts():
            code = command()
        return code if isinstance(code, int) else EXIT_DONE
    except click.ClickException as error:
        error.show(said := StringIO())
        click.echo(without_passwords(said.getvalue()), nl=False, err=True)
        message = without_passwords(error.format_message())
        is_no = isinstance(error, NotConfirmedError)
        exit_code = EXIT_LEFT_UNDONE if is_no else EXIT_NOTHING_CHANGED
        condition = "BOOKKEEPER_NOT_CONFIRMED" if is_no else InvalidArgumentError.condition
    except (click.Abort, KeyboardInterrupt):
        if is_first_to_say():
            click.echo(INTERRUPTED, err=True)
        return EXIT_LEFT_UNDONE
    except BookKeeperError as error:
        message, facts = _show(error, arguments), error.facts
        exit_code, condition = exit_code_of(error), error.condition
    except SystemExit:
        # Click exits if the reader of our output has ended (`... | head`). That is no error; stdout
        # is redirected so that the interpreter's flush at its exit stays silent.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_CLOSED_PIPE
    except Exception as error:  # noqa: BLE001 - the last handler before a person
        message = _show(error, arguments)
        exit_code, condition = EXIT_LEFT_UNDONE, BookKeeperError.condition
    if "--json" in arguments:
        simple = {k: v for k, v in facts.items() if isinstance(v, str | int)}
        with suppress(OSError):  # if the output cannot be written, that was the error
            Output().json({"error": {"code": condition, "message": message, "facts": simple}})
    return exit_code


def _show(error: Exception, arguments: Sequence[str]) -> str:
    """Print the error of a command line, and return its message."""
    if is_verbose := "--verbose" in arguments:
        traceback.print_exception(type(error), error, error.__traceback__)
    if isinstance(error, BookKeeperError):
        message = in_commands(error.message)
    elif isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
        # Errors of bookies are translated where they occur, so this one is from our output.
        message = (
            "the output cannot be written: no space left where it goes. That is no bookie; what "
            "was asked for may be done"
        )
    else:
        message = f"{type(error).__name__}: {without_passwords(str(error))}"
    click.echo(f"Error: {plain(without_passwords(pasteable(message, arguments)))}", err=True)
    if not is_verbose:
        click.echo("(--verbose shows where it happened)", err=True)
    return message
