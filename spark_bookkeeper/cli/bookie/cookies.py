"""``spark-bookkeeper bookie cookie get | generate | create | delete``: the cluster's bookies.

A cookie has a bookie's name, its root and the incarnation of its partition. It is written when a
partition is formatted; these verbs are for a cookie that was lost.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from spark_bookkeeper.agent.cookies import (
    check_forgotten_by_all,
    forget_bookie,
    generate_cookie,
    restore_cookie,
)
from spark_bookkeeper.cli.bookie.partition import id_option, known_partition, root_option
from spark_bookkeeper.cli.shell.cluster_options import Access, access_options, connected, looking
from spark_bookkeeper.cli.shell.prompt import confirm
from spark_bookkeeper.cli.shell.settings import EXIT_DONE, Settings
from spark_bookkeeper.cli.shell.work import PLAN, YES, Work, work_options
from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.metadata.cookie_text import encode_cookie
from spark_bookkeeper.metadata.store import Cookie
from spark_bookkeeper.protocol.ids import BookieId, parse_bookie_id
from spark_bookkeeper.replication.recent_jobs import note_deletion


@click.group(name="cookie", epilog="Example: spark-bookkeeper bookie cookie get 10.0.0.3:3181")
def cookie() -> None:
    """What the cluster knows a bookie by, also while it is down."""


@cookie.command(epilog="Example: spark-bookkeeper bookie cookie get 10.0.0.3:3181 --json")
@click.argument("bookie_id", metavar="BOOKIE")
@access_options
@click.pass_obj
def get(settings: Settings, access: Access, bookie_id: str) -> int:
    """Show the cookie of BOOKIE: its storage, incarnation and cluster."""
    name = parse_bookie_id(bookie_id)
    with looking(settings, access) as bk:
        found = bk.context.store.read_cookie(name)
    if found is None:
        raise InvalidArgumentError(
            f"bookie {name} has no cookie; `spark-bookkeeper bookie list` shows the bookies. Where "
            "it was lost and the storage is whole: `spark-bookkeeper bookie cookie create "
            f"--bookie-id {name} --root URI` writes it again"
        )
    facts = _facts(found.value)
    settings.output.result(
        facts,
        lambda: settings.output.table(["what", "value"], [[k, str(v)] for k, v in facts.items()]),
    )
    return EXIT_DONE


@cookie.command(
    epilog="Example: spark-bookkeeper bookie cookie generate --bookie-id 10.0.0.3:3181 "
    "--root /srv/bookie --output cookie.txt"
)
@id_option
@root_option
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Also write it to this new file, as Apache BookKeeper's cookie_create reads it.",
)
@click.option("--store", is_flag=True, help="Also write it to the cluster, as `create` does.")
@click.option("--yes", is_flag=True, help="Do not ask, with --store.")
@access_options
@click.pass_obj
def generate(
    settings: Settings,
    access: Access,
    bookie_id: str,
    root: str,
    output: Path | None,
    store: bool,
    yes: bool,
) -> int:
    """Make a lost cookie again from the bookie's storage, and show it.

    Without --store nothing is changed in the cluster. Refused where `create` would be.
    """
    name = parse_bookie_id(bookie_id)
    with known_partition(settings, access, root) as (metadata, partition):
        made, is_there = generate_cookie(metadata, partition, name)
        if output is not None:
            _write(made, output)
        if store and not is_there:
            if not yes:
                _ask(settings, partition.uri, made)
            made, is_there = restore_cookie(metadata, partition, name), True

    def show() -> None:
        settings.output.table(["what", "value"], [[k, str(v)] for k, v in _facts(made).items()])
        if is_there:
            settings.output.say(f"the cluster has this cookie; {_started(name, root)}")
        else:
            settings.output.say(
                "the cluster has no cookie of this bookie; --store writes it, and so does: "
                "spark-bookkeeper bookie cookie create "
                f"--bookie-id {name} --root {shlex.quote(root)}"
            )

    settings.output.result({**_facts(made), "is_stored": is_there}, show)
    return EXIT_DONE


@cookie.command(
    epilog="Example: spark-bookkeeper bookie cookie create --bookie-id 10.0.0.3:3181 "
    "--root /srv/bookie"
)
@id_option
@root_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@access_options
@click.pass_obj
def create(settings: Settings, access: Access, bookie_id: str, root: str, yes: bool) -> int:
    """Write a lost cookie again, from what the bookie's storage says that it is.

    Refused unless the storage is the one that the ledgers mean, or none counts on the bookie.
    """
    name = parse_bookie_id(bookie_id)
    with known_partition(settings, access, root) as (metadata, partition):
        written, is_there = generate_cookie(metadata, partition, name)
        if not is_there:
            if not yes:
                _ask(settings, partition.uri, written)
            written = restore_cookie(metadata, partition, name)
    settings.output.result(
        _facts(written),
        lambda: settings.output.say(
            f"the cookie of bookie {name} names {written.root_uri}, incarnation "
            f"{written.incarnation}; {_started(name, root)}"
        ),
    )
    return EXIT_DONE


@cookie.command(epilog="Example: spark-bookkeeper bookie cookie delete 10.0.0.3:3181")
@click.argument("bookie_id", metavar="BOOKIE")
@click.option(
    "--even-if-unreadable",
    is_flag=True,
    help="Also while ledgers are UNREADABLE, any of which may count on it.",
)
@work_options(dry_run=PLAN, yes=YES, reports=False)
def delete(work: Work, bookie_id: str, even_if_unreadable: bool) -> int:
    """Make the cluster forget BOOKIE, which is down and which no ledger counts on."""
    settings, name = work.settings, parse_bookie_id(bookie_id)
    with connected(settings, work.access) as bk:
        store = bk.context.store
        if work.dry_run or not work.yes:  # refuse before asking
            with settings.output.progress():
                check_forgotten_by_all(store, name, even_if_unreadable=even_if_unreadable)
        if not work.dry_run:
            if not work.yes:
                confirm(f"Delete the cookie of bookie {name}?")
            with settings.output.progress():
                forget_bookie(store, name, even_if_unreadable=even_if_unreadable)
            note_deletion(bk.context, "delete_cookie", f"bookie {name}")
    settings.output.result(
        {"bookie_id": name, "deleted": not work.dry_run},
        lambda: settings.output.say(
            "no ledger counts on that bookie; nothing was changed"
            if work.dry_run
            else f"the cookie of {name} is deleted; the cluster forgot that bookie"
        ),
    )
    return EXIT_DONE


def _ask(settings: Settings, root_uri: str, made: Cookie) -> None:
    """Ask whether to write a cookie that has passed all checks."""
    settings.output.note(
        f"{root_uri} is bookie {made.bookie_id}, incarnation {made.incarnation}. A copy or backup "
        "of a bookie's storage looks the same, and lacks what was acknowledged since"
    )
    confirm(f"Is this the storage that bookie {made.bookie_id} used last?")


def _write(made: Cookie, output: Path) -> None:
    try:
        with output.open("xb") as file:
            file.write(encode_cookie(made))
    except OSError as error:
        raise InvalidArgumentError(
            f"--output {output} cannot be written: {error.strerror}; name a file that is not "
            "there, in a directory that is. Nothing was changed"
        ) from error


def _started(name: BookieId, root: str) -> str:
    """Return the next step once a bookie has its cookie."""
    return (
        "an agent that runs goes on by itself; otherwise start it: spark-bookkeeper bookie start "
        f"--bookie-id {name} --root {shlex.quote(root)}"
    )


def _facts(found: Cookie) -> dict[str, Any]:
    return {
        "bookie_id": found.bookie_id,
        "root_uri": found.root_uri,
        "incarnation": found.incarnation,
        "instance_id": found.instance_id,
    }
