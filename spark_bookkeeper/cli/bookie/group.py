"""``spark-bookkeeper bookie``: storage partitions and their agents."""

from __future__ import annotations

import shlex

import click

from spark_bookkeeper.agent.dependents import dependents_of
from spark_bookkeeper.agent.formatting import check_formattable, format_bookie
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.cli.bookie.cluster_view import list_, recover, show
from spark_bookkeeper.cli.bookie.cookies import cookie
from spark_bookkeeper.cli.bookie.decommission import decommission
from spark_bookkeeper.cli.bookie.partition import (
    id_option,
    marker_of,
    open_partition,
    root_option,
)
from spark_bookkeeper.cli.bookie.readonly import set_readonly_, set_writable_
from spark_bookkeeper.cli.bookie.rebalance import drain, rebalance
from spark_bookkeeper.cli.bookie.refill import refill
from spark_bookkeeper.cli.bookie.shared import what_is_shared
from spark_bookkeeper.cli.bookie.space import space
from spark_bookkeeper.cli.bookie.start import start
from spark_bookkeeper.cli.bookie.upkeep import compact, gc, scrub
from spark_bookkeeper.cli.shell.cluster_options import Access, access_options, connected
from spark_bookkeeper.cli.shell.prompt import confirm
from spark_bookkeeper.cli.shell.settings import EXIT_DONE, EXIT_LEFT_UNDONE, Settings
from spark_bookkeeper.cli.shell.work import PLAN, YES, Work, work_options
from spark_bookkeeper.doctor.failure_domains import place_of
from spark_bookkeeper.errors import UnsuitableStorageError
from spark_bookkeeper.metadata.store import MetadataStore
from spark_bookkeeper.protocol.ids import BookieId, parse_bookie_id
from spark_bookkeeper.protocol.underreplication import REFILL
from spark_bookkeeper.replication.recent_jobs import note_deletion
from spark_bookkeeper.runtime.runtime import ThreadRuntime


@click.group(
    name="bookie",
    epilog="Example: spark-bookkeeper bookie verify s3://bucket/bookies/3",
)
def bookie() -> None:
    """Storage partitions and their agents."""


bookie.add_command(list_)
bookie.add_command(show)
bookie.add_command(space)
bookie.add_command(recover)
bookie.add_command(refill)
bookie.add_command(rebalance)
bookie.add_command(drain)
bookie.add_command(decommission)
bookie.add_command(cookie)
bookie.add_command(set_readonly_)
bookie.add_command(set_writable_)
bookie.add_command(gc)
bookie.add_command(compact)
bookie.add_command(scrub)
bookie.add_command(start)


