"""``spark-bookkeeper bookie set-readonly | set-writable``: a bookie's mode, set by an operator."""

from __future__ import annotations

import click

from spark_bookkeeper.agent.readonly import NO_REASON, read_order, set_readonly, set_writable
from spark_bookkeeper.cli.shell.cluster_options import Access, access_options, connected
from spark_bookkeeper.cli.shell.settings import EXIT_DONE, Settings
from spark_bookkeeper.protocol.ids import BookieId, parse_bookie_id
from spark_bookkeeper.session import BookKeeper

_OBEYED = "its agent obeys at its next probe (every 5 s, unless it is configured otherwise)"
_AWAY = "its agent does not run, or does not reach ZooKeeper; it obeys as soon as it does"


def _when(bk: BookKeeper, name: BookieId) -> str:
    return _OBEYED if name in bk.context.bookies.registrations() else _AWAY


@click.command(
    name="set-readonly",
    epilog='Example: spark-bookkeeper bookie set-readonly 10.0.0.3:3181 --reason "new disk"',
)
@click.argument("bookie_id", metavar="BOOKIE")
@click.option(
    "--reason", help=f"Shown to everybody who asks why. Default: as before, else {NO_REASON!r}."
)
@access_options
@click.pass_obj
def set_readonly_(settings: Settings, access: Access, bookie_id: str, reason: str | None) -> int:
    """Let BOOKIE take no new data until `set-writable`, also when its agent starts again.

    What it holds stays readable. Writers that use it go on elsewhere when they can.
    """
    name = parse_bookie_id(bookie_id)
    with connected(settings, access) as bk:
        before = read_order(bk.context.store, name)
        order = set_readonly(bk.context.store, name, reason, bk.context.runtime.wall_ms())
        when = _when(bk, name)
    was = ""
    if before is not None:
        was = "; the reason " + ("stays: " if before.reason == order.reason else "was: ")
        was += before.reason
    settings.output.result(
        {
            "bookie_id": name,
            "readonly_by_hand": order.reason,
            "readonly_by_hand_before": None if before is None else before.reason,
        },
        lambda: settings.output.say(f"bookie {name} is to be read-only; {when}{was}"),
    )
    return EXIT_DONE


@click.command(
    name="set-writable", epilog="Example: spark-bookkeeper bookie set-writable 10.0.0.3:3181"
)
@click.argument("bookie_id", metavar="BOOKIE")
@access_options
@click.pass_obj
def set_writable_(settings: Settings, access: Access, bookie_id: str) -> int:
    """Let BOOKIE take new data again, when `set-readonly` was what kept it from that.

    It stays read-only for other reasons, such as little space; `bookie list` shows them.
    """
    name = parse_bookie_id(bookie_id)
    with connected(settings, access) as bk:
        was_readonly = set_writable(bk.context.store, name)
        when = _when(bk, name)
    settings.output.result(
        {"bookie_id": name, "readonly_by_hand": None, "was_readonly_by_hand": was_readonly},
        lambda: settings.output.say(
            f"bookie {name} may be writable; {when}"
            if was_readonly
            else f"nobody had made bookie {name} read-only by hand; nothing was changed"
        ),
    )
    return EXIT_DONE
