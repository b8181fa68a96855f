"""Every option of the data source where it can be used, and every trigger of a stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_bookkeeper.session import BookKeeper
from tests.spark.source_cases import CASES, make, run

pytestmark = [pytest.mark.spark, pytest.mark.integration]


@pytest.fixture(scope="module")
def made(bk: BookKeeper) -> dict[str, Any]:
    return make(bk)


@pytest.mark.parametrize("name", CASES)
def test_every_option_does_what_it_says(
    bk: BookKeeper, made: dict[str, Any], name: str, tmp_path: Path
) -> None:
    run(bk, made, name, tmp_path)
