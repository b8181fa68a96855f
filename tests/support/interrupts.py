"""Ctrl-C at an arbitrary moment of a process, so that it does reach the program.

CPython drops an interrupt that meets the callback of a weak reference, or a destructor: it
prints "Exception ignored in: ...", and the program goes on (Python's documentation, "Note on
Signal Handlers and Exceptions"). A person presses again then, and so do these tests. An
interrupt that is lost without a word is pressed once, and the test fails, as it should.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import IO

_PATIENCE_SECONDS = 120.0


class Noise:
    """What a process writes to standard error, heard line by line by a thread of its own."""

    def __init__(self, pipe: IO[str] | None) -> None:
        assert pipe is not None, "standard error is a pipe"
        self._lines: list[str] = []
        self._pipe = pipe
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    @property
    def text(self) -> str:
        """Everything so far."""
        return "".join(self._lines)

    @property
    def dropped_interrupts(self) -> int:
        """How many were dropped, and told to the end: whoever presses into the telling is lost."""
        told = len(re.findall("^KeyboardInterrupt", self.text, re.M))
        return min(self.text.count("Exception ignored"), told)

    def whole(self) -> str:
        """Everything, once the process ended."""
        self._thread.join(_PATIENCE_SECONDS)
        return self.text

    def _listen(self) -> None:
        for line in self._pipe:
            self._lines.append(line)


def interrupt_until_it_ends(
    process: subprocess.Popen[str],
    press: Callable[[], None],
    noise: Noise,
    seconds: float = _PATIENCE_SECONDS,
) -> int:
    """Press, and again after each press that was dropped; returns how often.

    Raises ``AssertionError`` when the process does not end in time.
    """
    deadline = time.monotonic() + seconds
    presses = 0
    while process.poll() is None:
        assert time.monotonic() < deadline, f"{presses} x Ctrl-C did not end it: {noise.text}"
        if noise.dropped_interrupts == presses:
            presses += 1
            with suppress(ProcessLookupError):  # it ended by itself just now
                press()
        time.sleep(0.002)
    return presses


def functions_of(thread: threading.Thread) -> list[str]:
    """The names of the functions that a thread is in, the innermost last."""
    frame = sys._current_frames()[thread.ident or 0]
    return [summary.name for summary in traceback.extract_stack(frame)]
