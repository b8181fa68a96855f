"""The cluster that is backed up, and the one that takes its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_bookkeeper.testing.ground import Ground, InlineRuntime


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path / "old", runtime=InlineRuntime())


@pytest.fixture
def empty(tmp_path: Path) -> Ground:
    """Another cluster, with more bookies."""
    return Ground(tmp_path / "new", bookies=5, runtime=InlineRuntime())


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Where a table will be."""
    return tmp_path / "lake"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "backup")
