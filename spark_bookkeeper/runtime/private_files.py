"""Files that hold passwords or keys: their mode, and whether other users can read one."""

from __future__ import annotations

import logging
import os
import re
import shlex
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

PRIVATE_MODE: Final = 0o600
"""The mode of a new file that holds secrets."""

_NAMES: Final = (
    r"auth|connection_?string|cookie|cred|digest|headers|key(?!file)|pass|pwd|"
    r"(?<![a-z])sas(?!l)|secret|token"
)
_SECRET_NAME: Final = re.compile(_NAMES, re.IGNORECASE)
"""Matches secret options of ZooKeeper's client and of fsspec's file systems."""
_SECRET_VALUE: Final = re.compile(rf":\S*@|\?\S*=|(?:{_NAMES})[\w-]*[\"']?\s*[:=]", re.IGNORECASE)
"""Matches ``user:password@``, a signed URI, and text such as JSON that names a secret."""


def holds_a_secret(options: Mapping[str, object]) -> bool:
    """Whether options may hold a password or a key, by their names or what their values are like.

    A doubtful value counts as secret: to type it again costs less than to show a secret.
    """
    return any(
        _SECRET_NAME.search(name)
        or (
            holds_a_secret(value)
            if isinstance(value, Mapping)
            else _SECRET_VALUE.search(str(value))
        )
        for name, value in options.items()
    )


def may_be_read_by_others(path: str | os.PathLike[str]) -> bool:
    """Whether the modes of a file and of the directories above it let every user read it.

    A mode that lets the file's group read it is accepted: an operator chose the group's members.
    """
    try:
        file = Path(path).resolve()
        return bool(file.stat().st_mode & stat.S_IROTH) and all(
            directory.stat().st_mode & stat.S_IXOTH for directory in file.parents
        )
    except OSError:
        return False


def warn_if_others_may_read(path: str | os.PathLike[str], what: str) -> None:
    """Log a warning if every user of this machine can read a file that holds ``what``."""
    if may_be_read_by_others(path):
        log.warning(
            "%s holds %s, and every user of this machine may read it: `chmod 600 %s`",
            path,
            what,
            shlex.quote(str(path)),
        )
