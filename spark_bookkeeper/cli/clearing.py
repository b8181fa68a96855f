"""``spark-bookkeeper cluster format | nuke``: remove a cluster's metadata."""

from __future__ import annotations

import click

from spark_bookkeeper.agent.clearing import (
    ClusterContents,
    check_clearable,
    clear_cluster,
    contents_of,
)
from spark_bookkeeper.cli.shell.cluster_options import connected
from spark_bookkeeper.cli.shell.prompt import confirm
from spark_bookkeeper.cli.shell.settings import EXIT_DONE, Settings
from spark_bookkeeper.cli.shell.work import PLAN, YES, Work, work_options
from spark_bookkeeper.replication.recent_jobs import note_deletion

_instance = click.option(
    "--instance-id", required=True, metavar="ID", help="Of this cluster; `cluster info` shows it."
)
_force = click.option("--force", is_flag=True, help="Also while bookies or writers are alive.")


@click.command(
    name="format",
    epilog="Example: spark-bookkeeper --metadata-uri zk://zk1:2181/ledgers cluster format "
    "--instance-id 3f2b8a6e-7c1d-4e5f-9a0b-1c2d3e4f5a6b",
)
@_instance
@_force
@work_options(dry_run=PLAN, yes=YES, reports=False)
def format_(work: Work, instance_id: str, force: bool) -> int:
    """Remove ALL ledgers, cookies and tasks from the metadata; a new, empty cluster begins there.

    Nothing can read the ledgers afterwards. The bookies' partitions are not touched: what is in
    them is garbage, and is removed by hand before they are formatted again.
    """
    return _clear(work, instance_id, begins_again=True, is_forced=force)


@click.command(
    epilog="Example: spark-bookkeeper --metadata-uri zk://zk1:2181/ledgers cluster nuke "
    "--instance-id 3f2b8a6e-7c1d-4e5f-9a0b-1c2d3e4f5a6b"
)
@_instance
@_force
@work_options(dry_run=PLAN, yes=YES, reports=False)
def nuke(work: Work, instance_id: str, force: bool) -> int:
    """Remove ALL metadata of the cluster, and the cluster itself.

    Nothing can read the ledgers afterwards. The bookies' partitions are not touched: what is in
    them is garbage, and is removed by hand.
    """
    return _clear(work, instance_id, begins_again=False, is_forced=force)


def _clear(work: Work, instance_id: str, *, begins_again: bool, is_forced: bool) -> int:
    settings, made = work.settings, None
    uri = settings.require_metadata_uri()
    with connected(settings, work.access) as bk:
        store = bk.context.store
        with settings.output.progress():
            contents = contents_of(store)
        _show(settings, uri, contents)
        check_clearable(contents, instance_id, is_forced=is_forced)
        if not work.dry_run:
            if not work.yes:
                confirm("Remove it for ever?")
            with settings.output.progress():
                made = clear_cluster(
                    store, instance_id, begins_again=begins_again, is_forced=is_forced
                )
        if made is not None:  # a removed cluster has nowhere to store the note
            about = f"cluster {contents.instance_id}: {contents.ledgers:,} ledgers"
            note_deletion(bk.context, "format_cluster", about)
    settings.output.result(
        {
            "metadata_uri": uri,
            "dry_run": work.dry_run,
            "removed_instance_id": contents.instance_id,
            "instance_id": made,
            "ledgers": contents.ledgers,
            "length_bytes": contents.length_bytes,
            "partitions_left": [
                {"bookie_id": cookie.bookie_id, "root_uri": cookie.root_uri}
                for cookie in contents.cookies
            ],
        },
        lambda: settings.output.say(
            "nothing was changed"
            if work.dry_run
            else f"the cluster at {uri} is removed"
            if made is None
            else f"cluster {made} begins at {uri}, empty"
        ),
    )
    if contents.cookies and not work.dry_run:
        settings.output.note(
            "the partitions named above hold data of the former cluster; empty them by hand before "
            "`spark-bookkeeper bookie start` makes new bookies of them"
        )
    return EXIT_DONE


def _show(settings: Settings, uri: str, contents: ClusterContents) -> None:
    note = settings.output.note
    note(
        f"cluster {contents.instance_id or '(without a name)'} at {uri}: {contents.ledgers:,} "
        f"ledgers of {contents.length_bytes:,} bytes, {contents.tasks:,} of them published as "
        f"under-replicated, {contents.writers:,} being written, {len(contents.cookies)} cookies, "
        f"{len(contents.alive)} bookies alive"
    )
    for cookie in contents.cookies:
        note(f"  bookie {cookie.bookie_id}: its data stays at {cookie.root_uri}")
