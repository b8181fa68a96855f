"""``spark-bookkeeper cluster``: the cluster as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from spark_bookkeeper.cli.backup import backup, restore
from spark_bookkeeper.cli.clearing import format_, nuke
from spark_bookkeeper.cli.cluster_facts import look
from spark_bookkeeper.cli.cluster_page import render
from spark_bookkeeper.cli.shell.cluster_options import Access, access_options, looking, opened_store
from spark_bookkeeper.cli.shell.settings import EXIT_DONE, EXIT_LEFT_UNDONE, Settings
from spark_bookkeeper.cli.shell.work import MOST_ROWS
from spark_bookkeeper.client.views import UNREADABLE, bookie_rows, ledger_rows
from spark_bookkeeper.config import GIB
from spark_bookkeeper.doctor.diagnosis import Diagnoses
from spark_bookkeeper.doctor.examination import cluster_diagnoses, places_of
from spark_bookkeeper.errors import InvalidArgumentError, MetadataFormatError
from spark_bookkeeper.replication.report import counted
from spark_bookkeeper.runtime.runtime import ThreadRuntime

_WORDS: Final = {"ok": "healthy", "warning": "warning", "problem": "not healthy"}


@click.group(
    name="cluster",
    epilog="Example: spark-bookkeeper --metadata-uri zk://zk1:2181/ledgers cluster info",
)
def cluster() -> None:
    """The cluster as a whole."""


cluster.add_command(backup)
cluster.add_command(restore)


@cluster.command(
    epilog="Example: spark-bookkeeper --metadata-uri zk://zk1:2181/ledgers cluster init"
)
@access_options
@click.pass_obj
def init(settings: Settings, access: Access) -> int:
    """Make the metadata of a new, empty cluster. Refused where there is one already."""
    uri = settings.require_metadata_uri()
    with opened_store(settings, access, ThreadRuntime()) as store:
        instance_id = store.initialize_cluster()
    settings.output.result(
        {"metadata_uri": uri, "instance_id": instance_id},
        lambda: settings.output.say(
            f"cluster {instance_id} is made at {uri}. Start its first bookie: spark-bookkeeper "
            "bookie start --bookie-id HOST:3181 --root DIRECTORY"
        ),
    )
    return EXIT_DONE


cluster.add_command(format_)
cluster.add_command(nuke)


@cluster.command(epilog="Example: spark-bookkeeper cluster info --json")
@access_options
@click.pass_obj
def info(settings: Settings, access: Access) -> int:
    """What the cluster has: bookies by state, ledgers by state, entries, bytes, space."""
    with looking(settings, access) as bk:
        try:
            instance_id: str | None = bk.context.store.instance_id()
        except MetadataFormatError as error:
            settings.output.note(error.message)
            instance_id = None
        bookies = list(bookie_rows(bk.context))
        ledgers = list(ledger_rows(bk.context))
        lost = {row["bookie_id"] for row in bookies if row["state"] == "lost"}
        checks = {f"bookie {bookie}" for bookie in lost}
        looks = cluster_diagnoses(bk.context, metadata_only=True) if lost else ()
        unwell = [each for each in looks if each.check in checks]
        sized = {row["bookie_id"]: row for row in bookies if row["total_bytes"]}
        places = places_of(bk.context, {name: row["root_uri"] for name, row in sized.items()})
    disks = {place.disk or name: sized[name] for name, place in places.items()}.values()
    states = Counter(row["state"] for row in bookies)
    kinds = Counter(row["state"] for row in ledgers)
    value: dict[str, Any] = {
        "metadata_uri": settings.metadata_uri,
        "instance_id": instance_id,
        "bookies": {name: states[name] for name in ("writable", "readonly", "lost")},
        "ledgers": {name: kinds[name] for name in ("OPEN", "IN_RECOVERY", "CLOSED", UNREADABLE)},
        "ledgers_naming_lost_bookies": sum(bool(lost & set(row["bookies"])) for row in ledgers),
        "entries": sum((row["last_entry_id"] or 0) + 1 for row in ledgers if _is_closed(row)),
        "length_bytes": sum(row["length_bytes"] for row in ledgers if _is_closed(row)),
        "free_bytes": (free := sum(row["free_bytes"] or 0 for row in disks)),
        "total_bytes": (total := sum(row["total_bytes"] for row in disks)),
        "free_inodes": (free_inodes := sum(row["free_inodes"] or 0 for row in disks)),
        "total_inodes": (inodes := sum(row["total_inodes"] or 0 for row in disks)),
    }

    def show() -> None:
        rows: list[list[object]] = [
            ["metadata URI", value["metadata_uri"]],
            ["instance id", instance_id],
            ["bookies", ", ".join(f"{n} {state}" for state, n in value["bookies"].items())],
            ["ledgers", ", ".join(f"{n} {state}" for state, n in value["ledgers"].items())],
            ["ledgers naming lost bookies", value["ledgers_naming_lost_bookies"]],
            ["entries of closed ledgers", f"{value['entries']:,}"],
            ["bytes of closed ledgers", f"{value['length_bytes']:,} before replication"],
            ["free space", f"{free / GIB:,.1f} of {total / GIB:,.1f} GiB, shared disks once"],
            ["free inodes", f"{free_inodes:,} of {inodes:,}, shared disks once"],
        ]
        settings.output.table(["what", "value"], [[row[0], str(row[1])] for row in rows])
        for each in unwell:
            settings.output.say(f"{each.check}: {each.detail}; {each.remedy}")
        if kinds[UNREADABLE]:
            settings.output.say(
                f"of {counted(kinds[UNREADABLE], 'ledger')} nothing is known, as their "
                "metadata cannot be decoded; `spark-bookkeeper doctor` names them and says why"
            )

    settings.output.result(value, show)
    return EXIT_DONE


@cluster.command(epilog="Example: spark-bookkeeper cluster health || mail -s bookies ops@here")
@access_options
@click.pass_obj
def health(settings: Settings, access: Access) -> int:
    """Is the cluster well, as its metadata tell it? Quick, for monitoring; asks no bookie.

    Lost and read-only bookies, ledgers that count on them or have too few live copies, recoveries
    that did not end, autorecovery, clocks. The first word is `healthy`; `warning`, where something
    is to be kept in mind, as a bookie that takes no new data; or `not healthy`. Exit code 0:
    nothing is a problem; 1: something is; 2: the cluster cannot be reached. `doctor` looks at the
    storage of the bookies as well.
    """
    with looking(settings, access) as bk:
        found = Diagnoses(tuple(cluster_diagnoses(bk.context, metadata_only=True)))
    settings.output.result(
        found.to_dict(), lambda: settings.output.say(f"{_WORDS[found.verdict]}: {found}")
    )
    return EXIT_DONE if found else EXIT_LEFT_UNDONE


@cluster.command(epilog="Example: spark-bookkeeper cluster report --html cluster.html")
@click.option(
    "--html",
    "path",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The file that the page is written to.",
)
@access_options
@click.pass_obj
def report(settings: Settings, access: Access, path: Path) -> int:
    """Show the cluster as one page of HTML, which needs no network.

    What needs care comes first, then bookies, ledgers, and which bookie holds which fragment.
    """
    with looking(settings, access, "looking at the cluster") as bk:
        text = render(look(bk))
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidArgumentError(
            f"--html {path} cannot be written: {error.strerror or error}; name a file in a "
            "directory that is there and may be written. Nothing was changed"
        ) from error
    settings.output.result({"file": str(path)}, lambda: settings.output.say(f"{path} is written"))
    return EXIT_DONE


@cluster.command(
    name="safe-to-lose", epilog="Example: spark-bookkeeper cluster safe-to-lose 10.0.0.3:3181"
)
@click.argument("bookie_ids", metavar="BOOKIE...", nargs=-1, required=True)
@access_options
@click.pass_obj
def safe_to_lose(settings: Settings, access: Access, bookie_ids: Sequence[str]) -> int:
    """Which ledgers would have fewer than Qa live copies of something without these bookies?

    Asks the metadata only. Exit code 1 when there are any.
    """
    with looking(settings, access) as bk:
        found = bk.safe_to_lose(list(bookie_ids))

    def show() -> None:
        if found.at_risk:
            settings.output.table(
                ["ledger", "entry ids from", "live copies", "copies without", "Qa"],
                [
                    [
                        each.ledger_id,
                        each.first_entry_id,
                        each.live_copies,
                        each.copies_without,
                        each.ack_quorum_size,
                    ]
                    for each in found.at_risk[:MOST_ROWS]
                ],
            )
        settings.output.say(str(found))

    settings.output.result(found.to_dict(), show)
    return EXIT_DONE if found.is_safe else EXIT_LEFT_UNDONE


def _is_closed(row: dict[str, Any]) -> bool:
    return bool(row["state"] == "CLOSED")
