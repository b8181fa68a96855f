"""Copies of many small ledgers together wait for each bookie."""

from __future__ import annotations

import pytest

from spark_bookkeeper.client.bookies import batch_client as together


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine is no silent bookie."""
    monkeypatch.setattr(together, "GRACE_SECONDS", 60.0)
