"""Nodes in memory where ZooKeeper would be."""

from __future__ import annotations

import pytest

from spark_bookkeeper.metadata.zookeeper import link
from spark_bookkeeper.testing.znodes import ZNodes, client_class


@pytest.fixture
def znodes(monkeypatch: pytest.MonkeyPatch) -> ZNodes:
    """What every client of ZooKeeper in a test finds."""
    made = ZNodes()
    monkeypatch.setattr(link, "Client", client_class(made))
    return made
