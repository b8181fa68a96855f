"""``spark-bookkeeper cluster format | nuke``: the end of a cluster's metadata."""

from __future__ import annotations

import click

from spark_bookkeeper.cli.shell.asking import confirm
from spark_bookkeeper.cli.shell.cluster_options import Access, access_options, opened_store
from spark_bookkeeper.cli.shell.settings import EXIT_DONE, Settings
from spark_bookkeeper.cluster.clearing import (
    ClusterContents,
    check_clearable,
    clear_cluster,
    contents_of,
)
from spark_bookkeeper.runtime.runtime import ThreadRuntime

_instance = click.option(
    "--instance-id", required=True, metavar="ID", help="Of this cluster; `cluster info` shows it."
)
_force = click.option("--force", is_flag=True, help="Also while bookies or writers are alive.")
_yes = click.option("--yes", is_flag=True, help="Do not ask.")


@click.command(
    name="format",
    epilog="Example: spark-bookkeeper --metadata-uri zk://zk1:2181/ledgers cluster format "
    "--instance-id 3f2b8a6e-7c1d-4e5f-9a0b-1c2d3e4f5a6b",
)
@_instance
@_force
@_yes
@access_options
@click.pass_obj
def format_(settings: Settings, access: Access, instance_id: str, force: bool, yes: bool) -> int:
    """Remove ALL ledgers, cookies and tasks from the metadata; a new, empty cluster begins there.

    Nothing can read the ledgers afterwards. The bookies' partitions are not touched: what is in
    them is garbage, and is removed by hand before they are formatted again.
    """
    return _clear(settings, access, instance_id, begins_again=True, is_forced=force, yes=yes)


@click.command(
    epilog="Example: spark-bookkeeper --metadata-uri zk://zk1:2181/ledgers cluster nuke "
    "--instance-id 3f2b8a6e-7c1d-4e5f-9a0b-1c2d3e4f5a6b"
)
@_instance
@_force
@_yes
@access_options
@click.pass_obj
def nuke(settings: Settings, access: Access, instance_id: str, force: bool, yes: bool) -> int:
    """Remove ALL metadata of the cluster, and the cluster itself.

    Nothing can read the ledgers afterwards. The bookies' partitions are not touched: what is in
    them is garbage, and is removed by hand.
    """
    return _clear(settings, access, instance_id, begins_again=False, is_forced=force, yes=yes)


def _clear(
    settings: Settings,
    access: Access,
    instance_id: str,
    *,
    begins_again: bool,
    is_forced: bool,
    yes: bool,
) -> int:
    uri = settings.require_metadata_uri()
    with opened_store(settings, access, ThreadRuntime()) as store:
        contents = contents_of(store)
        _show(settings, uri, contents)
        check_clearable(contents, instance_id, is_forced=is_forced)
        if not yes:
            confirm("Remove it for ever?")
        made = clear_cluster(store, instance_id, begins_again=begins_again, is_forced=is_forced)
    settings.output.result(
        {
            "metadata_uri": uri,
            "removed_instance_id": contents.instance_id,
            "instance_id": made,
            "ledgers": contents.ledgers,
            "partitions_left": [
                {"bookie_id": cookie.bookie_id, "root_uri": cookie.root_uri}
                for cookie in contents.cookies
            ],
        },
        lambda: settings.output.say(
            f"the cluster at {uri} is removed"
            if made is None
            else f"cluster {made} begins at {uri}, empty"
        ),
    )
    if contents.cookies:
        settings.output.note(
            "the partitions named above hold data of the former cluster; empty them by hand before "
            "`spark-bookkeeper bookie start` makes new bookies of them"
        )
    return EXIT_DONE


def _show(settings: Settings, uri: str, contents: ClusterContents) -> None:
    note = settings.output.note
    note(
        f"cluster {contents.instance_id or '(without a name)'} at {uri}: {contents.ledgers:,} "
        f"ledgers, {contents.tasks:,} of them published as under-replicated, "
        f"{contents.writers:,} being written, {len(contents.cookies)} cookies, "
        f"{len(contents.alive)} bookies alive"
    )
    for cookie in contents.cookies:
        note(f"  bookie {cookie.bookie_id}: its data stays at {cookie.root_uri}")
