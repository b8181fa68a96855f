"""``spark-bookkeeper local``: a lasting cluster on this machine, for experiments."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from spark_bookkeeper.cli.shell.output import gib
from spark_bookkeeper.cli.shell.parameters import WholeNumber
from spark_bookkeeper.cli.shell.settings import EXIT_DONE, METADATA_URI_VARIABLE, Settings
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.local_cluster.background import (
    LocalStatus,
    start_detached,
    status,
    stop_detached,
)


def _default_directory() -> Path:
    data = os.environ.get("XDG_DATA_HOME") or os.path.join("~", ".local", "share")
    return Path(data).expanduser() / "spark-bookkeeper" / "local"


_directory = click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=_default_directory,
    show_default="spark-bookkeeper/local in the user's data directory",
    help="Where the cluster keeps everything.",
)


@click.group(name="local", epilog="Example: spark-bookkeeper local start --bookies 6")
def local() -> None:
    """A cluster on this machine that stays, to play with: ZooKeeper and bookies."""


@local.command(epilog="Example: spark-bookkeeper local start --directory ~/ledgers --bookies 6")
@_directory
@click.option(
    "--bookies",
    type=WholeNumber(min=1, max=1000),
    default=4,
    show_default=True,
    help="How many bookies a new cluster gets.",
)
@click.pass_context
def start(context: click.Context, directory: Path, bookies: int) -> int:
    """Start a cluster in the background, or the one that the directory holds."""
    settings: Settings = context.obj
    before = status(directory)
    if not before.is_running:
        settings.output.note(f"starting ZooKeeper and the bookies in {before.directory} ...")
    after = start_detached(directory, bookies)
    is_asked_for = context.get_parameter_source("bookies") is ParameterSource.COMMANDLINE
    if is_asked_for and len(after.bookie_ids) != bookies:
        settings.output.note(
            f"--bookies {bookies} is for new clusters, and was ignored: this one has "
            f"{len(after.bookie_ids)} bookies already"
        )

    def show() -> None:
        settings.output.say(
            "the cluster runs already" if before.is_running else "the cluster serves"
        )
        _show(settings, after)
        settings.output.say(
            f"\nUse it from anywhere on this machine:\n"
            f"  export {METADATA_URI_VARIABLE}={after.metadata_uri}\n"
            "Stop it, keeping everything in it:\n"
            f"  spark-bookkeeper local stop --directory {_quoted(after.directory)}"
        )

    settings.output.result(_as_dict(after), show)
    return EXIT_DONE


@local.command(epilog="Example: spark-bookkeeper local stop")
@_directory
@click.pass_obj
def stop(settings: Settings, directory: Path) -> int:
    """Stop the cluster; what is in it stays for the next start."""
    was_running = stop_detached(directory)
    settings.output.result(
        {"directory": str(directory), "was_running": was_running, "is_running": False},
        lambda: settings.output.say(
            f"the cluster in {directory} is stopped; `spark-bookkeeper local start --directory "
            f"{_quoted(directory)}` starts it again with everything in it"
            if was_running
            else f"no cluster was running in {directory}"
        ),
    )
    return EXIT_DONE


@local.command(name="status", epilog="Example: spark-bookkeeper local status --json")
@_directory
@click.option("--uri", "wants_uri", is_flag=True, help="Print the metadata URI and nothing else.")
@click.pass_obj
def show_status(settings: Settings, directory: Path, wants_uri: bool) -> int:
    """Whether the cluster runs, where its metadata is, and which bookies are alive."""
    found = status(directory)
    if wants_uri and not settings.output.is_json:
        if not found.is_running:
            raise InvalidArgumentError(
                f"no cluster runs in {found.directory}; `spark-bookkeeper local start --directory "
                f"{_quoted(found.directory)}` starts one"
            )
        click.echo(found.metadata_uri)
        return EXIT_DONE
    settings.output.result(_as_dict(found), lambda: _show(settings, found))
    return EXIT_DONE


def _show(settings: Settings, found: LocalStatus) -> None:
    if found.problem:
        settings.output.note(found.problem)
    if not found.is_running:
        settings.output.say(
            f"no cluster runs in {found.directory}; `spark-bookkeeper local start --directory "
            f"{_quoted(found.directory)}` starts one"
        )
        return
    settings.output.table(
        ["what", "value"],
        [
            ["metadata URI", found.metadata_uri],
            ["directory", found.directory],
            ["process", found.pid],
            ["log", found.log_path],
        ],
    )
    settings.output.table(
        ["bookie", "state", "root", "free GiB", "total GiB"],
        [
            [row["bookie_id"], row["state"], row["root_uri"], *map(gib, (free, total))]
            for row in _bookies(found)
            for free, total in [(row["free_bytes"], row["total_bytes"])]
        ],
    )


def _as_dict(found: LocalStatus) -> dict[str, object]:
    return {
        "directory": str(found.directory),
        "is_running": found.is_running,
        "pid": found.pid,
        "metadata_uri": found.metadata_uri,
        "log": str(found.log_path),
        "problem": found.problem,
        "bookies": _bookies(found),
    }


def _bookies(found: LocalStatus) -> list[dict[str, Any]]:
    alive = {registration.bookie_id: registration for registration in found.registrations}
    rows: list[dict[str, Any]] = []
    for bookie_id in sorted({*alive, *found.bookie_ids}):
        registration = alive.get(bookie_id)
        state = "lost"
        if registration is not None:
            state = "readonly" if registration.is_readonly else "writable"
        rows.append(
            {
                "bookie_id": bookie_id,
                "state": state,
                "root_uri": registration.root_uri if registration else None,
                "free_bytes": registration.free_bytes if registration else None,
                "total_bytes": registration.total_bytes if registration else None,
            }
        )
    return rows


def _quoted(directory: Path) -> str:
    """Return a path as a shell needs it."""
    return shlex.quote(str(directory))
