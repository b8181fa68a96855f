"""The names of this library's processes in the cluster, which differ from BookKeeper's.

BookKeeper's auditor and workers use the id of a bookie. This library puts a word before it that no
BookKeeper bookie id has, so that a reader of an election node knows whose it is.
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
"""The message about a foreign auditor; ``name`` is the auditor's name."""

DISABLED: Final = (
    "autorecovery is disabled for the whole cluster: nobody publishes the ledgers of a lost "
    "bookie, and nobody repairs what was published. When maintenance is over: `spark-bookkeeper "
    "autorecovery enable`"
)
"""The message while autorecovery is disabled."""

NONE_RUNS: Final = (
    "no autorecovery runs, so nobody notices a lost bookie: start it with `spark-bookkeeper "
    "autorecovery start`, or beside bookies with `bookie start --autorecovery`"
)
"""The message while there is no auditor."""


def process_name(bookie: BookieId | None = None) -> str:
    """Return this process's name, from its bookie, or from its machine and process id."""
    if bookie is not None:
        return f"{_OURS}{bookie}"
    host = "".join(c if c.isascii() and (c.isalnum() or c in "-.") else "-" for c in _host())
    return f"{_OURS}{host}-{os.getpid()}"


def is_ours(name: str) -> bool:
    """Whether a process of this library has that name."""
    return name.startswith(_OURS)


def beside(name: str) -> BookieId | None:
    """Return the bookie next to which the named process runs; ``None`` if it runs alone."""
    try:
        return parse_bookie_id(name.removeprefix(_OURS))
    except InvalidArgumentError:
        return None


def _host() -> str:
    return socket.gethostname() or "unknown"
