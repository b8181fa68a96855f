"""What a process of ours calls itself in the cluster, and how it is told from BookKeeper's.

BookKeeper's auditor and workers use the id of a bookie. Ours put a word before it that no bookie
id of BookKeeper's has, so that who reads a vote knows whose it is.
"""

from __future__ import annotations

import os
import socket
from typing import Final

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.ids import BookieId, parse_bookie_id

_OURS: Final = "spark-bookkeeper@"

FOREIGN: Final = (
    "the auditor is {name}, a process of Apache BookKeeper, which cannot read bookies of this "
    "library. Unless its auditorPeriodicCheckInterval is 0, its check of all ledgers marks every "
    "replica of every ledger as missing. Workers here look at each of them and withdraw what is "
    "healthy. Stop it (its `autorecovery` daemon, or autoRecoveryDaemonEnabled=false), and one of "
    "ours takes over"
)
"""What is said of a foreign auditor; ``name`` is its own."""

DISABLED: Final = (
    "autorecovery is disabled for the whole cluster: nobody publishes the ledgers of a lost "
    "bookie, and nobody repairs what was published. When maintenance is over: `spark-bookkeeper "
    "autorecovery enable`"
)
"""What is said while the switch is off."""

NONE_RUNS: Final = (
    "no autorecovery runs, so nobody notices a lost bookie: start it with `spark-bookkeeper "
    "autorecovery start`, or beside bookies with `bookie start --autorecovery`"
)
"""What is said where there is no auditor."""


def process_name(bookie: BookieId | None = None) -> str:
    """Of this process: by the bookie beside which it runs, or by machine and process id."""
    if bookie is not None:
        return f"{_OURS}{bookie}"
    host = "".join(c if c.isascii() and (c.isalnum() or c in "-.") else "-" for c in _host())
    return f"{_OURS}{host}-{os.getpid()}"


def is_ours(name: str) -> bool:
    """Whether a process of this library has that name."""
    return name.startswith(_OURS)


def beside(name: str) -> BookieId | None:
    """The bookie beside which a process of ours runs, by its name; ``None`` for one alone."""
    try:
        return parse_bookie_id(name.removeprefix(_OURS))
    except InvalidArgumentError:
        return None


def _host() -> str:
    return socket.gethostname() or "unknown"
