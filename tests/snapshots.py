"""A ground that is made once, and any number of copies of it, for tests that kill at each step."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from copy import copy
from dataclasses import fields
from pathlib import Path
from typing import Final

from spark_bookkeeper.testing.ground import Ground, KillAt
from spark_bookkeeper.testing.memory_store import MemoryCluster
from spark_bookkeeper.testing.memory_underreplication import MemoryTasks

_HELD: Final = ("ledgers", "cookies", "registrations", "writers", "registers", "used_ids")
_TELLS: Final = ("watchers", "vote_watchers")
"""Who watches the tasks is a client of the original."""


class Snapshot:
    """A ground as it is now, whatever writers that it has left open do to it afterwards.

    Hooks are not copied, nor are clients other than the first.
    """

    def __init__(self, ground: Ground) -> None:
        self._kept = _copy(ground, ground.directory.with_name(f"{ground.directory.name}-kept"))

    def copy(self, directory: Path) -> Ground:
        """A ground in ``directory`` that is as the original was."""
        return _copy(self._kept, directory)

    def killed(
        self, directory: Path, step: int = 1, *, first: int = 0
    ) -> Iterator[tuple[int, Ground, KillAt]]:
        """The number of every so many operations, a copy for it, and a hook that kills there. The
        last hook kills nobody.
        """
        for number in itertools.count(first, step):
            kill = KillAt(number)
            yield number, self.copy(directory / str(number)), kill
            shutil.rmtree(directory / str(number))
            if not kill.is_dead:
                return


def _copy(old: Ground, directory: Path) -> Ground:
    made = Ground(directory, 0, old.config, old.runtime, old._open_bookie)
    made.bookie_ids += old.bookie_ids
    made._down |= old._down
    for bookie in old.bookie_ids:
        if old.root(bookie).exists():
            shutil.copytree(old.root(bookie), made.root(bookie), copy_function=shutil.copyfile)
    _copy_metadata(old.cluster, made.cluster)
    made.cluster.notify()
    made.forget()
    return made


def _copy_metadata(old: MemoryCluster, made: MemoryCluster) -> None:
    for name in _HELD:
        getattr(made, name).update(getattr(old, name))
    made.votes.held.update(old.votes.held)
    for field in fields(MemoryTasks):
        if field.name not in _TELLS:
            setattr(made.tasks, field.name, copy(getattr(old.tasks, field.name)))
    made.instance_id = old.instance_id
    made.next_ledger_id = old.next_ledger_id
    made.clock_ms = old.clock_ms
    made._numbers = itertools.count(old.number())
