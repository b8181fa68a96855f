"""What the verbs that touch a partition share: naming one, opening it, a first look at it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

import click

from spark_bookkeeper.bookie.marker import Marker, read_marker
from spark_bookkeeper.bookie.storage.roots import open_storage
from spark_bookkeeper.bookie.storage.storage import Storage
from spark_bookkeeper.client.bookies.asking import Patience
from spark_bookkeeper.client.bookies.bounded_storage import bounded
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import BookieUnavailableError, InvalidArgumentError
from spark_bookkeeper.runtime.runtime import ThreadRuntime

PATIENCE: Final = Patience.of(ClientConfig())
"""How long a partition may be silent before a command says so."""

Command = TypeVar("Command", bound=Callable[..., Any])


def storage_options(command: Command) -> Command:
    """``--storage-option KEY=VALUE``, repeatable."""
    return click.option(
        "--storage-option",
        "storage_options",
        multiple=True,
        metavar="KEY=VALUE",
        help="Passed to the file system, for example endpoint_url=http://...; repeatable.",
    )(command)


id_option = click.option(
    "--bookie-id", required=True, metavar="HOST:PORT", help="Its name in the cluster."
)
root_option = click.option(
    "--root", required=True, metavar="URI", help="Its storage: a path, file:///..., s3://..."
)


def marker_of(storage: Storage) -> Marker | None:
    """What a partition says it is: the first look at a storage, before anything is done.

    Raises:
        BookieUnavailableError: it does not answer. Nothing was changed.
    """
    try:
        return read_marker(storage)
    except BookieUnavailableError as error:
        cause = error.__cause__ or error
        raise BookieUnavailableError(
            f"{storage.uri} cannot be read: {type(cause).__name__}: {cause}. Nothing was changed. "
            "Check the root and who may read it; credentials come from --storage-option or from "
            "the environment, as the file system's own documents say",
            **error.facts,
            nothing_changed=True,
        ) from error


def open_partition(root: str, options: Sequence[str]) -> Storage:
    """The storage at a root that was typed; the path of a directory becomes a whole one.

    Raises:
        InvalidArgumentError: it is no directory, or an option is not one. Nothing was changed.
    """
    values: dict[str, Any] = {}
    for option in options:
        key, separator, value = option.partition("=")
        if not separator or not key:
            raise InvalidArgumentError(
                f"--storage-option {option!r} is not of the form KEY=VALUE, for example "
                "endpoint_url=http://127.0.0.1:9000"
            )
        values[key] = value
    if "://" not in root:
        root = os.path.abspath(os.path.expanduser(root))
    storage = bounded(open_storage(root, values), ThreadRuntime(), PATIENCE)
    place = urlsplit(storage.uri)
    if place.scheme == "file":
        storage.list("")  # a mount that hangs is found out here
    if place.scheme == "file" and not Path(unquote(place.path)).is_dir():
        path = shlex.quote(unquote(place.path))
        raise InvalidArgumentError(
            f"{path} is not a directory; make it first, on the disk that the bookie is to have to "
            f"itself: mkdir -p {path}. Nothing was changed"
        )
    return storage
