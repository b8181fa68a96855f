"""SIGTERM ends a command as Ctrl-C does: what runs is cancelled, and nothing is left half done.

This file is imported before everything else of a command, so it imports next to nothing.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """Meanwhile SIGTERM does what Ctrl-C would do at that moment.

    So who cancels a job at Ctrl-C does it at SIGTERM as well. A command with a handler of its own
    (``bookie start``, ``autorecovery start``) sets it within, and one that is there already stays.
    """
    _UNSAID[:] = [None]
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Stopping(threading.Event):
    """Set when a command is to end."""

    is_at_once = False
    """Whether nothing is to be waited for any more."""


AT_ONCE_SECONDS: Final = 1.0
"""So long a command that is to end at once may take to give its sessions back."""


def _end_at_once() -> None:
    """End this process when it has not ended by itself."""

    def end() -> None:
        if is_first_to_say():
            with suppress(OSError):
                os.write(2, f"{INTERRUPTED}\n".encode())
        os._exit(1)

    timer = threading.Timer(AT_ONCE_SECONDS, end)
    timer.daemon = True
    timer.start()


@contextmanager
def until_signalled(end_at_once: Callable[[], None] = _end_at_once) -> Iterator[Stopping]:
    """An event that is set by Ctrl-C and SIGTERM, for a command that then ends in its own time.

    A second one interrupts it, as Ctrl-C does any other: what is under way may take hours, or wait
    for a disk that hangs, and whatever these commands do may be ended at any moment. Who waits for
    several things leaves out those that are left, by ``is_at_once``. What cannot be left out, the
    end of a session where ZooKeeper does not answer, takes no longer than ``AT_ONCE_SECONDS``: then
    the process is ended as by ``kill -9``, which loses nothing, and its registration ends with the
    session's time-out.

    Args:
        end_at_once: called at the second signal; sees to it that the process ends.
    """
    stopping = Stopping()

    def stop(number: int, frame: FrameType | None) -> None:
        if stopping.is_set():
            stopping.is_at_once = True
            end_at_once()
            raise KeyboardInterrupt
        stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


INTERRUPTED: Final = "Interrupted. What was under way may be unfinished."
"""What a command says that was interrupted."""

_UNSAID: Final[list[None]] = [None]
"""Empty once somebody has said that the command was interrupted."""


def is_first_to_say() -> bool:
    """Whether nobody has said yet that the command was interrupted; then the caller does.

    A command that is told a second time to end is ended by whoever comes first: itself, or the
    thread that waits no longer for what it gives back.
    """
    try:
        _UNSAID.pop()  # in one step, as both may come at once
    except IndexError:
        return False
    return True


STOPPING: Final = "stopping, once what is under way is done; Ctrl-C again stops at once"
"""What such a command says when it was told to end."""


def _interrupt(_: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):
        handler(signal.SIGINT, frame)
    else:  # ignored, as in whatever a script starts with `&`: that is of Ctrl-C, and not of this
        raise KeyboardInterrupt
