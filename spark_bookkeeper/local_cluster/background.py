"""A local cluster in a process of its own, which runs until it is stopped.

``start_detached`` starts ``python -m spark_bookkeeper.local_cluster.background`` in its own session
and waits until the cluster serves. That process owns a ``LocalCluster``. It writes its process id
to ``background.json`` in the cluster's directory.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import spark_bookkeeper
from spark_bookkeeper.connection import Connection
from spark_bookkeeper.errors import (
    BookKeeperError,
    MetadataUnavailableError,
)
from spark_bookkeeper.local_cluster.java import java_home
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.local_cluster.local_state import make_directory, write_json
from spark_bookkeeper.local_cluster.processes import birth_of
from spark_bookkeeper.metadata.store import Registration
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.runtime.runtime import ThreadRuntime

_START_SECONDS = 120.0
_STOP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class LocalStatus:
    """The state of the detached cluster in a directory."""

    directory: Path
    is_running: bool
    pid: int | None = None
    metadata_uri: str | None = None
    bookie_ids: tuple[BookieId, ...] = ()
    """The bookies that were not destroyed."""
    registrations: tuple[Registration, ...] = ()
    """The registrations of the bookies that are alive now."""
    problem: str | None = None
    """The problem of the cluster, as a sentence."""

    @property
    def log_path(self) -> Path:
        """The file to which the process writes its log."""
        return self.directory / "cluster.log"


def start_detached(directory: str | os.PathLike[str], bookies: int = 4) -> LocalStatus:
    """Start a detached cluster, and return once it serves; a running one is left as it is.

    Raises:
        MissingRequirementError, MetadataUnavailableError, InvalidArgumentError: as
            ``LocalCluster.start``; nothing is left running.
    """
    place = Path(directory).expanduser().absolute()
    running = status(place)
    if running.is_running:
        return running
    java_home()  # without Java, it raises before anything is made
    make_directory(place)
    ready, told = os.pipe()
    package_parent = str(Path(spark_bookkeeper.__file__).parent.parent)
    search_path = os.pathsep.join(filter(None, [package_parent, os.environ.get("PYTHONPATH")]))
    try:
        with open(place / "cluster.log", "ab") as output:
            process = subprocess.Popen(
                [
                    *[sys.executable, "-m", __name__, str(place)],
                    *["--bookies", str(bookies), "--ready-fd", str(told)],
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[told],
                start_new_session=True,
                cwd=place,
                env={**os.environ, "PYTHONPATH": search_path},
            )
    finally:
        os.close(told)
    try:
        answer = _read_answer(ready)
    except BaseException:
        _end(process)  # Ctrl-C during the start: nothing is left running
        raise
    finally:
        os.close(ready)
    if answer is None:
        _end(process)
        raise MetadataUnavailableError(
            f"the local cluster in {place} did not start. Its log {place / 'cluster.log'} ends:\n"
            f"{_last_lines(place / 'cluster.log')}",
            nothing_changed=True,
        )
    if "error" in answer:
        _end(process)
        raise _rebuilt(answer)
    process.returncode = 0  # it outlives this process, which never waits for it
    return status(place)


def stop_detached(directory: str | os.PathLike[str]) -> bool:
    """Stop the detached cluster of a directory, and wait for its end. Return whether one ran."""
    place = Path(directory).expanduser().absolute()
    found = _read_background(place)
    if found is None:
        return False
    pid, birth = int(found["pid"]), found["birth"]
    deadline = time.monotonic() + _STOP_SECONDS
    was_running = bool(birth_of(pid) == birth)
    with suppress(ProcessLookupError):  # it has just ended by itself
        if was_running:
            os.kill(pid, signal.SIGTERM)
        while birth_of(pid) == birth:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)  # its ZooKeeper ends with it
            time.sleep(0.02)
    (place / "background.json").unlink(missing_ok=True)
    return was_running


def status(directory: str | os.PathLike[str]) -> LocalStatus:
    """Return the state of a directory's detached cluster; a broken cluster raises nothing."""
    place = Path(directory).expanduser().absolute()
    found = _read_background(place)
    if found is None:
        return LocalStatus(place, is_running=False)
    pid, uri = int(found["pid"]), str(found["metadata_uri"])
    if birth_of(pid) != found["birth"]:
        return LocalStatus(
            place,
            is_running=False,
            problem=f"process {pid} ended without being stopped; everything is still in "
            f"{place}, and `spark-bookkeeper local start --directory {shlex.quote(str(place))}` "
            "starts it again",
        )
    bookie_ids = tuple(BookieId(bookie_id) for bookie_id in found["bookie_ids"])
    registrations: tuple[Registration, ...] = ()
    problem = None
    try:
        store = Connection(uri).open_store(ThreadRuntime())
        try:
            registrations = tuple(store.registrations())
        finally:
            store.close()
    except BookKeeperError as error:
        problem = error.message
    return LocalStatus(place, True, pid, uri, bookie_ids, registrations, problem)


def run(directory: Path, bookies: int, ready: int) -> int:
    """Own a cluster until a signal ends it; report the start to the descriptor ``ready``."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    background = directory / "background.json"
    cluster = LocalCluster(directory, bookies)
    try:
        cluster.start()
        write_json(
            background,
            {
                "pid": os.getpid(),
                "birth": birth_of(os.getpid()),
                "metadata_uri": cluster.metadata_uri,
                "bookie_ids": cluster.bookie_ids,
            },
        )
    except BookKeeperError as error:
        cluster.close()
        _tell(ready, {"error": type(error).__name__, "message": error.message})
        return 1
    _tell(ready, {"metadata_uri": cluster.metadata_uri})
    with cluster:
        while not stopping.wait(1.0):
            pass  # a signal just before an endless wait would be noticed only at its end
    background.unlink(missing_ok=True)
    return 0


def _tell(descriptor: int, answer: dict[str, str]) -> None:
    with suppress(BrokenPipeError):  # its starter is gone, and the cluster stays
        os.write(descriptor, json.dumps(answer).encode())
    os.close(descriptor)


def _read_answer(descriptor: int) -> dict[str, str] | None:
    """Return the process's report of its start; ``None`` if it ended or timed out."""
    deadline = time.monotonic() + _START_SECONDS
    received = b""
    while (left := deadline - time.monotonic()) > 0:
        readable, _, _ = select.select([descriptor], [], [], left)
        piece = os.read(descriptor, 65536) if readable else b""
        received += piece
        if readable and not piece:
            break
    try:
        answer: dict[str, str] = json.loads(received)
    except ValueError:
        return None
    return answer


def _rebuilt(answer: dict[str, str]) -> BookKeeperError:
    """Return the error that the other process reported."""
    from spark_bookkeeper import errors

    error_class = getattr(errors, answer["error"], BookKeeperError)
    assert issubclass(error_class, BookKeeperError)
    return error_class(answer["message"], nothing_changed=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _read_background(directory: Path) -> dict[str, Any] | None:
    try:
        values: dict[str, Any] = json.loads((directory / "background.json").read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    return values


def _last_lines(path: Path, count: int = 15) -> str:
    lines = path.read_text(errors="replace").splitlines()[-count:] if path.exists() else []
    return "\n".join(f"  {line}" for line in lines) or "  (nothing was logged)"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Own a local cluster until SIGTERM.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--bookies", type=int, required=True)
    parser.add_argument("--ready-fd", type=int, required=True)
    options = parser.parse_args(arguments)
    return run(options.directory, options.bookies, options.ready_fd)


if __name__ == "__main__":
    sys.exit(main())
