"""SIGTERM ends a command as Ctrl-C does: what runs is cancelled, and nothing is left half done.

This file is imported before everything else of a command, so it imports next to nothing.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


def exit_with(command: Callable[[], int]) -> NoReturn:
    """Exit with the code of a command, whose imports take a moment in which it can be interrupted
    too: what it needs is imported within it.
    """
    try:
        with termination_interrupts():
            code = command()
    except KeyboardInterrupt:  # before it began, or after it ended; in between it says more
        sys.stderr.write("Interrupted.\n")
        code = 1
    sys.exit(code)


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """Meanwhile SIGTERM does what Ctrl-C would do at that moment.

    So who cancels a job at Ctrl-C does it at SIGTERM as well. A command with a handler of its own
    (``bookie start``, ``autorecovery start``) sets it within, and one that is there already stays.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _interrupt(_: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):
        handler(signal.SIGINT, frame)
    else:  # ignored, as in whatever a script starts with `&`: that is of Ctrl-C, and not of this
        raise KeyboardInterrupt
