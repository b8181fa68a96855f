"""The stored state of a local cluster: ``cluster.json``, with the bookies and ZooKeeper's port."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.ids import BookieId

_FORMAT_VERSION = 1

_FIRST_PORT = 3181
"""BookKeeper's own port. It is only a part of bookie ids: no process listens, no data uses it."""

_OWN_NAMES = frozenset({"zookeeper", "cluster.log", "background.json", "bookies"})
"""The names that an interrupted first start may leave without ``cluster.json``."""


@dataclass(frozen=True, slots=True)
class LocalBookie:
    """One bookie of a local cluster, as stored in ``cluster.json``."""

    bookie_id: BookieId
    directory: str
    """Relative to the cluster's directory."""
    is_destroyed: bool = False
    """Whether its storage was removed on purpose."""


@dataclass(frozen=True, slots=True)
class LocalState:
    """The content of ``cluster.json``."""

    bookies: tuple[LocalBookie, ...]
    zookeeper_port: int | None = None


def new_state(bookies: int) -> LocalState:
    """Return the state of a new cluster."""
    return LocalState(tuple(new_bookie(n) for n in range(bookies)))


def new_bookie(index: int) -> LocalBookie:
    """Return the bookie with the number ``index``, counted from 0, whether it exists or not."""
    return LocalBookie(BookieId(f"127.0.0.1:{_FIRST_PORT + index}"), f"bookies/{index + 1}")


def read_state(directory: Path) -> LocalState | None:
    """Return the state of the cluster in a directory; ``None`` if there is none.

    Raises:
        InvalidArgumentError: the directory holds something else.
    """
    path = directory / "cluster.json"
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        if directory.is_dir() and any(directory.iterdir()):
            _refuse_foreign(directory)
        return None
    except (OSError, ValueError) as cause:
        raise InvalidArgumentError(f"{path} cannot be read: {cause}") from cause
    version = values.get("format_version") if isinstance(values, dict) else None
    if version != _FORMAT_VERSION:
        raise InvalidArgumentError(
            f"{path} has format version {version}, and this version of spark-bookkeeper knows "
            f"{_FORMAT_VERSION}; use the version that made it, or another directory"
        )
    return LocalState(
        bookies=tuple(LocalBookie(**bookie) for bookie in values["bookies"]),
        zookeeper_port=values["zookeeper_port"],
    )


def _refuse_foreign(directory: Path) -> None:
    """Raise if a directory without ``cluster.json`` holds more than a first start leaves."""
    foreign: Sequence[str] = sorted({p.name for p in directory.iterdir()} - _OWN_NAMES)
    if foreign:
        raise InvalidArgumentError(
            f"{directory} holds no local cluster and is not empty ({', '.join(foreign[:3])}); "
            "name a new or empty directory. Nothing was changed"
        )


def write_state(directory: Path, state: LocalState) -> None:
    """Replace the content of ``cluster.json``."""
    write_json(directory / "cluster.json", {"format_version": _FORMAT_VERSION, **asdict(state)})


def make_directory(directory: Path) -> None:
    """Make a cluster's directory, unless it exists.

    Raises:
        InvalidArgumentError: it cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgumentError(
            f"{directory} cannot be the directory of a cluster: {error.strerror}. Name a directory "
            "that you may write to. Nothing was started"
        ) from error


def write_json(path: Path, values: object) -> None:
    """Replace a small file as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(values, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
