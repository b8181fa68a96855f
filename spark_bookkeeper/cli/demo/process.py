"""The first writer as the demo sees it: a process that reports events, and can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any, Final

from spark_bookkeeper.errors import BookKeeperError

PATIENCE_SECONDS: Final = 120.0
"""A writer that reports nothing for this long is stuck, and is killed."""

Event = dict[str, Any]


class WriterProcess:
    """A running ``writer.py``, whose events are read in order."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    def next(self, name: str) -> Event:
        """Return the next event of that name.

        Raises:
            BookKeeperError: the process ended, or reported nothing for ``PATIENCE_SECONDS``.
        """
        for event in self._events():
            if event["event"] == name:
                return event
        said = self._log.read_text(errors="replace").strip().splitlines()
        raise BookKeeperError(
            "the writer ended before its time; the last it said: "
            + (" | ".join(said[-3:]) or "nothing")
        )

    def kill(self) -> list[Event]:
        """Kill it and what it started (SIGKILL); return the events that were not read yet."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        return list(self._events())

    def _events(self) -> Iterator[Event]:
        assert self._process.stdout is not None
        while True:
            stuck = Timer(PATIENCE_SECONDS, os.killpg, (self._process.pid, signal.SIGKILL))
            stuck.start()
            try:
                line = self._process.stdout.readline()
            finally:
                stuck.cancel()
            if not line.endswith(b"\n"):  # the last line of a killed process may be a piece
                return
            yield json.loads(line)


@contextmanager
def writer_process(metadata_uri: str, place: Path) -> Iterator[WriterProcess]:
    """Run ``writer.py`` on ``place/rows.arrow``; the process is gone at the end.

    Args:
        metadata_uri: the cluster.
        place: a directory for its log and for what its Spark leaves behind when it is killed.
    """
    java = f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} -Djava.io.tmpdir={place}".strip()
    directories = {"TMPDIR": str(place), "SPARK_LOCAL_DIRS": str(place)}
    log, module = place / "writer.log", "spark_bookkeeper.cli.demo.writer"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", module, metadata_uri, str(place / "rows.arrow")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, **directories, "JAVA_TOOL_OPTIONS": java},
            start_new_session=True,  # killed with its Java, and not by our own Ctrl-C
        )
    writer = WriterProcess(process, log)
    with process:
        try:
            yield writer
        finally:
            writer.kill()
