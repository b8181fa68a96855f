"""How far work has come, told again and again with who is waited for, and what takes long."""

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
"""Between two looks for bookies that are waited for."""

LOOKS_AT_ONCE: Final = 32
"""Bookies that are asked for a sign of life at such a look, in turn."""


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
    """What to tell, in the block, how far one part of some work is; ``progress`` hears it as said
    of the whole, and now and then once more, with the bookies that are waited for and the items
    that take long.

    Args:
        slowest: the items under way that take long, the longest first.
        phase: what the work is called before it says so.
        total: items of the whole.
        before: items that were done before this part, and ``bytes_before`` theirs.
        is_elsewhere: other processes ask the bookies, which tell nothing before they end.
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
    """Who is waited for, to be said behind the name of a phase; empty: nobody."""
    silent = sorted(bookies.silent())
    named = " and ".join(f"{bookie} for {seconds:.0f} s" for bookie, _, seconds in silent)
    return f", waiting for {named}" if named else ""


def _looks(bookies: Bookies) -> Iterator[None]:
    """Look whether the bookies answer, some of them at each turn.

    Who works elsewhere waits for a bookie that hangs, and cannot say so before the work ends. It
    hangs for everybody, so this process asks for itself.
    """
    names: Sequence[BookieId] = ()
    while True:
        if not names:
            with suppress(MetadataError):
                names = bookies.known()
        bookies.look(names[:LOOKS_AT_ONCE])
        names = names[LOOKS_AT_ONCE:]
        yield
