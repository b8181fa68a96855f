"""A small cluster for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_bookkeeper.testing.ground import Ground


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """Four bookies in directories, metadata in memory."""
    return Ground(tmp_path)
