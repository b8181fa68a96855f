"""``spark-bookkeeper bookie list | show | recover``: the cluster's view of its bookies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from spark_bookkeeper.agent.cookies import check_forgettable, forget_bookie
from spark_bookkeeper.agent.dependents import dependents_of
from spark_bookkeeper.agent.readonly import read_order
from spark_bookkeeper.agent.scrubbing import read_mark
from spark_bookkeeper.cli.shell.cluster_options import Access, access_options, looking
from spark_bookkeeper.cli.shell.engine import sizes_of
from spark_bookkeeper.cli.shell.output import gib, number
from spark_bookkeeper.cli.shell.parameters import only_ledgers
from spark_bookkeeper.cli.shell.settings import EXIT_DONE, EXIT_LEFT_UNDONE, Settings
from spark_bookkeeper.cli.shell.work import PLAN, YES, Work, ask_about, work_options
from spark_bookkeeper.client.ledger import needs_refill
from spark_bookkeeper.client.views import bookie_rows, moment
from spark_bookkeeper.connection import partition_of
from spark_bookkeeper.errors import BookieError, InvalidArgumentError, MetadataError
from spark_bookkeeper.metadata.store import Registration, Versioned
from spark_bookkeeper.protocol.ids import BookieId, LedgerId, parse_bookie_id
from spark_bookkeeper.protocol.underreplication import REFILL
from spark_bookkeeper.replication.report import RecoveryReport, counted
from spark_bookkeeper.secrecy import without_passwords
from spark_bookkeeper.session import BookKeeper


@click.command(name="list", epilog="Example: spark-bookkeeper bookie list --state lost")
@click.option("--state", type=click.Choice(["writable", "readonly", "lost"]), help="Only these.")
@access_options
@click.pass_obj
def list_(settings: Settings, access: Access, state: str | None) -> int:
    """List every bookie that is known: alive, or named by a cookie or a ledger."""
    with looking(settings, access) as bk:
        rows = [r for r in bookie_rows(bk.context) if state is None or r["state"] == state]

    def show() -> None:
        if not rows:
            settings.output.say("no bookies" if state is None else f"no bookie is {state}")
            return
        settings.output.table(
            [
                *["bookie", "state", "root", "rack", "ledgers", "fragments"],
                *["free GiB", "total GiB", "free inodes", "read-only because"],
            ],
            [
                [
                    row["bookie_id"],
                    row["state"],
                    row["root_uri"] and without_passwords(row["root_uri"]),
                    row["rack"],
                    row["ledgers"],
                    row["fragments"],
                    gib(row["free_bytes"]),
                    gib(row["total_bytes"]),
                    number(row["free_inodes"]),
                    row["readonly_reason"],
                ]
                for row in rows
            ],
        )

        for row in rows:
            _note_limbo(settings, row)

    settings.output.result({"bookies": rows}, show)
    return EXIT_DONE


@click.command(epilog="Example: spark-bookkeeper bookie show 10.0.0.3:3181")
@click.argument("bookie_id", metavar="BOOKIE")
@access_options
@click.pass_obj
def show(settings: Settings, access: Access, bookie_id: str) -> int:
    """Show one bookie: registration, cookie, its storage's marker, the ledgers that name it."""
    name = parse_bookie_id(bookie_id)
    with looking(settings, access) as bk:
        value = _look_at(bk, name)

    def present() -> None:
        none = {"scrubbed_at": "never"}
        space = {k: gib(v) for k, v in value.items() if k.endswith("_bytes")}
        facts = {k: none.get(k, "none") if v is None else v for k, v in (value | space).items()}
        del facts["ledgers"]
        facts["ledger_ids"] = ", ".join(map(str, value["ledgers"])) or "none"
        names = {k: k.replace("_bytes", " GiB").replace("_", " ") for k in facts}
        settings.output.table(["what", "value"], [[names[k], str(v)] for k, v in facts.items()])
        _note_limbo(settings, value)

    settings.output.result(value, present)
    return EXIT_DONE


