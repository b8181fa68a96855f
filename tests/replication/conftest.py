"""Copies of many small ledgers together wait for each bookie."""

from __future__ import annotations

import pytest

from spark_bookkeeper.storage import retry_policy


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine is no silent bookie."""
    monkeypatch.setattr(retry_policy, "GRACE_SECONDS", 60.0)
