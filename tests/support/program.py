"""Our own command line as a process, to be stopped, killed and frozen by tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

_PATIENCE_SECONDS: Final = 120.0


class Program:
    """``spark-bookkeeper`` with some arguments; what it says goes to a file.

    Args:
        log: what it writes is added here.
        arguments: as typed after ``spark-bookkeeper``.
        environment: added to that of this process.
    """

    def __init__(self, log: Path, *arguments: object, environment: Mapping[str, str]) -> None:
        self.log = log
        self._size = log.stat().st_size if log.exists() else 0
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "spark_bookkeeper", *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **environment},
            )

    @property
    def is_running(self) -> bool:
        """Whether it has not ended; a frozen one has not."""
        return self.process.poll() is None

    @property
    def said(self) -> str:
        """Everything that it wrote so far."""
        return self.log.read_bytes()[self._size :].decode(errors="replace")

    def wait_for(self, text: str) -> None:
        """Return when it has written this."""
        until(lambda: text in self.said or not self.is_running, f"{self.log}: {text}", 0.1)
        assert text in self.said, f"it ended without saying {text!r}: {self.said[-2000:]}"

    def freeze(self) -> None:
        """It stops in the middle of whatever it does."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on as if nothing had happened."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone. Idempotent."""
        self.process.kill()
        self.process.wait(_PATIENCE_SECONDS)

    def stop(self) -> int:
        """SIGTERM; returns its exit code when it has ended."""
        self.thaw()
        self.process.terminate()
        return self.process.wait(_PATIENCE_SECONDS)


def until(
    holds: Callable[[], bool],
    what: str,
    every_seconds: float = 0.2,
    seconds: float = _PATIENCE_SECONDS,
) -> float:
    """Wait until something holds; returns after how many seconds it did."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds, f"after {seconds} s still not: {what}"
        time.sleep(every_seconds)
    return time.monotonic() - began
