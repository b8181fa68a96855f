"""The data source where executors are processes of their own."""

from __future__ import annotations

import pytest

from tests.spark.source_driver import use_source
from tests.spark.standalone import Standalone

pytestmark = [
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(3600),  # only of what hangs
]


def test_ledgers_are_read_followed_and_written_and_what_is_wrong_is_refused(
    python_path: str, standalone: Standalone
) -> None:
    use_source(
        standalone.url,
        "spark.executor.memory=512m",
        "spark.driver.host=127.0.0.1",
        "spark.driver.bindAddress=127.0.0.1",
        f"spark.executorEnv.PYTHONPATH={python_path}",
        python_path=python_path,
    )
