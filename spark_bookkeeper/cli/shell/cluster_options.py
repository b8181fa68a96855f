"""How a command reaches its cluster: options, and one open ``BookKeeper``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.cli.shell.settings import Settings
from spark_bookkeeper.client.names import ledger_called
from spark_bookkeeper.config import Conf, load_conf
from spark_bookkeeper.connection import Connection, open_root
from spark_bookkeeper.errors import InvalidArgumentError, MetadataError, MetadataUnavailableError
from spark_bookkeeper.metadata.store import MetadataStore
from spark_bookkeeper.metrics import Metrics
from spark_bookkeeper.runtime.runtime import Runtime, ThreadRuntime
from spark_bookkeeper.session import BookKeeper

Command = TypeVar("Command", bound=Callable[..., Any])
T = TypeVar("T")


CONF_VARIABLE: Final = "SPARK_BOOKKEEPER_CONF"


@dataclass(frozen=True)
class Access:
    """How to reach a cluster, apart from its metadata URI."""

    conf: Conf = field(default_factory=Conf)
    """The given file, updated with the options of the command line."""

    def connection(self, settings: Settings) -> Connection:
        """Return the connection's settings. Raises ``InvalidArgumentError`` without a cluster."""
        conf = self.conf
        uri = settings.require_metadata_uri()
        return Connection(uri, conf.client, conf.storage_options, conf.zk_options)

    def open_root(self, uri: str, runtime: Runtime) -> Partition:
        """Return the partition at a root, see ``connection.open_root``."""
        return open_root(uri, runtime, self.conf.client, self.conf.storage_options)


def access_options(command: Command) -> Command:
    """Give a command the options of ``Access``, passed as ``access``, and ids for ledger names."""

    @click.option(
        "--conf",
        type=click.Path(path_type=Path),
        envvar=CONF_VARIABLE,
        show_envvar=True,
        help="A TOML file, with keys as in conf/*.toml and tables [zk] and [storage] of options.",
    )
    @click.option(
        "--storage-option",
        "storage_options",
        multiple=True,
        metavar="KEY=VALUE",
        help="Passed to the bookies' file systems, as endpoint_url=http://...; repeatable.",
    )
    @click.option(
        "--zk-option",
        "zk_options",
        multiple=True,
        metavar="KEY=VALUE",
        help="Passed to ZooKeeper's client, for example auth_data=digest:user:password.",
    )
    @functools.wraps(command)
    def with_access(
        *arguments: Any,
        conf: Path | None,
        storage_options: Sequence[str],
        zk_options: Sequence[str],
        **named: Any,
    ) -> Any:
        found = load_conf(conf) if conf else Conf()
        zk = {**found.zk_options, **pairs("--zk-option", zk_options, "use_ssl=true")}
        storage = {
            **found.storage_options,
            **pairs("--storage-option", storage_options, "endpoint_url=http://host:9000"),
        }
        access = Access(replace(found, zk_options=zk, storage_options=storage))
        for name in named.keys() & {"ledger_id", "ledger_ids"}:
            named[name] = _ids(access, named[name])
        return command(*arguments, access=access, **named)

    return with_access  # type: ignore[return-value]  # click sees only that it is callable


def _ids(access: Access, given: Any) -> Any:
    """Return ids unchanged, and the id of each ledger that was given by name."""
    if isinstance(given, str):
        with looking(click.get_current_context().obj, access) as bk:
            return ledger_called(bk.context, given)
    return tuple(_ids(access, each) for each in given) if isinstance(given, Sequence) else given


def pairs(
    option: str, texts: Sequence[str], example: str, *, is_secret: bool = True
) -> dict[str, str]:
    """Return ``KEY=VALUE`` texts as a mapping.

    Raises:
        InvalidArgumentError: one has another form. The message hides it if it may be a secret.
    """
    values: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            which = "one" if is_secret else repr(text)
            raise InvalidArgumentError(
                f"every {option} has the form KEY=VALUE; {which} has not. Nothing was changed. "
                f"Write for example {example}"
            )
        values[key] = value
    return values


@contextmanager
def connected(
    settings: Settings, access: Access | None = None, *, waits: bool = False
) -> Iterator[BookKeeper]:
    """Yield an open connection to the cluster of the global options. Jobs run in this process.

    Args:
        waits: see ``opened_store``.

    Raises:
        InvalidArgumentError: no cluster was named, or an option is wrong.
        MetadataError: it cannot be reached, or refuses. Nothing was changed.
    """
    connection = (access or Access()).connection(settings)

    def connect() -> BookKeeper:
        bk = BookKeeper(connection, spark_conf=settings.spark_conf, runs_jobs_here=True)
        try:
            bk.context.store.require_cluster()  # without a cluster, fail before anything else
        except BaseException:
            bk.close()
            raise
        return bk

    with _nothing_changed():
        bk = patiently(connect, settings.output.note, ThreadRuntime()) if waits else connect()
    with bk:
        yield bk


@contextmanager
def looking(
    settings: Settings, access: Access, what: str = "reading ledger metadata"
) -> Iterator[BookKeeper]:
    """Connect like ``connected``, for a command that changes nothing.

    If ZooKeeper fails at any time, the exit code says that the cluster cannot be reached, not that
    it has a problem. The block prints nothing; meanwhile a display shows ``what`` as the work.
    """
    with _nothing_changed(), connected(settings, access) as bk, settings.output.progress(what):
        yield bk


@contextmanager
def opened_store(
    settings: Settings,
    access: Access,
    runtime: Runtime,
    metrics: Metrics | None = None,
    *,
    waits: bool = False,
) -> Iterator[MetadataStore]:
    """Yield only the metadata store, for work without bookies. Raises as ``connected``.

    Args:
        waits: wait for ZooKeeper until it answers or Ctrl-C comes, as long-running commands do.
    """
    connection = access.connection(settings)

    def connect() -> MetadataStore:
        return connection.open_store(runtime, metrics)

    with _nothing_changed():
        store = patiently(connect, settings.output.note, runtime) if waits else connect()
    try:
        yield store
    finally:
        store.close()


_PAUSE_SECONDS: Final = 1.0
"""The time between two attempts, because a refused attempt ends at once."""

SAID_AGAIN_SECONDS: Final = 60.0
"""The time between two messages that the command still waits."""


def patiently(connect: Callable[[], T], tell: Callable[[str], None], runtime: Runtime) -> T:
    """Connect as soon as ZooKeeper answers: after a power cut it may start last.

    The wait ends at Ctrl-C, or at an error that it cannot resolve: a refusal by every server.
    """
    said: float | None = None
    while True:
        try:
            return connect()
        except MetadataUnavailableError as error:
            if said is None or runtime.now() - said >= SAID_AGAIN_SECONDS:
                said = runtime.now()
                tell(f"waiting for ZooKeeper, until Ctrl-C: {error.message}")
        runtime.sleep(_PAUSE_SECONDS)


@contextmanager
def _nothing_changed() -> Iterator[None]:
    """Add the fact that nothing was changed to an error that prevents a connection."""
    try:
        yield
    except MetadataError as error:
        if type(error) not in (MetadataError, MetadataUnavailableError):
            raise
        raise type(error)(error.message, nothing_changed=True) from error
