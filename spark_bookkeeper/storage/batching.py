"""Many runs of plain code over one storage, whose requests are on their way together.

An object store takes its time for each request, and takes many at once. The code of one ledger asks
one thing after the other, since each answer decides what is asked next. So here many of them run in
one thread: each goes on until it asks for something, and when all of them wait, what they ask for
is sent together. That is a round; with its answers all go on to their next question.

What a run does is the same as by itself: its requests, their order, and what it concludes. Only
other runs are between them, as other clients may always be.
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
"""That are begun and not ended: so much is in memory at once. The others begin as these end."""

MOST_BYTES: Final = 128 << 20
"""That a round asks for, unless one request is for more: its answers are in memory at once, and
each run may hold the one before. Large ledgers are read in pieces of an eighth of it."""

_CHANGES_NOTHING: Final[frozenset[Operation]] = frozenset(
    {"read", "read_range", "size", "exists", "modified_ms", "list"}
)

T = TypeVar("T")


class BatchingStorage(RequestStorage):
    """A storage whose requests are gathered while they come from one of the runs of ``together``.

    From elsewhere, and where it is no request that can be gathered, they go straight through.

    Args:
        storage: it has many requests on their way together.
    """

    def __init__(self, storage: Storage) -> None:
        self.inner = storage
        """What it asks."""

    def __repr__(self) -> str:
        return f"Rounds({self.inner!r})"

    def together(self, runs: Sequence[Callable[[], T]]) -> list[Answer[T]]:
        """What each returns, or the error that it raises; any other exception ends them all."""
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
            with ExitStack() as ends:  # each, also when one raises: Ctrl-C may be pressed again
                for one in waiting:
                    ends.callback(one.end)
        return [outcomes[number] for number in range(len(runs))]

    def _round(self, runs: Sequence[_Run[T]]) -> None:
        """One answer for each run that waits for one, and then its next question."""
        numbers: dict[Request, int] = {}
        requests: list[Request] = []
        places: list[list[int]] = []
        for run in runs:
            places.append([])
            for request in run.asks:
                number = len(requests)
                if request.operation in _CHANGES_NOTHING:
                    # What many ask for is asked once: it is sent after all of them asked.
                    number = numbers.setdefault(request, number)
                if number == len(requests):
                    requests.append(request)
                places[-1].append(number)
        answers: Sequence[Any] = []
        if requests:
            try:
                answers = self.ask_all(requests)  # in a run, part of the round that it waits for
            except BookieError as error:  # nothing came back: each is told that
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

    # Passed on

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
        """In a run, its share of them."""
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
    """What each of these returns, or its error; in rounds, where the storage has them."""
    return (
        storage.together(runs)
        if isinstance(storage, BatchingStorage)
        else list(map(_outcome, runs))
    )


class _Run(Generic[T]):
    """One of many runs: it has ended, or waits for answers."""

    def __init__(self, rounds: BatchingStorage, number: int, run: Callable[[], T]) -> None:
        self.rounds = rounds
        self.number = number
        self.outcome: Answer[T]
        """Once it has ended."""
        self.asks: Sequence[Request] = ()
        """What it waits for; nothing before it has begun."""
        self.beside = 1
        """How many runs there are, this one among them."""
        self._run = run
        self._body = greenlet(self._begin)
        # It goes on with the call that it is part of, as the thread does that it runs in.
        self._body.gr_context = copy_context()

    @property
    def has_ended(self) -> bool:
        return bool(self._body.dead)

    def go_on(self, answers: Sequence[Any]) -> None:
        """Until it asks for something, or has ended; an exception that is no outcome is raised."""
        self._body.switch(*([answers] if self._body else []))

    def end(self) -> None:
        """It gets no answer any more."""
        while self._body:  # begun, and not ended
            self._body.throw(GreenletExit)

    # Within it

    def _begin(self) -> None:
        _running.set(self)
        self.outcome = _outcome(self._run)

    def ask(self, requests: Sequence[Request]) -> Sequence[Any]:
        """Wait for these answers, as ``Storage.ask_all`` tells them."""
        self.asks = requests
        answers: Sequence[Any] = self._body.parent.switch()
        return answers


def _affordable(runs: Sequence[_Run[T]]) -> Iterator[_Run[T]]:
    """Those whose answers may be in memory at once. The first ones go on first, so that few hold
    what they read before.
    """
    room = MOST_BYTES
    for number, run in enumerate(runs):
        size = sum(request.moved_bytes for request in run.asks)
        if number == 0 or size <= max(room, 0):
            room -= size
            yield run


_running: ContextVar[_Run[Any] | None] = ContextVar("run", default=None)
"""The run that is going on."""


def _outcome(run: Callable[[], T]) -> Answer[T]:
    try:
        return run()
    except BookKeeperError as error:
        return error
