"""The probe: test whether a file system can hold a bookie.

Fencing depends on one promise of the file system: of all concurrent creators of a name, exactly
one succeeds, and no reader ever sees a part of its file. The probe tests that with threads of
this process. It can find a file system that breaks the promise, but cannot prove that one keeps
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor  # noqa: TID251  (see race_in_threads)
from contextlib import suppress
from functools import partial
from typing import Final

from spark_bookkeeper.errors import BookieUnavailableError, UnsuitableStorageError
from spark_bookkeeper.storage.storage import Storage

PROBE_DIRECTORY: Final = ".probe"
"""The directory in which the probe writes; removed when it ends."""

_RACERS: Final = 8
_CONTENT_BYTES: Final = 1 << 20


Race = Callable[[Sequence[Callable[[], None]]], None]
"""Runs functions concurrently, and returns when all have ended. Raises the error of one of them."""


def race_in_threads(functions: Sequence[Callable[[], None]]) -> None:
    """Run the race in real threads, without ``Runtime``: only these test a real file system."""
    with ThreadPoolExecutor(len(functions)) as threads:
        for future in [threads.submit(function) for function in functions]:
            future.result()


OnCheck = Callable[[str], None]
"""Called with a short description of each check that has passed."""


def ignore_progress(check: str) -> None:
    """Do nothing: the default ``on_check``, for callers that need only the result."""


def probe(
    storage: Storage,
    token: Callable[[], str],
    *,
    race: Race = race_in_threads,
    on_check: OnCheck = ignore_progress,
) -> None:
    """Test whether a file system can hold a bookie. Leaves no files behind.

    Args:
        storage: the partition; its root exists.
        token: makes names never used before.
        race: how to run concurrent creators of one name.
        on_check: called with each check that has passed, in order.

    Raises:
        UnsuitableStorageError: it cannot. Shows the check that failed and what was seen.
        BookieUnavailableError: no answer.

    Source: SLOT-LOG rule R18.
    """
    directory = f"{PROBE_DIRECTORY}/{token()}"
    storage.make_directory(PROBE_DIRECTORY)
    storage.make_directory(directory)
    try:
        _check_race(storage, directory, race, on_check)
        _check_files(storage, directory, on_check)
    finally:
        with suppress(BookieUnavailableError):  # an error of a check is more important
            storage.delete_directory(directory)
    storage.delete_directory(PROBE_DIRECTORY)


def _check_race(storage: Storage, directory: str, race: Race, on_check: OnCheck) -> None:
    contents = [bytes([ord("a") + n]) * _CONTENT_BYTES for n in range(_RACERS)]
    path = f"{directory}/race"
    winners, seen = _run_race(storage, path, contents, race)
    if not winners:  # the answer to the winner may have been lost (rule R3)
        path = f"{directory}/second-race"
        winners, seen = _run_race(storage, path, contents, race)
    if len(winners) != 1:
        _refuse(storage, f"{len(winners)} of {_RACERS} writers of one name were told that they won")
    on_check(f"of {_RACERS} that create one name at once, exactly one is told that it won")
    (winner,) = winners
    if seen - {_CONTENT_BYTES}:
        _refuse(
            storage, f"a reader saw a piece of a file: {sorted(seen)} of {_CONTENT_BYTES} bytes"
        )
    on_check("no reader ever sees a piece of a file")
    if storage.put_if_absent(path, contents[winner - 1]):
        _refuse(storage, "a name that exists could be created again")
    on_check("a name that exists cannot be created again")
    if storage.read(path) != contents[winner]:
        _refuse(storage, "the content is not that of the writer who was told that it won")
    on_check("the content is that of the winner")


def _run_race(
    storage: Storage, path: str, contents: Sequence[bytes], race: Race
) -> tuple[list[int], set[int]]:
    """Run one race. Return the racers whose put returned True, and the sizes that a reader saw
    meanwhile; -1 stands for content that no racer wrote.
    """
    won: dict[int, bool] = {}
    ended: list[int] = []
    seen: set[int] = set()

    def put(number: int) -> None:
        try:
            won[number] = storage.put_if_absent(path, contents[number])
        finally:
            ended.append(number)

    def watch() -> None:
        while len(ended) < _RACERS:
            data = storage.read(path)
            if data is not None:
                seen.add(len(data) if len(set(data)) == 1 else -1)

    race([*(partial(put, number) for number in range(_RACERS)), watch])
    return [number for number in won if won[number]], seen


def _check_files(storage: Storage, directory: str, on_check: OnCheck) -> None:
    path = f"{directory}/file"
    if storage.read(path) is not None:
        _refuse(storage, "a file that was never written can be read")
    storage.put_if_absent(path, b"content")  # the read shows whether it succeeded (rule R3)
    storage.sync(path)
    if storage.read(path) != b"content":
        _refuse(storage, "a file does not have the content that was put into it")
    if storage.read_range(path, 3, 2) != b"te" or storage.size(path) != len(b"content"):
        _refuse(storage, "a range or the size of a file is wrong")
    on_check("a file can be synced, read back in part and whole, and has the right size")
    if "file" not in storage.list(directory):
        _refuse(storage, "a new file is missing from the listing; is it cached?")
    on_check("a new file is in the listing at once")
    sink = storage.create(f"{directory}/part")
    sink.write(b"piece")
    if storage.read(f"{directory}/part") is not None:
        _refuse(storage, "a file is visible while it is still being written")
    sink.finish()
    if storage.read(f"{directory}/part") != b"piece":
        _refuse(storage, "a finished file does not have its content")
    on_check("a file that is still being written is not visible")
    storage.delete(path)
    if storage.read(path) is not None:
        _refuse(storage, "a deleted file can still be read")
    on_check("a deleted file is gone")


def _refuse(storage: Storage, reason: str) -> None:
    raise UnsuitableStorageError(
        f"{storage.uri} cannot hold a bookie: {reason}. Fencing needs files that appear whole and "
        "have one creator. Use a local disk, or an object store with conditional puts. Nothing "
        "was formatted",
        bookie_id=storage.bookie_id,
        uri=storage.uri,
        reason=reason,
    )
