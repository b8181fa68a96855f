"""Standard error under ``spark-submit``, which starts Python with stderr joined to stdout.

A job that promises "the result on stdout and nothing else" cannot keep that with its own two
descriptors: both are one pipe, which the JVM copies to its stdout. Only the JVM has the real
stderr, so error output is written through the JVM.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from typing_extensions import override


@contextmanager
def separate_stderr() -> Iterator[None]:
    """While the block runs, ``sys.stderr`` is the stderr of ``spark-submit``; elsewhere a no-op."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        yield
        return
    before = sys.stderr
    sys.stderr = _JvmStderr(_jvm_stderr(), before)
    try:
        yield
    finally:
        sys.stderr = before


def _jvm_stderr() -> Any:
    from pyspark import SparkContext

    # Connects to the JVM that started this process, as the session will; makes no SparkContext.
    SparkContext._ensure_initialized()  # noqa: SLF001  (no public way)
    jvm: Any = SparkContext._jvm  # noqa: SLF001  (no public way)
    return jvm.java.lang.System.err


class _JvmStderr(io.TextIOBase):
    """Writes text to the JVM's stderr; once the JVM is gone, to the earlier stream."""

    def __init__(self, stream: Any, fallback: Any) -> None:
        self._stream = stream
        self._fallback = fallback
        self._lock = threading.Lock()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # read only, as it is of a real stream
        return "utf-8"

    @override
    def writable(self) -> bool:
        return True

    @override
    def isatty(self) -> bool:
        return False

    @override
    def write(self, text: str, /) -> int:
        if not isinstance(text, str):  # click tries out whether a stream takes bytes
            raise TypeError("this stream takes text")
        with self._lock:
            try:
                getattr(self._stream, "print")(text)  # noqa: B009  (a keyword once, a name in Java)
                self._stream.flush()
            except (Py4JError, OSError):
                self._fallback.write(text)
        return len(text)
