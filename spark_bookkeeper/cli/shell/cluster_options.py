"""How a command reaches its cluster: options that travel, and one open ``BookKeeper``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click

from spark_bookkeeper.cli.shell.settings import Settings
from spark_bookkeeper.config import ClientConfig, load_client_config
from spark_bookkeeper.connection import Connection
from spark_bookkeeper.errors import (
    InvalidArgumentError,
    MetadataUnavailableError,
)
from spark_bookkeeper.session import BookKeeper

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Access:
    """What a command was told about reaching the cluster, besides its metadata URI."""

    config: ClientConfig = field(default_factory=ClientConfig)
    storage_options: Mapping[str, str] = field(default_factory=dict)
    zk_options: Mapping[str, str] = field(default_factory=dict)


def access_options(command: Command) -> Command:
    """Give a command the options of ``Access``; it gets them as ``access``."""

    @click.option("--conf", type=click.Path(path_type=Path), help="A TOML file: conf/client.toml.")
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
        access = Access(
            load_client_config(conf) if conf else ClientConfig(),
            pairs("--storage-option", storage_options),
            pairs("--zk-option", zk_options),
        )
        return command(*arguments, access=access, **named)

    return with_access  # type: ignore[return-value]  # click sees only that it is callable


def pairs(option: str, texts: Sequence[str], *, is_secret: bool = True) -> dict[str, str]:
    """``KEY=VALUE`` texts as a mapping.

    Raises:
        InvalidArgumentError: one has another form. It is not shown when it may be a secret.
    """
    values: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            which = "one" if is_secret else repr(text)
            raise InvalidArgumentError(f"every {option} has the form KEY=VALUE; {which} has not")
        values[key] = value
    return values


@contextmanager
def connected(
    settings: Settings, access: Access | None = None, *, with_spark: bool = False
) -> Iterator[BookKeeper]:
    """An open connection to the cluster of the global options.

    Args:
        with_spark: jobs run on Spark, which is started when the first one is asked for; else in
            this process.

    Raises:
        InvalidArgumentError: no cluster was named, or an option is wrong.
        MetadataUnavailableError, NoClusterError: it cannot be reached. Nothing was changed.
    """
    access = access or Access()
    uri = settings.require_metadata_uri()
    connection = Connection(uri, access.config, access.storage_options, access.zk_options)
    try:
        bk = BookKeeper(connection, spark_conf=settings.spark_conf, runs_jobs_here=not with_spark)
    except MetadataUnavailableError as error:
        raise MetadataUnavailableError(
            error.message,
            nothing_changed=True,
        ) from error
    with bk:
        bk.context.store.require_cluster()  # no cluster there: say so before anything else
        yield bk
