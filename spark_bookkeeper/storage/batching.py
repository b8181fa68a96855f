"""Many functions in one thread that read and write one storage, and send their requests in batches.

An object store answers slowly, but accepts many requests at once. The code for one ledger sends one
request after the other, since each answer decides the next request. So the functions of many
ledgers run in one thread, each as a greenlet, called a run. A run goes on until it needs an answer.
When all runs wait, their requests are sent as one batch: a round. Then all runs get their answers.

A run sends the same requests in the same order as it would alone, and has the same result. Other
runs act between its requests, as other clients may at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from contextvars import ContextVar, copy_context
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from greenlet import GreenletExit, greenlet
from typing_extensions import Buffer, override

from spark_bookkeeper.errors import BookieError, BookKeeperError
from spark_bookkeeper.runtime.answer import Answer
from spark_bookkeeper.storage.storage import (
    FileSink,
    Operation,
    Request,
    RequestStorage,
    Storage,
    nothing,
)

MOST_RUNS: Final = 256
"""The most runs that are in memory at once. Each of the others begins when one of these ends."""

MOST_BYTES: Final = 128 << 20
"""The most bytes of a round, unless one request is larger: its answers are in memory at once, and
each run may hold its previous one. Large ledgers are read in pieces of an eighth of this."""

_CHANGES_NOTHING: Final[frozenset[Operation]] = frozenset(
    {"read", "read_range", "size", "exists", "modified_ms", "list"}
)

T = TypeVar("T")


class BatchingStorage(RequestStorage):
    """A storage that gathers the requests of the runs of ``together`` into rounds.

    Other calls pass straight through: those from outside a run, and those that are no ``Request``.

    Args:
        storage: the storage below, which sends many requests concurrently.
    """

    def __init__(self, storage: Storage) -> None:
        self.inner = storage
        """The storage below."""

    def __repr__(self) -> str:
        return f"BatchingStorage({self.inner!r})"

    def together(self, runs: Sequence[Callable[[], T]]) -> list[Answer[T]]:
        """Return the result or the library's error of each; another exception ends all runs."""
        outcomes: dict[int, Answer[T]] = {}
        rest = enumerate(runs)
        waiting: list[_Run[T]] = []
        try:
            while waiting or len(outcomes) < len(runs):
                for number, run in islice(rest, MOST_RUNS - len(waiting)):
                    waiting.append(_Run(self, number, run))
                self._round(list(_affordable(waiting)))
                for one in waiting:
                    if one.has_ended:
                        outcomes[one.number] = one.outcome
                waiting = [one for one in waiting if not one.has_ended]
        finally:
            with ExitStack() as ends:  # ends each run even if one raises, as a second Ctrl-C does
                for one in waiting:
                    ends.callback(one.end)
        return [outcomes[number] for number in range(len(runs))]

    def _round(self, runs: Sequence[_Run[T]]) -> None:
        """Send the requests of the runs, and resume each run with its answers."""
        numbers: dict[Request, int] = {}
        requests: list[Request] = []
        places: list[list[int]] = []
        for run in runs:
            places.append([])
            for request in run.asks:
                number = len(requests)
                if request.operation in _CHANGES_NOTHING:
                    # Equal reads share a request, which is sent after the last run asked for it.
                    number = numbers.setdefault(request, number)
                if number == len(requests):
                    requests.append(request)
                places[-1].append(number)
        answers: Sequence[Any] = []
        if requests:
            try:
                answers = self.ask_all(requests)  # inside an outer run, joins the outer round
            except BookieError as error:  # there are no answers: each run gets the error
                answers = [error] * len(requests)
        for run, numbers_of in zip(runs, places, strict=True):
            run.beside = len(runs)
            run.go_on([answers[number] for number in numbers_of])

    def _current(self) -> _Run[Any] | None:
        run = _running.get()
        return run if run is not None and run.rounds is self else None

    @override
    def ask_all(
        self, requests: Sequence[Request], progress: Callable[[], None] = nothing
    ) -> Sequence[Any]:
        run = self._current()
        if run is not None:
            return run.ask(requests) if requests else []
        return self.inner.ask_all(requests, progress)

    @override
    def _ask(self, operation: Operation, path: str, *arguments: Any) -> Any:
        run = self._current()
        if run is not None:
            (answer,) = run.ask([Request(operation, path, arguments)])
            if isinstance(answer, BookieError):
                raise answer
            return answer
        return getattr(self.inner, operation)(path, *arguments)

    @override
    def sync(self, *paths: str) -> None:
        for answer in self.ask_all([Request("sync", path) for path in paths]):
            if isinstance(answer, BookieError):
                raise answer

    @override
    def read_through(
        self, path: str, offset: int, length: int, take: Callable[[Buffer], None]
    ) -> bool:
        run = self._current()
        if run is not None:
            return super().read_through(path, offset, length, take)
        return self.inner.read_through(path, offset, length, take)

    # Calls that pass through

    @property
    @override
    def bookie_id(self) -> str:
        return self.inner.bookie_id

    @property
    @override
    def uri(self) -> str:
        return self.inner.uri

    @property
    @override
    def has_directories(self) -> bool:
        return self.inner.has_directories

    @property
    @override
    def requests_at_once(self) -> int:
        """The storage's number; within a run, the run's part of it."""
        run = self._current()
        at_once = self.inner.requests_at_once
        return at_once if run is None else max(1, at_once // run.beside)

    @override
    def keep(self, directory: str) -> object:
        return self.inner.keep(directory)

    @override
    def create(self, path: str) -> FileSink:
        return self.inner.create(path)

    @override
    def read_again(self, path: str) -> bytes | None:
        return self.inner.read_again(path)

    @override
    def make_directory(self, path: str) -> None:
        self.inner.make_directory(path)

    @override
    def delete(self, *paths: str) -> None:
        self.inner.delete(*paths)

    @override
    def delete_directory(self, path: str) -> None:
        self.inner.delete_directory(path)

    @override
    def temporary_files(self, directory: str) -> Sequence[str]:
        return self.inner.temporary_files(directory)

    @override
    def space(self) -> tuple[int, int] | None:
        return self.inner.space()

    @override
    def inodes(self) -> tuple[int, int] | None:
        return self.inner.inodes()

    @override
    def close(self) -> None:
        self.inner.close()


def together(storage: Storage, runs: Sequence[Callable[[], T]]) -> list[Answer[T]]:
    """Return the result or error of each function. A ``BatchingStorage`` runs them in rounds."""
    return (
        storage.together(runs)
        if isinstance(storage, BatchingStorage)
        else list(map(_outcome, runs))
    )


class _Run(Generic[T]):
    """One run. Between rounds it is not begun, waits for answers, or has ended."""

    def __init__(self, rounds: BatchingStorage, number: int, run: Callable[[], T]) -> None:
        self.rounds = rounds
        self.number = number
        self.outcome: Answer[T]
        """The result, set when the run ends."""
        self.asks: Sequence[Request] = ()
        """The requests that it waits for; none before it has begun."""
        self.beside = 1
        """The number of runs in its last round, with this one."""
        self._run = run
        self._body = greenlet(self._begin)
        # A greenlet would begin with empty context variables, and lose its current storage call.
        self._body.gr_context = copy_context()

    @property
    def has_ended(self) -> bool:
        return bool(self._body.dead)

    def go_on(self, answers: Sequence[Any]) -> None:
        """Resume until it needs answers or ends. Raises any exception that is not its outcome."""
        self._body.switch(*([answers] if self._body else []))

    def end(self) -> None:
        """End it without further answers."""
        while self._body:  # begun, and not ended
            self._body.throw(GreenletExit)

    # Called within the run

    def _begin(self) -> None:
        _running.set(self)
        self.outcome = _outcome(self._run)

    def ask(self, requests: Sequence[Request]) -> Sequence[Any]:
        """Wait for the answers to these requests, as ``Storage.ask_all`` returns them."""
        self.asks = requests
        answers: Sequence[Any] = self._body.parent.switch()
        return answers


def _affordable(runs: Sequence[_Run[T]]) -> Iterator[_Run[T]]:
    """Yield the runs whose answers fit into memory at once. Earlier runs come first, so that few
    runs keep old answers in memory.
    """
    room = MOST_BYTES
    for number, run in enumerate(runs):
        size = sum(request.moved_bytes for request in run.asks)
        if number == 0 or size <= max(room, 0):
            room -= size
            yield run


_running: ContextVar[_Run[Any] | None] = ContextVar("run", default=None)
"""The current run."""


def _outcome(run: Callable[[], T]) -> Answer[T]:
    try:
        return run()
    except BookKeeperError as error:
        return error
