"""The writer of a ledger, as recorded once in its custom metadata so that people can find it."""

from __future__ import annotations

import getpass
import json
import os
import socket
import sys
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from typing_extensions import Self

_MOST_CHARACTERS: Final = 200
"""The longest name to show; names in the metadata may have any length."""


@dataclass(frozen=True, slots=True)
class WriterInfo:
    """The process that created a ledger, which is its writer for all its life."""

    host: str
    pid: int
    user: str
    application: str
    """The program, or Spark's name of the application."""

    def __str__(self) -> str:
        return f"{self.user}@{self.host}, process {self.pid}, {self.application}"

    @classmethod
    def of_this_process(cls, application: str | None = None) -> Self:
        """Return it from the operating system; ``application`` defaults to the program's name."""
        try:
            user = getpass.getuser()
        except (OSError, KeyError):  # a container's user need not have a name
            user = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
        program = Path(sys.argv[0]).name if sys.argv and sys.argv[0] not in ("", "-c") else ""
        return cls(socket.gethostname(), os.getpid(), user, application or program or "python")

    @lru_cache(maxsize=8)  # noqa: B019  (a process has one or two of them)
    def encode(self) -> bytes:
        """Return bytes for ``decode``."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self | None:
        """Return the writer from these bytes; ``None`` if they are anything else."""
        try:
            told = json.loads(data)
            pid = told["pid"]
            if type(pid) is not int:
                return None
            names = [_printable(told[name]) for name in ("host", "user", "application")]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return cls(names[0], pid, names[1], names[2])


def _printable(name: object) -> str:
    """Replace characters that move a terminal's cursor. Raises ``TypeError`` if it is no text."""
    if not isinstance(name, str):
        raise TypeError
    return "".join(c if c.isprintable() else "?" for c in name[:_MOST_CHARACTERS])
