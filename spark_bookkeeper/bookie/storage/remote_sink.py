"""A file in pieces on a file system of fsspec: it is there when it is finished, and whole."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from tempfile import SpooledTemporaryFile
from typing import Any, Final

from typing_extensions import Buffer, override

from spark_bookkeeper.bookie.storage.storage import FileSink

_SPOOLED_BYTES: Final = 64 << 20
"""Beyond this a file in pieces waits on the local disk instead of in memory."""

Translated = Callable[[str], AbstractContextManager[None]]
"""Within it, errors of the SDK are those of the bookie, about this path."""


class SpooledSink(FileSink):
    """For file systems that would show a file while it is still written: one put at the end."""

    def __init__(
        self, path: str, translated: Translated, put_if_absent: Callable[[str, bytes], bool]
    ) -> None:
        self._path = path
        self._translated = translated
        self._put_if_absent = put_if_absent
        self._file = SpooledTemporaryFile(max_size=_SPOOLED_BYTES)  # noqa: SIM115  (kept open)

    @override
    def write(self, data: Buffer) -> None:
        with self._translated(self._path):
            self._file.write(data)

    @override
    def finish(self) -> None:
        with self._translated(self._path):
            self._file.seek(0)
            if not self._put_if_absent(self._path, self._file.read()):
                raise FileExistsError(f"{self._path}: the name is taken")
        self.abandon()

    @override
    def abandon(self) -> None:
        self._file.close()


class UploadSink(FileSink):
    """A multipart upload: the object appears when it is completed."""

    def __init__(self, path: str, translated: Translated, file: Any) -> None:
        self._path = path
        self._translated = translated
        self._file = file

    @override
    def write(self, data: Buffer) -> None:
        with self._translated(self._path):
            self._file.write(memoryview(data).cast("B"))

    @override
    def finish(self) -> None:
        with self._translated(self._path):
            self._file.close()
        self._file = None

    @override
    def abandon(self) -> None:
        if self._file is not None:
            with suppress(Exception):
                self._file.discard()
            with suppress(Exception):
                self._file.closed = True  # or its destructor would complete the upload
            self._file = None
