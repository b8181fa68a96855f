"""A cluster in one process, and a log in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_bookkeeper.logs.log import Log
from spark_bookkeeper.logs.logs import create_log
from spark_bookkeeper.logs.options import LogOptions
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.testing.ground import Ground


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """Four bookies in directories, metadata in memory."""
    return Ground(tmp_path)


@pytest.fixture
def log(ground: Ground) -> Log:
    return create_log(ground.context, "orders", LogOptions(Quorum(3, 3, 2)))
