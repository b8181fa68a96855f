"""``spark-bookkeeper ledger``: create, list, show, and the verbs of the sibling modules."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Final

import click
import pyarrow as pa

from spark_bookkeeper.cli.ledger.archive import archive
from spark_bookkeeper.cli.ledger.creation import create_ledger, new_ledger_options
from spark_bookkeeper.cli.ledger.data import append, read, schema_of_file
from spark_bookkeeper.cli.ledger.deletion import delete, fence
from spark_bookkeeper.cli.ledger.owners import delete_orphans, history, orphans
from spark_bookkeeper.cli.ledger.picture import draw_fragments, legend
from spark_bookkeeper.cli.ledger.work import check, diff, recover, repair
from spark_bookkeeper.cli.shell.cluster_options import Access, access_options, connected, looking
from spark_bookkeeper.cli.shell.output import number, text_of
from spark_bookkeeper.cli.shell.parameters import LedgerType
from spark_bookkeeper.cli.shell.settings import EXIT_DONE, Settings
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.ledger import schema_of
from spark_bookkeeper.client.ledger_info import LedgerInfo
from spark_bookkeeper.client.lifecycle import RESERVED_PREFIX
from spark_bookkeeper.client.presence import GONE, age
from spark_bookkeeper.client.views import SLOTS, UNREADABLE, ledger_rows, moment, moment_text
from spark_bookkeeper.protocol.accepted_loss import accepted_loss_of
from spark_bookkeeper.protocol.ids import BookieId, LedgerId, parse_ledger_id
from spark_bookkeeper.protocol.metadata import LedgerMetadata, LedgerState
from spark_bookkeeper.session.arguments import known_bookies

MOST_SLOTS: Final = 200
"""The most slots that a person sees; programs get all."""


@click.group(name="ledger", epilog="Example: spark-bookkeeper ledger list --state OPEN")
def ledger() -> None:
    """Create, list, show, read, append, fence, recover, check, delete ledgers."""


ledger.add_command(append)
ledger.add_command(read)
ledger.add_command(recover)
ledger.add_command(fence)
ledger.add_command(delete)
ledger.add_command(check)
ledger.add_command(diff)
ledger.add_command(history)
ledger.add_command(orphans)
ledger.add_command(delete_orphans)
ledger.add_command(repair)
ledger.add_command(archive)


@ledger.command(
    epilog="Example: spark-bookkeeper ledger create --ensemble-size 4 --name flights --leave-open"
)
@new_ledger_options
@click.option("--schema-of", metavar="FILE", help="Rows like those of a Parquet or Arrow file.")
@click.option("--leave-open", is_flag=True, help="Do not close it: as after a writer's crash.")
@access_options
@click.pass_obj
def create(
    settings: Settings,
    access: Access,
    wish: Mapping[str, Any],
    schema_of: str | None,
    leave_open: bool,
) -> int:
    """Create an empty ledger, for its labels, its placement, or to try.

    A ledger has one writer for all its life, and that is the process that created it. So this
    one is closed at once; `ledger append` makes a ledger with something in it.
    """
    schema = None if schema_of is None else schema_of_file(schema_of)
    with connected(settings, access) as bk:
        writer = create_ledger(bk, wish, schema)
        if leave_open:
            writer.abandon()
        else:
            writer.close()
        info = bk.ledger(writer.ledger_id)
        value = ledger_object(info)
    ensemble = ", ".join(info.fragments[-1].ensemble)
    settings.output.result(
        value,
        lambda: settings.output.say(f"ledger {info.ledger_id} is {info.state}, on {ensemble}"),
    )
    return EXIT_DONE


@ledger.command(name="list", epilog="Example: spark-bookkeeper ledger list --state OPEN --json")
@click.option(
    "--state",
    type=click.Choice([*LedgerState.__members__, UNREADABLE], case_sensitive=False),
    help="Only these.",
)
@click.option("--bookie", metavar="HOST:PORT", help="Only those with a fragment on this bookie.")
@click.option("--name", help="Only those with this label.")
@click.option(
    "--ask-bookies",
    is_flag=True,
    help="Also how far those have come that are not closed; it takes a while if there are many.",
)
@access_options
@click.pass_obj
def list_(
    settings: Settings,
    access: Access,
    state: str | None,
    bookie: str | None,
    name: str | None,
    ask_bookies: bool,
) -> int:
    """List ledgers: state, sizes, end; of those that are not closed also whether a writer lives."""
    with looking(settings, access) as bk:
        rows = [
            {**row, "custom_metadata": dict(row["custom_metadata"])}
            for row in ledger_rows(bk.context, ask_bookies=ask_bookies)
        ]
        if bookie is not None and not any(bookie in row["bookies"] for row in rows):
            known_bookies(bk.context, [bookie])  # a mistyped id must not give an empty list
        now_ms = bk.context.runtime.wall_ms()
    rows = [
        row
        for row in rows
        if (state is None or row["state"] == state.upper())
        and (bookie is None or bookie in row["bookies"])
        and (name is None or row["name"] == name)
    ]

    def show() -> None:
        if not rows:
            settings.output.say("no ledgers")
            return
        front = ["confirmed", "newest entry"] if ask_bookies else []
        settings.output.table(
            [
                *("ledger", "name", "state", "E/Qw/Qa", "fragments", "last entry", "bytes"),
                *("created", *front, "writer"),
            ],
            [
                [
                    row["ledger_id"],
                    text_of(row["custom_metadata"].get("name")),
                    row["state"],
                    "{ensemble_size}/{write_quorum_size}/{ack_quorum_size}".format(**row),
                    row["fragments"],
                    row["last_entry_id"],
                    number(row["length_bytes"]),
                    None if row["ctime"] is None else f"{row['ctime']:%Y-%m-%d %H:%M:%S}",
                    *(_front(row, now_ms) if ask_bookies else ()),
                    _writer_cell(row),
                ]
                for row in rows
            ],
        )

    settings.output.result({"ledgers": rows}, show)
    return EXIT_DONE


@ledger.command(epilog="Example: spark-bookkeeper ledger show 7 --slots")
@click.argument("ledger_id", type=LedgerType(), metavar="LEDGER")
@click.option("--slots", is_flag=True, help="Also every slot on every bookie.")
@access_options
@click.pass_obj
def show(settings: Settings, access: Access, ledger_id: int, slots: bool) -> int:
    """Show one ledger: its metadata, and a picture of its fragments by bookies.

    Nothing is fenced or changed by looking.
    """
    with looking(settings, access) as bk:
        info = bk.ledger(ledger_id)
        value = ledger_object(info)
        found = bk.context.store.read_ledger(parse_ledger_id(ledger_id)).value
        lost = found.bookies() - bk.context.bookies.registrations().keys()
        advice = _copies(bk.context, parse_ledger_id(ledger_id), lost) if lost else []
        rows = info.slots_arrow().to_pylist() if slots else []
        now_ms = bk.context.runtime.wall_ms()
        if info.writer_state == "gone":
            from spark_bookkeeper.doctor.ledgers import how_to_close

            closing = how_to_close([parse_ledger_id(ledger_id)])
            advice.append(f"\n  its end is not fixed: {closing}")
    if slots:
        value["slots"] = rows

    def present() -> None:
        _show_ledger(settings, info, found, lost, advice, now_ms)
        if slots:
            _show_slots(settings, rows)

    settings.output.result(value, present)
    return EXIT_DONE


def _front(row: Mapping[str, Any], now_ms: int) -> tuple[object, object]:
    """Return the last add confirmed, and the age of the newest entry."""
    moment = row["newest_entry_at"]
    at = None if moment is None else age(int(moment.timestamp() * 1000), now_ms)
    return row["last_add_confirmed"], at


def _writer_cell(row: Mapping[str, Any]) -> str | None:
    """Return whether the writer of an unclosed ledger lives, and its name."""
    if row["writer_state"] is None:
        return None
    return ": ".join(filter(None, (row["writer_state"], row["writer"])))


def ledger_object(info: LedgerInfo) -> dict[str, Any]:
    """Return a ledger for programs, with the columns of ``views.LEDGERS`` and fragments as rows."""
    return {
        "ledger_id": info.ledger_id,
        "state": info.state,
        "ensemble_size": info.ensemble_size,
        "write_quorum_size": info.write_quorum_size,
        "ack_quorum_size": info.ack_quorum_size,
        "fragments": info.fragments_arrow().to_pylist(),
        "last_entry_id": info.last_entry_id,
        "length_bytes": info.length_bytes,
        "digest_type": info.digest_type,
        "ctime": moment(info.ctime),
        "bookies": sorted({bookie for f in info.fragments for bookie in f.ensemble}),
        "custom_metadata": dict(info.custom_metadata),
        "writer": None if info.writer is None else str(info.writer),
        "writer_state": info.writer_state,
        "last_add_confirmed": info.last_add_confirmed,
        "newest_entry_at": moment(info.newest_entry_ms),
        "name": info.name,
        "owner": info.owner,
    }


def _copies(context: ClientContext, ledger_id: LedgerId, lost: Set[BookieId]) -> list[str]:
    """Return how to replace copies of lost bookies, as `doctor` says, and what prevents it now."""
    from spark_bookkeeper.doctor.autorecovery import AutorecoverySeen
    from spark_bookkeeper.doctor.ledgers import make_again

    autorecovery = AutorecoverySeen.of(context, ledger_id)
    advice = make_again(sorted(lost), autorecovery.instead_of_recover([ledger_id]))
    waits = (*autorecovery.without_worker, *autorecovery.waiting)
    return [
        f"\n  lost: {', '.join(sorted(lost))}",
        f"  make their copies again: {advice}",
        *(f"  cannot be repaired now: {why}" for _, why in waits),
    ]


def show_picture(settings: Settings, metadata: LedgerMetadata, lost: Set[BookieId]) -> None:
    """Print the fragments by bookies."""
    width = min(140, shutil.get_terminal_size((100, 24)).columns)
    for line in draw_fragments(metadata.quorum, list(metadata.fragment_ranges()), lost, width):
        settings.output.say(f"  {line}")
    settings.output.say(f"  {legend(metadata.quorum)}")


def _show_ledger(
    settings: Settings,
    info: LedgerInfo,
    metadata: LedgerMetadata,
    lost: Set[BookieId],
    advice: Sequence[str],
    now_ms: int,
) -> None:
    quorum = metadata.quorum
    settings.output.say(
        f"ledger {info.ledger_id}   {info.state}   E={quorum.ensemble_size} "
        f"Qw={quorum.write_quorum_size} Qa={quorum.ack_quorum_size}"
    )
    size = info.length_bytes
    facts: list[tuple[str, object]] = [
        ("last entry", "not fixed yet" if info.last_entry_id is None else info.last_entry_id),
        ("bytes", "not fixed yet" if size is None else f"{size:,}"),
        ("digest", info.digest_type),
        ("password", "yes" if metadata.password else "none"),
        ("created", moment_text(info.ctime)),
        ("format version", metadata.format_version),
        ("writer", "unknown" if info.writer is None else info.writer),
    ]
    if info.writer_state is not None:
        confirmed = info.last_add_confirmed
        facts += [
            (
                "writer lives",
                {"lives": "yes", "gone": f"no: {GONE}"}.get(info.writer_state, "unknown"),
            ),
            ("last confirmed", "unknown" if confirmed is None else confirmed),
            ("newest entry", _moment_and_age(info.newest_entry_ms, now_ms)),
        ]
    if (loss := accepted_loss_of(info.custom_metadata)) is not None:
        facts.append(("accepted loss", f"{loss}, {moment_text(loss.accepted_at_ms)}"))
    labels = info.custom_metadata.items()
    facts += [(k, text_of(v)) for k, v in sorted(labels) if not k.startswith(RESERVED_PREFIX)]
    for field in _schema_of(info):
        facts.append(
            ("column", f"{field.name}: {field.type}{'' if field.nullable else ' not null'}")
        )
    for name, value in facts:
        settings.output.say(f"  {name:<15} {value}")
    settings.output.say("")
    show_picture(settings, metadata, lost)
    for line in advice:
        settings.output.say(line)


def _moment_and_age(milliseconds: int | None, now_ms: int) -> str:
    if milliseconds is None:
        return "none, or unknown"
    return f"{moment_text(milliseconds)}, {age(milliseconds, now_ms)}"


def _show_slots(settings: Settings, rows: Sequence[Mapping[str, Any]]) -> None:
    names = [name for name in SLOTS.names if name != "ledger_id"]
    settings.output.table(names, [[row[name] for name in names] for row in rows[:MOST_SLOTS]])
    if len(rows) > MOST_SLOTS:
        settings.output.say(f"... {len(rows) - MOST_SLOTS} more slots; --json has them all")


def _schema_of(info: LedgerInfo) -> Iterable[pa.Field]:
    columns: Iterable[pa.Field] | None = schema_of(info.custom_metadata)
    return columns or []  # another BookKeeper client stores no schema