@bookie.command(
    name="format",
    epilog="Example: spark-bookkeeper --metadata-uri zk://zk1:2181/ledgers bookie format "
    "--bookie-id 10.0.0.3:3181 --root /srv/bookie",
)
@id_option
@root_option
@click.option(
    "--replaced",
    is_flag=True,
    help="Its disk is lost for good and this is an empty one; `bookie refill` fills it again.",
)
@work_options(dry_run=PLAN, yes=YES, reports=False)
def format_(work: Work, bookie_id: str, root: str, replaced: bool) -> int:
    """Make a partition into a new, empty bookie; EVERYTHING in it is removed.

    Refused while the bookie may hold the last good copy of anything.
    """
    settings, access, name = work.settings, work.access, parse_bookie_id(bookie_id)
    partition = open_partition(root, access)
    try:
        with connected(settings, access) as bk:
            store = bk.context.store
            marker_of(partition)  # an unreadable partition is reported as such
            with settings.output.progress():
                if work.dry_run or not work.yes:  # refuse before asking
                    check_formattable(store, partition, name, is_replaced=replaced)
                what_goes = _what_goes(store, partition, name)
            settings.output.note(what_goes)
            place = place_of(partition, name, is_new=True)
            for warning in what_is_shared(access, store, {name: partition.uri}, seen={name: place}):
                settings.output.note(warning)
            if replaced and store.underreplication.is_enabled():
                settings.output.note(
                    "autorecovery is enabled: its workers copy to other bookies what `bookie "
                    "refill` would copy back here. `spark-bookkeeper autorecovery disable` keeps "
                    "them from it, and `spark-bookkeeper autorecovery enable` afterwards"
                )
            if replaced and not work.yes:
                settings.output.note(
                    f"from now on nothing believes the disk that bookie {name} had, also if it is "
                    "found again"
                )
            if work.dry_run:
                value = {"bookie_id": name, "dry_run": True, "would_go": what_goes}
                settings.output.result(value, lambda: settings.output.say("nothing was changed"))
                return EXIT_DONE
            if not work.yes:
                confirm(f"Remove all of it and format bookie {name}?")
            with settings.output.progress():
                marker = format_bookie(
                    store,
                    partition,
                    name,
                    token=bk.context.runtime.token,
                    is_replaced=replaced,
                    on_check=lambda check: settings.output.note(f"holds: {check}"),
                )
            note_deletion(bk.context, "format_bookie", f"bookie {name}: {what_goes}")
    finally:
        partition.close()
    settings.output.result(
        {
            "bookie_id": name,
            "root_uri": partition.uri,
            "incarnation": marker.incarnation,
            "instance_id": marker.instance_id,
        },
        lambda: settings.output.say(
            f"bookie {name} at {partition.uri} is formatted, incarnation {marker.incarnation}. "
            f"Start it: spark-bookkeeper bookie start --bookie-id {name} --root {shlex.quote(root)}"
            + (f"; then fill it: {REFILL.format(name)}" if replaced else "")
        ),
    )
    return EXIT_DONE


def _what_goes(store: MetadataStore, partition: Partition, name: BookieId) -> str:
    found, (count, size_bytes) = marker_of(partition), partition.ledgers()
    size = "unknown size" if size_bytes is None else f"{size_bytes:,} bytes"
    holds = f"bookie {found.bookie_id}, incarnation {found.incarnation}" if found else "no bookie"
    return (
        f"{partition.uri} holds {holds}, {count} ledger directories of {size}; "
        f"{len(dependents_of(store, name).ledger_ids)} ledgers of the cluster count on it"
    )


@bookie.command(epilog="Example: spark-bookkeeper bookie verify s3://bucket/bookies/3")
@click.argument("root")
@access_options
@click.pass_obj
def verify(settings: Settings, access: Access, root: str) -> int:
    """Check that a file system can be a bookie: conditional create, sync, read back, listing.

    Fencing rests on it. Nothing is left behind; a partition in use is not disturbed.
    """
    partition = open_partition(root, access)
    reason: str | None = None
    held: list[str] = []

    def show_check(check: str) -> None:
        held.append(check)
        settings.output.say(f"holds: {check}")

    try:
        marker = marker_of(partition)
        settings.output.note(f"probing {partition.uri} ...")
        try:
            partition.probe(ThreadRuntime().token, on_check=show_check)
        except UnsuitableStorageError as error:
            reason = error.message
        space = partition.space()
        in_the_way = [] if marker is not None else partition.in_the_way()
    finally:
        partition.close()
    free, total = space or (None, None)

    def show() -> None:
        if reason is not None:
            settings.output.say(f"{partition.uri} cannot be a bookie: {reason}")
        elif in_the_way:
            settings.output.say(
                f"{partition.uri} cannot be a bookie as it is, though its file system is fit: it "
                f"holds {', '.join(in_the_way[:5])}, and a new bookie is made in an empty directory"
            )
        else:
            settings.output.say(f"{partition.uri} can be a bookie")
        if marker is not None:
            settings.output.say(
                f"it is bookie {marker.bookie_id}, incarnation {marker.incarnation}, of cluster "
                f"{marker.instance_id}"
            )

    settings.output.result(
        {
            "root_uri": partition.uri,
            "is_suitable": reason is None,
            "reason": reason,
            "checks": held,
            "bookie_id": marker.bookie_id if marker else None,
            "incarnation": marker.incarnation if marker else None,
            "in_the_way": in_the_way,
            "free_bytes": free,
            "total_bytes": total,
        },
        show,
    )
    return EXIT_DONE if reason is None and not in_the_way else EXIT_LEFT_UNDONE
