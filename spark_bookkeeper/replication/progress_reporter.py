"""Report progress repeatedly, with the bookies that hold up the work and the slow items."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from spark_bookkeeper.client.bookies.known_bookies import Bookies
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.errors import MetadataError
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.replication.runner import Progress, no_progress
from spark_bookkeeper.replication.stragglers import Straggler, said
from spark_bookkeeper.runtime.auto_reset_event import AutoResetEvent

TELL_SECONDS: Final = 2.0
"""The time between two queries for silent bookies."""

LOOKS_AT_ONCE: Final = 32
"""The most bookies that one query reaches; the next query takes the next bookies."""


@contextmanager
def telling(
    progress: Progress,
    context: ClientContext,
    slowest: Callable[[], Sequence[Straggler]],
    phase: str,
    total: int,
    before: int = 0,
    bytes_before: int = 0,
    *,
    is_elsewhere: bool,
) -> Iterator[Progress]:
    """Yield a callback for the progress of one part of some work. ``progress`` gets each report as
    progress of the whole work. It also gets a report every ``TELL_SECONDS``, with the bookies that
    are waited for and the slow items.

    Args:
        slowest: returns the running items that take long, the longest first.
        phase: the name of the work until its first report.
        total: the number of items of the whole work.
        before: items that were done before this part; ``bytes_before`` is their size.
        is_elsewhere: whether other processes call the bookies; they report only at their end.
    """
    if progress is no_progress:
        yield no_progress
        return
    bookies, runtime = context.bookies, context.runtime
    changed = runtime.condition()
    ended = AutoResetEvent(runtime)
    last = (phase, before, bytes_before)
    slow = ""
    is_over = False

    def tell() -> None:
        name, done, size = last
        waits = "" if is_over else f"{_waiting(bookies)}{slow}"
        progress(f"{name}{waits}", done, total, size)

    def hear(name: str, done: int, of: int, size_bytes: int) -> None:
        nonlocal last, is_over
        with changed:
            last = (name, before + done, bytes_before + size_bytes)
            is_over = done == of
            tell()

    def tell_again() -> None:
        nonlocal slow
        look = _looks(bookies)
        while not ended.wait(TELL_SECONDS):
            if is_elsewhere:
                next(look)
            found = slowest()
            with changed:
                slow = said(found)
                if not is_over:
                    tell()

    runtime.spawn("waiting", tell_again)
    try:
        yield hear
    finally:
        ended.set()


def _waiting(bookies: Bookies) -> str:
    """Return the silent bookies, as a suffix of a phase's name; empty if none is silent."""
    silent = sorted(bookies.silent())
    named = " and ".join(f"{bookie} for {seconds:.0f} s" for bookie, _, seconds in silent)
    return f", waiting for {named}" if named else ""


def _looks(bookies: Bookies) -> Iterator[None]:
    """Query whether the bookies answer, some bookies at each step.

    A worker elsewhere that waits for a hanging bookie cannot report it before the work ends. The
    bookie hangs for all clients, so this process queries it too.
    """
    names: Sequence[BookieId] = ()
    while True:
        if not names:
            with suppress(MetadataError):
                names = bookies.known()
        bookies.look(names[:LOOKS_AT_ONCE])
        names = names[LOOKS_AT_ONCE:]
        yield
