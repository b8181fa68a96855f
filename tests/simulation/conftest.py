"""What the simulations share: ``--seed N`` runs one seed instead of all."""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakKeyDictionary

import pytest

from spark_bookkeeper.protocol.ids import NO_ENTRY, BookieId
from spark_bookkeeper.protocol.writer import BookiesLookedAt, ChangeEnsemble, Command, Event, Writer
from tests.simulator.checkers import InvariantError
from tests.simulator.quiet import quiet


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seed", type=int, default=None, help="simulation: run this one seed (tests/simulation)"
    )


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The history of a lifetime tells what happened."""
    with quiet():
        yield


@pytest.fixture
def only_seed(request: pytest.FixtureRequest) -> int | None:
    """The seed given on the command line; the option exists only under ``tests/simulation``."""
    seed: int | None = request.config.getoption("--seed", default=None)
    return seed


@pytest.fixture(autouse=True)
def _left_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bookie that is left has stored its share of what is acknowledged.

    Or it has no agent, and lacked some of it at the last two looks. Nothing that can be read later
    shows it: as many others as are needed have what it lacks.
    """
    step = Writer.step
    late: WeakKeyDictionary[Writer, set[BookieId]] = WeakKeyDictionary()
    given_up: WeakKeyDictionary[Writer, set[BookieId]] = WeakKeyDictionary()

    def judged(self: Writer, event: Event) -> list[Command]:
        if isinstance(event, BookiesLookedAt):
            stored = dict(zip(self.ensemble, self._stored_through, strict=True))
            now = {
                b for b in event.gone.values() if stored.get(b, NO_ENTRY) < self.last_add_confirmed
            }
            given_up[self] = late.get(self, set()) & now
            late[self] = now
        commands = step(self, event)
        for wanted in commands:
            if isinstance(wanted, ChangeEnsemble) and wanted.may_stay:
                for position, bookie in wanted.failed.items():
                    has = self._stored_through[position]
                    if has < wanted.first - 1 and bookie not in given_up.get(self, ()):
                        raise InvariantError(
                            f"left-bookies-are-whole: {bookie} is left and has nothing behind "
                            f"entry {has}, and {wanted.first - 1} is acknowledged"
                        )
        return commands

    monkeypatch.setattr(Writer, "step", judged)
