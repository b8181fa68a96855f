"""Who writes a ledger: written once into its custom metadata, for people to find them."""

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
"""Of a name that is shown; what anybody put into the metadata does not fill a screen."""


@dataclass(frozen=True, slots=True)
class WriterInfo:
    """The process that created a ledger, which is its writer for all its life."""

    host: str
    pid: int
    user: str
    application: str
    """The program, or what Spark calls the application."""

    def __str__(self) -> str:
        return f"{self.user}@{self.host}, process {self.pid}, {self.application}"

    @classmethod
    def of_this_process(cls, application: str | None = None) -> Self:
        """As the operating system tells it; without ``application``, by the program's name."""
        try:
            user = getpass.getuser()
        except (OSError, KeyError):  # a container's user need not have a name
            user = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
        program = Path(sys.argv[0]).name if sys.argv and sys.argv[0] not in ("", "-c") else ""
        return cls(socket.gethostname(), os.getpid(), user, application or program or "python")

    @lru_cache(maxsize=8)  # noqa: B019  (a process has one or two of them)
    def encode(self) -> bytes:
        """As ``decode`` reads it."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self | None:
        """Whoever is told of in these bytes, which may be anything; ``None`` when nobody is."""
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
    """Text without what would move a terminal's cursor. Raises ``TypeError`` for another type."""
    if not isinstance(name, str):
        raise TypeError
    return "".join(c if c.isprintable() else "?" for c in name[:_MOST_CHARACTERS])
