"""Every option of the data source where it can be used, and every trigger of a stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_bookkeeper.session import BookKeeper
from spark_bookkeeper.source.options import Use
from tests.spark.source_cases import CASES, make, run

pytestmark = [pytest.mark.spark, pytest.mark.integration]


@pytest.fixture(scope="module")
def made(bk: BookKeeper) -> dict[str, Any]:
    return make(bk)


SLOW = (
    *(name for name, case in CASES.items() if case.use in (Use.STREAM, Use.STREAM_WRITE)),
    *("a ledger", "a new ledger"),
)
"""Seconds each. In the plain run, ``source/`` and the files beside this one show most of their
options one by one."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] * (name in SLOW)) for name in CASES]
)
def test_every_option_does_what_it_says(
    bk: BookKeeper, made: dict[str, Any], name: str, tmp_path: Path
) -> None:
    run(bk, made, name, tmp_path)
