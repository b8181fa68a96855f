"""The first writer from the demo's side: a process that reports events, and can be killed."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from spark_bookkeeper.errors import BookKeeperError

PATIENCE_SECONDS: Final = 120.0
"""A writer without any event for this long counts as stuck."""

Event = dict[str, Any]
"""A report of the writer, and ``at``: its time, on our monotonic clock."""


class WriterProcess:
    """Runs ``writer.py``. Use it in ``with``: at the end of the block the process is ended.

    Args:
        metadata_uri: the cluster.
        rows: an Arrow file of the rows to append.
        scratch: a directory for its log, and for files that a killed Spark leaves behind.
    """

    def __init__(self, metadata_uri: str, rows: Path, scratch: Path) -> None:
        self._command = [
            sys.executable,
            "-m",
            "spark_bookkeeper.cli.demo.writer",
            metadata_uri,
            str(rows),
        ]
        scratch.mkdir()
        self._log = scratch / "writer.log"
        java = f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} -Djava.io.tmpdir={scratch}".strip()
        self._environment = {
            **os.environ,
            "TMPDIR": str(scratch),
            "SPARK_LOCAL_DIRS": str(scratch),
            "JAVA_TOOL_OPTIONS": java,
        }
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()

    def __enter__(self) -> WriterProcess:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment,
                start_new_session=True,  # its Java is killed with it; our Ctrl-C does not reach it
            )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._listener.join(10.0)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """Kill it and its child processes (SIGKILL), as a power cut would. Idempotent."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def poll(self, seconds: float) -> Event | None:
        """Return the next event, or ``None`` after this time without one.

        Raises:
            BookKeeperError: the process has ended on its own.
        """
        try:
            event = self._events.get(timeout=seconds)
        except queue.Empty:
            return None
        if event is None:
            said = self._log.read_text(errors="replace").strip().splitlines()
            raise BookKeeperError(
                "the writer ended before its time; the last it said: "
                + (" | ".join(said[-3:]) or "nothing")
            )
        return event

    def wait_for(self, name: str) -> Event:
        """Return the next event of that name.

        Raises:
            BookKeeperError: the process ended, or sent nothing for ``PATIENCE_SECONDS``.
        """
        while True:
            event = self.poll(PATIENCE_SECONDS)
            if event is None:
                raise BookKeeperError(f"the writer said nothing for {PATIENCE_SECONDS:.0f} s")
            if event["event"] == name:
                return event

    def remaining(self) -> Iterator[Event]:
        """Yield the unread events of a killed writer."""
        self._listener.join(10.0)
        while True:
            event = self._events.get()
            if event is None:
                return
            yield event

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):  # the last line of a killed process may be incomplete
                self._events.put({**json.loads(line), "at": time.monotonic()})
        self._events.put(None)
