"""A small cluster for each test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_bookkeeper.bookie.storage import new_file
from spark_bookkeeper.bookie.storage.file_system import FileSystem
from spark_bookkeeper.testing.ground import Ground


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """Four bookies in directories, metadata in memory."""
    return Ground(tmp_path)


@pytest.fixture
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No disk is waited for, so that only those bookies are slow that a test makes slow."""
    monkeypatch.setattr(new_file, "sync_content", lambda _: None)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(FileSystem, "sync", lambda _: None)