@click.command(epilog="Example: spark-bookkeeper bookie recover 192.168.1.10:3181 --dry-run")
@click.argument("bookie_id", metavar="[BOOKIE]", required=False)
@click.argument("target", metavar="[TARGET]", required=False)
@click.option("--bookie", "bookies", multiple=True, help="A further lost bookie; repeatable.")
@only_ledgers
@click.option("--skip-open-ledgers", is_flag=True, help="Leave ledgers alone that are not closed.")
@click.option("--even-if-alive", is_flag=True, help="Also for a bookie that is registered.")
@click.option(
    "--delete-cookie",
    is_flag=True,
    help="When all is done, forget the lost bookies; they must be down.",
)
@work_options(dry_run=PLAN, yes=YES, engine="either", limit="copying")
def recover(
    work: Work,
    bookie_id: str | None,
    target: str | None,
    bookies: Sequence[str],
    ledger_ids: Sequence[int],
    skip_open_ledgers: bool,
    even_if_alive: bool,
    bytes_per_second: int | None,
    delete_cookie: bool,
) -> int:
    """Make the copies of a lost BOOKIE again on TARGET, or on suitable bookies chosen at random.

    Ledgers whose last fragment is on it and that are not closed are fenced, recovered and
    closed first. Killed at any moment it loses nothing, and run again it finishes the rest.
    """
    given = [*([] if bookie_id is None else [bookie_id]), *bookies]
    # Check names before the command connects or starts Spark.
    names = list(dict.fromkeys(map(parse_bookie_id, given)))
    if target is not None:
        parse_bookie_id(target)
    if not names:
        raise InvalidArgumentError(
            "no bookie was named; nothing was changed. `spark-bookkeeper bookie list --state lost` "
            "shows those that are lost"
        )
    doomed = names if delete_cookie else []
    cookies_stay: list[BookieId] = []
    report = work.run(
        "reading ledger metadata",
        lambda bk, dry_run, progress: bk.recover_bookie(
            names,
            target,
            ledger_ids=ledger_ids or None,
            skip_open_ledgers=skip_open_ledgers,
            even_if_alive=even_if_alive,
            dry_run=dry_run,
            bytes_per_second=bytes_per_second,
            progress=progress,
        ),
        sizes=lambda bk: sizes_of(bk, ledger_ids or None, naming={*names}),
        ask=lambda plan: ask_about(work.settings, plan, doomed),
        before=lambda bk: check_forgettable(bk.context.store, doomed),
        after=lambda bk, report: cookies_stay.extend(
            _delete_cookies(work.settings, bk, doomed, report)
        ),
    )
    code = work.show(report)
    return max(code, EXIT_LEFT_UNDONE) if cookies_stay else code


def _delete_cookies(
    settings: Settings, bk: BookKeeper, names: Sequence[BookieId], report: RecoveryReport
) -> Sequence[BookieId]:
    """Delete cookies; return the bookies whose cookie stays, and print the reasons."""
    store = bk.context.store
    stay = []
    for name in names:
        try:
            if store.cookie_version(name) is None:
                continue
            if not report.is_complete:
                raise InvalidArgumentError("not everything could be done; see the report")
            forget_bookie(store, name)
        except (InvalidArgumentError, MetadataError) as error:
            stay.append(name)
            settings.output.note(f"the cookie of {name} stays: {error.message}")
        else:
            settings.output.note(f"the cookie of {name} is deleted; the cluster forgot that bookie")
    return stay


def _note_limbo(settings: Settings, row: Mapping[str, Any]) -> None:
    """Print the remedy for a bookie that lacks shares which ledgers assign to it."""
    if row["limbo_ledgers"]:
        settings.output.say(
            f"{row['bookie_id']} was formatted again and lacks its share of "
            f"{counted(row['limbo_ledgers'], 'ledger')}: {REFILL.format(row['bookie_id'])} copies "
            "it back"
        )


def _limbo(bk: BookKeeper, name: BookieId, live: Registration, ledgers: Sequence[LedgerId]) -> int:
    """Count those of these ledgers for which a bookie needs refill."""
    found = (each for _, each in bk.context.store.read_ledgers(ledgers))
    return sum(
        name in needs_refill(each.value, {name: live.incarnation})
        for each in found
        if isinstance(each, Versioned)
    )


def _look_at(bk: BookKeeper, name: BookieId) -> dict[str, Any]:
    store = bk.context.store
    live = bk.context.bookies.registrations().get(name)
    cookie = store.read_cookie(name)
    ledgers = dependents_of(store, name).ledger_ids
    order = read_order(store, name)
    if live is None and cookie is None and not ledgers:
        raise InvalidArgumentError(
            f"bookie {name} is unknown: it has no registration, no cookie, and no ledger names it; "
            "`spark-bookkeeper bookie list` shows the bookies"
        )
    answer, marker, space, inodes = "answers", None, None, None
    try:
        partition = partition_of(bk.context, name)
        marker = partition.marker()
        space, inodes = partition.space(), partition.inodes()
        if marker is None:
            answer = "answers, and holds no BOOKIE marker: it is not mounted, or was wiped"
    except (BookieError, InvalidArgumentError) as error:
        answer = error.message
    known = live or (cookie.value if cookie else None)
    scrubbed = read_mark(store.registers, name)
    is_of_it = known is not None and scrubbed.incarnation == known.incarnation
    ended_at_ms = scrubbed.ended_at_ms if is_of_it else 0
    return {
        "bookie_id": name,
        "state": "lost" if live is None else "readonly" if live.is_readonly else "writable",
        "readonly_reason": live.readonly_reason if live else None,
        "readonly_by_hand": order.reason if order else None,
        "root_uri": known.root_uri if known else None,
        "rack": live.rack if live else None,
        "incarnation": known.incarnation if known else None,
        "cookie_incarnation": cookie.value.incarnation if cookie else None,
        "cookie_instance_id": cookie.value.instance_id if cookie else None,
        "marker_bookie_id": marker.bookie_id if marker else None,
        "marker_incarnation": marker.incarnation if marker else None,
        "marker_instance_id": marker.instance_id if marker else None,
        "storage": answer,
        "free_bytes": space[0] if space else None,
        "total_bytes": space[1] if space else None,
        "free_inodes": inodes[0] if inodes else None,
        "total_inodes": inodes[1] if inodes else None,
        "scrubbed_at": moment(ended_at_ms or None),
        "scrub_rounds": scrubbed.rounds if is_of_it else 0,
        "limbo_ledgers": _limbo(bk, name, live, ledgers) if live else 0,
        "ledgers": ledgers,
    }
