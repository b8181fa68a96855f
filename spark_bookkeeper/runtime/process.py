"""What belongs to one process: its threads, locks and connections go neither along nor away.

A forked child has its parent's objects, but not the threads that would answer them, and what it
says to ZooKeeper the parent would answer for. A pickle has not even the objects. Both are refused
at once, with what to write instead.
"""

from __future__ import annotations

import os
from typing import NoReturn

from spark_bookkeeper.errors import InvalidArgumentError

here: object = object()
"""Stands for this process; a forked child has another one. Compared with ``is``, which costs an
append next to nothing; asking for the process's number is a system call."""


def _renew() -> None:
    global here
    here = object()


os.register_at_fork(after_in_child=_renew)


def check_here(made_in: object, what: str, remedy: str) -> None:
    """Raises ``InvalidArgumentError`` in another process than the one that made it.

    Args:
        made_in: ``here``, as it was then.
        what: the object, as a person calls it: ``writer of ledger 7``.
        remedy: what to write instead.
    """
    if made_in is not here:
        raise InvalidArgumentError(
            f"this {what} was made in the process that this one was forked from, and its threads "
            f"and connections stayed there; nothing was done. Connect in this process: {remedy}"
        )


def refuse_pickling(what: str, remedy: str) -> NoReturn:
    """Raises ``InvalidArgumentError``: the object cannot be sent to another process."""
    raise InvalidArgumentError(
        f"a {what} belongs to the process that made it, and cannot be sent to another one (in the "
        f"closure of a UDF, for example). Connect inside the function that runs there: {remedy}"
    )
