"""What the simulations share: ``--seed N`` runs one seed instead of all."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seed", type=int, default=None, help="simulation: run this one seed (tests/simulation)"
    )


@pytest.fixture
def only_seed(request: pytest.FixtureRequest) -> int | None:
    """The seed given on the command line; the option exists only under ``tests/simulation``."""
    seed: int | None = request.config.getoption("--seed", default=None)
    return seed
