"""``spark-bookkeeper bookie start``: the agents of bookies, as one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import click

from spark_bookkeeper.agent.agent import BookieAgent
from spark_bookkeeper.agent.health_server import HealthServer
from spark_bookkeeper.agent.partitions import Partitions, ServedPartition
from spark_bookkeeper.agent.upkeep import upkeep_duties
from spark_bookkeeper.cli.autorecovery.group import note_warning
from spark_bookkeeper.cli.bookie.partition import open_partition, wanted_partitions
from spark_bookkeeper.cli.bookie.shared import what_is_shared
from spark_bookkeeper.cli.shell.cluster_options import (
    Access,
    access_options,
    connected,
    opened_store,
)
from spark_bookkeeper.cli.shell.logs import start_logging
from spark_bookkeeper.cli.shell.settings import EXIT_DONE, Settings
from spark_bookkeeper.cli.shell.termination import STOPPING, Stopping, until_signalled
from spark_bookkeeper.config import PartitionConf
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.logs.consumers import show_lag
from spark_bookkeeper.metadata.store import MetadataStore
from spark_bookkeeper.metrics import BookieMetrics, Metrics
from spark_bookkeeper.protocol.ids import BookieId, parse_bookie_id
from spark_bookkeeper.runtime.runtime import Runtime, ThreadRuntime
from spark_bookkeeper.session import BookKeeper


@click.command(
    epilog="Example: spark-bookkeeper --metadata-uri zk://zk1:2181/ledgers bookie start "
    "--bookie-id 10.0.0.3:3181 --root /srv/bookie"
)
@click.argument("partitions", metavar="[[BOOKIE=]ROOT]...", nargs=-1)
@click.option("--bookie-id", metavar="HOST:PORT", help="Its name in the cluster.")
@click.option("--root", metavar="URI", help="Its storage: a path, file:///..., s3://...")
@click.option("--rack", default="/default-rack", show_default=True, help="For placement.")
@click.option("--moved", is_flag=True, help="Its storage was moved here (not copied).")
@click.option(
    "--autorecovery",
    "with_autorecovery",
    is_flag=True,
    help="Be a candidate for auditor, and copy to this bookie what others have lost.",
)
@click.option(
    "--show-lag",
    "logs",
    multiple=True,
    metavar="LOG",
    help="Show at /metrics how far the named followers of a log are behind. Repeatable.",
)
@access_options
@click.pass_obj
def start(
    settings: Settings,
    access: Access,
    partitions: Sequence[str],
    bookie_id: str | None,
    root: str | None,
    rack: str,
    moved: bool,
    with_autorecovery: bool,
    logs: tuple[str, ...],
) -> int:
    """Run the agent of one bookie until Ctrl-C or SIGTERM; a new partition is formatted.

    Or of several, each with a disk of its own: `bookie start 10.0.0.3:3181=/disks/1
    10.0.0.3:3182=/disks/2`, or as the tables [[partitions]] of --conf say. A partition that was
    formatted before needs no BOOKIE. One that fails does not take the others with it. While
    ZooKeeper does not answer, it is waited for.
    """
    wanted = wanted_partitions(access, partitions, bookie_id, root)
    only = wanted[0].bookie_id if len(wanted) == 1 else None
    start_logging(settings.log_format, bookie_id=only)
    runtime = ThreadRuntime()
    # A single partition also counts the metrics of the session with ZooKeeper.
    own = None if only is None else BookieMetrics()
    session = own or Metrics()
    with (  # until it is connected, Ctrl-C ends it like any other command
        opened_store(settings, access, runtime, session, waits=True) as store,
        _shown_lag(settings, access, logs, session),
        connected(settings, access, waits=True) as bk,
    ):
        make_agent = partial(
            _make_agent, access=access, store=store, runtime=runtime, bk=bk, rack=rack, moved=moved
        )
        served = Partitions(
            runtime,
            [
                ServedPartition(
                    parse_bookie_id(each.bookie_id), each.root, partial(make_agent, each), own
                )
                for each in wanted
            ],
            tell=settings.output.note,
        )
        shared = session if own is None else None
        with (
            HealthServer(served.partitions, access.conf.bookie, shared) as server,
            until_signalled() as stopping,
        ):
            try:
                served.start()
                _serve(settings, access, runtime, bk, served, server, stopping, with_autorecovery)
            finally:
                stopped = [each.bookie_id for each in served.partitions if each.is_started]
                if not stopping.is_at_once:  # otherwise the registrations end with their session
                    served.stop()
    for each in stopped:
        settings.output.note(f"bookie {each} is unregistered; its storage stays as it is")
    return EXIT_DONE


def _make_agent(
    wanted: PartitionConf,
    metrics: BookieMetrics,
    *,
    access: Access,
    store: MetadataStore,
    runtime: Runtime,
    bk: BookKeeper,
    rack: str,
    moved: bool,
) -> tuple[BookieAgent, Callable[[], None]]:
    """Open a partition; return its agent, and a function that closes the partition."""
    name = parse_bookie_id(wanted.bookie_id)
    partition = open_partition(wanted.root, access)
    agent = BookieAgent(
        store,
        partition,
        name,
        runtime,
        access.conf.bookie,
        rack=wanted.rack or rack,
        moved_from=partial(access.open_root, runtime=runtime) if moved else None,
        duties=upkeep_duties(bk.context, name, access.conf.bookie, metrics),
        metrics=metrics,
    )
    return agent, partition.close


def _serve(
    settings: Settings,
    access: Access,
    runtime: Runtime,
    bk: BookKeeper,
    served: Partitions,
    server: HealthServer,
    stopping: Stopping,
    with_autorecovery: bool,
) -> None:
    """Print what is served, and wait for the end. Autorecovery runs meanwhile."""
    for each in served.partitions:
        if each.is_started:
            settings.output.note(
                f"bookie {each.bookie_id} serves {each.status.root_uri} (incarnation "
                f"{each.status.incarnation}); Ctrl-C stops it"
            )
    if server.address is not None:
        settings.output.note("its /health and /metrics are at http://{}:{}".format(*server.address))
    store = bk.context.store
    runtime.spawn("sharing", partial(_tell_shared, settings, access, store, served, stopping))
    names = [each.bookie_id for each in served.partitions] if with_autorecovery else []
    if names:
        note_warning(settings, bk)
    # Autorecovery ends first. Otherwise it could publish its own bookie, which is about to end.
    with ExitStack() as beside:
        for name in names:
            beside.enter_context(_autorecovery(settings, access, name, server, stopping))
        while not stopping.wait(1.0):
            pass  # a signal just before a wait without time-out would have no effect
        settings.output.note(STOPPING)


def _tell_shared(
    settings: Settings,
    access: Access,
    store: MetadataStore,
    served: Partitions,
    stopping: Stopping,
) -> None:
    """Print what the served bookies share with each other or with other known bookies.

    It runs in the background: roots may hang, and the end of the process does not wait for it.
    """
    roots = {each.bookie_id: each.status.root_uri for each in served.partitions if each.is_started}
    with suppress(BookKeeperError):  # an error here does not affect serving
        for warning in what_is_shared(access, store, roots, with_trying=False):
            if not stopping.is_set():
                settings.output.note(warning)


@contextmanager
def _autorecovery(
    settings: Settings, access: Access, name: BookieId, server: HealthServer, stopping: Stopping
) -> Iterator[None]:
    """Run auditor and replication worker next to a bookie, with a session of their own."""
    with connected(settings, access) as bk:
        server.show_also(name, bk.context.metrics)
        running = bk.autorecovery.start(bookie_id=name, config=access.conf.autorecovery)
        try:
            yield
        finally:
            if not stopping.is_at_once:
                running.stop()


@contextmanager
def _shown_lag(
    settings: Settings, access: Access, logs: Sequence[str], metrics: Metrics
) -> Iterator[None]:
    """Show gauges for the followers of these logs. The first read of the metrics connects."""
    context = access.connection(settings).open_lazily()
    for log in logs:
        show_lag(context, log, metrics=metrics)
    try:
        yield
    finally:
        context.bookies.close()
        context.store.close()
