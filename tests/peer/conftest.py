"""Apache BookKeeper is there, or the tests beside this file are skipped with the reason."""

from __future__ import annotations

import pytest

from tests.peer import peer


@pytest.fixture(scope="session", autouse=True)
def is_there() -> None:
    reason = peer.missing()
    if reason is not None:
        pytest.skip(reason)
