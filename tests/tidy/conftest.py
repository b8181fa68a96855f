"""What a program checks about the whole project begins with the tests, and ends beside them."""

from __future__ import annotations

import pytest

from tests.tidy import programs

WHOLE_SUITE = 1_000
"""So many tests take long enough that something can be done beside them."""


def pytest_collection_finish(session: pytest.Session) -> None:
    names = {item.name for item in session.items}
    if len(session.items) >= WHOLE_SUITE and not session.config.option.collectonly:
        for name in names & programs.SLOW.keys():
            programs.begin(programs.SLOW[name])


def pytest_sessionfinish() -> None:
    programs.end_all()
