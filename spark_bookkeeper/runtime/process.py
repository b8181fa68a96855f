"""Objects that belong to one process: they cannot be used in a fork, nor be pickled.

A forked child has its parent's objects, but not the threads that serve them, and ZooKeeper would
take its requests for the parent's. A pickle does not even have the objects. Both uses raise at
once, and the message shows what to write instead.
"""

from __future__ import annotations

import os
from typing import NoReturn

from spark_bookkeeper.errors import InvalidArgumentError

here: object = object()
"""Identifies this process; a forked child has another object. Comparing it with ``is`` costs an
append almost nothing, while reading the process's id is a system call."""


def _renew() -> None:
    global here
    here = object()


os.register_at_fork(after_in_child=_renew)


def check_here(made_in: object, what: str, remedy: str) -> None:
    """Raise ``InvalidArgumentError`` in another process than the one that made the object.

    Args:
        made_in: the value of ``here`` in that process.
        what: the object, as users name it: ``writer of ledger 7``.
        remedy: what to write instead.
    """
    if made_in is not here:
        raise InvalidArgumentError(
            f"this {what} was made in the process that this one was forked from, and its threads "
            f"and connections stayed there; nothing was done. Connect in this process: {remedy}"
        )


def refuse_pickling(what: str, remedy: str) -> NoReturn:
    """Raise ``InvalidArgumentError``: the object cannot be sent to another process."""
    raise InvalidArgumentError(
        f"a {what} belongs to the process that made it, and cannot be sent to another one (in the "
        f"closure of a UDF, for example). Connect inside the function that runs there: {remedy}"
    )
