"""SIGTERM ends a command as Ctrl-C does: running work is cancelled, and nothing is left half done.

This module is imported before all others of a command, so it imports almost nothing.
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
    """Make SIGTERM do the same as Ctrl-C while the block runs.

    So code that cancels a job at Ctrl-C does so at SIGTERM. A command with a handler of its own
    (``bookie start``, ``autorecovery start``) sets it in the block. An existing handler stays.
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
    """Whether to end without waiting for anything."""


AT_ONCE_SECONDS: Final = 1.0
"""The most time to close sessions for a command that is to end at once."""


def _end_at_once() -> None:
    """End this process if it has not ended within ``AT_ONCE_SECONDS``."""

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
    """Yield an event that Ctrl-C and SIGTERM set, for a command that then ends when it is ready.

    A second signal interrupts the command, as Ctrl-C does any other. Current work may take hours,
    or wait for a disk that hangs, and these commands may be ended at any moment. A command that
    waits for several things skips the rest if ``is_at_once``. Only the end of a session cannot be
    skipped. If ZooKeeper does not answer it, ``AT_ONCE_SECONDS`` later the process is ended as by
    ``kill -9``. That loses nothing; its registration ends with the session's time-out.

    Args:
        end_at_once: called at the second signal; makes sure that the process ends.
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
"""The message of an interrupted command."""

_UNSAID: Final[list[None]] = [None]
"""Empty after a thread has printed that the command was interrupted."""


def is_first_to_say() -> bool:
    """Return whether the caller has to print that the command was interrupted.

    After a second signal, either the command or the timer of ``_end_at_once`` ends the process. The
    first of them prints the message.
    """
    try:
        _UNSAID.pop()  # in one step, as both may come at once
    except IndexError:
        return False
    return True


STOPPING: Final = "stopping, once what is under way is done; Ctrl-C again stops at once"
"""The message after the first signal, for commands that use ``until_signalled``."""


def _interrupt(_: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):
        handler(signal.SIGINT, frame)
    else:  # SIGINT is ignored after `&` in a script, but SIGTERM must still end the command
        raise KeyboardInterrupt
