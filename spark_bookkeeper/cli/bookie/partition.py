"""Code of the verbs that use a partition: find it by name or root, open it, read its marker."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click

from spark_bookkeeper.bookie.marker import Marker
from spark_bookkeeper.bookie.partition import Partition
from spark_bookkeeper.cli.shell.cluster_options import Access, opened_store
from spark_bookkeeper.cli.shell.settings import Settings
from spark_bookkeeper.config import PartitionConf
from spark_bookkeeper.errors import BookieUnavailableError, InvalidArgumentError
from spark_bookkeeper.metadata.store import MetadataStore
from spark_bookkeeper.protocol.ids import parse_bookie_id
from spark_bookkeeper.runtime.runtime import ThreadRuntime

id_option = click.option(
    "--bookie-id", required=True, metavar="HOST:PORT", help="Its name in the cluster."
)
root_option = click.option(
    "--root", required=True, metavar="URI", help="Its storage: a path, file:///..., s3://..."
)


def marker_of(partition: Partition) -> Marker | None:
    """Read a partition's marker, before anything else is done with it.

    Raises:
        BookieUnavailableError: it does not answer. Nothing was changed.
    """
    try:
        return partition.marker()
    except BookieUnavailableError as error:
        cause = error.__cause__ or error
        raise BookieUnavailableError(
            f"{partition.uri} cannot be read: {type(cause).__name__}: {str(cause).rstrip('.')}. "
            "Nothing was changed. Check the root and who may read it; credentials come from "
            "--storage-option or from the environment, as the file system's own documents say",
            **error.facts,
            nothing_changed=True,
        ) from error


def open_partition(root: str, access: Access, *, is_new: bool = True) -> Partition:
    """Open the storage at a root from the command line. The path of a directory becomes absolute.

    Args:
        is_new: whether the storage may be one that no bookie has used yet.

    Raises:
        InvalidArgumentError: it is not a directory. Nothing was changed.
    """
    if "://" not in root:
        root = os.path.abspath(os.path.expanduser(root))
    partition = access.open_root(root, ThreadRuntime())
    place = urlsplit(partition.uri)
    if place.scheme == "file":
        try:
            partition.foreign_names()  # detects a mount that hangs
        except BookieUnavailableError as error:
            if not isinstance(error.__cause__, NotADirectoryError):
                raise
    if place.scheme == "file" and not Path(unquote(place.path)).is_dir():
        path = shlex.quote(unquote(place.path))
        if Path(unquote(place.path)).exists():
            raise InvalidArgumentError(
                f"{path} is a file, and a bookie's root is a directory. Nothing was changed; name "
                "the directory that the bookie is to have to itself"
            )
        if not is_new:
            raise InvalidArgumentError(
                f"{path} is not there; is its disk mounted? Nothing was changed; name the "
                "directory that the bookie used"
            )
        raise InvalidArgumentError(
            f"{path} is not a directory; make it first, on the disk that the bookie is to have to "
            f"itself: mkdir -p {path}. Nothing was changed"
        )
    return partition


def wanted_partitions(
    access: Access,
    texts: Sequence[str],
    bookie_id: str | None,
    root: str | None,
) -> Sequence[PartitionConf]:
    """Return the partitions for ``bookie start``, from options, arguments, or the file's tables.

    Raises:
        InvalidArgumentError: none or only half of one was given, or a root names no bookie.
            Nothing was changed.
    """
    if bookie_id is not None and root is not None and not texts:
        return [PartitionConf(parse_bookie_id(bookie_id), root)]
    if bookie_id is not None or root is not None:
        raise InvalidArgumentError(
            "--bookie-id and --root name one partition, both together; several are arguments: "
            "`bookie start 10.0.0.3:3181=/disks/1 10.0.0.3:3182=/disks/2`. Nothing was changed"
        )
    if texts:
        return [_partition(text, access) for text in texts]
    if access.conf.partitions:
        for each in access.conf.partitions:
            parse_bookie_id(each.bookie_id)
        return access.conf.partitions
    raise InvalidArgumentError(
        "no partition was named: give --bookie-id and --root, or BOOKIE=ROOT for each of several, "
        "or tables [[partitions]] in the file of --conf. Nothing was changed"
    )


def _partition(text: str, access: Access) -> PartitionConf:
    """Parse ``BOOKIE=ROOT``, or a root with a marker that names its bookie."""
    name, separator, root = text.partition("=")
    if separator and "/" not in name:
        return PartitionConf(parse_bookie_id(name), root)
    partition = open_partition(text, access)
    try:
        marker = marker_of(partition)
    finally:
        partition.close()
    if marker is None:
        raise InvalidArgumentError(
            f"{text} holds no bookie yet, so it has no name; write HOST:PORT={text}. Nothing was "
            "changed"
        )
    return PartitionConf(marker.bookie_id, text)


@contextmanager
def known_partition(
    settings: Settings, access: Access, root: str
) -> Iterator[tuple[MetadataStore, Partition]]:
    """Yield the metadata store, and the storage of a bookie that exists or existed."""
    partition = open_partition(root, access, is_new=False)
    try:
        with opened_store(settings, access, ThreadRuntime()) as store:
            marker_of(partition)  # an unreadable partition is reported as such
            yield store, partition
    finally:
        partition.close()
