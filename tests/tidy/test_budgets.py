"""The package does not grow: lines of Python in each folder.

A change that raises a limit explains why in a decision record; one that removes code lowers it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "spark_bookkeeper"

LIMITS = {
    "agent": 4_250,
    "autorecovery": 4_550,
    "backup": 2_100,
    "bookie": 7_000,
    "cli": 8_500,
    "client": 9_750,
    "delta": 2_000,
    "doctor": 1_400,
    "local_cluster": 1_600,
    "logs": 2_800,
    "metadata": 7_550,
    "protocol": 3_400,
    "replication": 5_450,
    "runtime": 1_550,
    "session": 1_950,
    "source": 3_500,
    "spark": 2_000,
    "storage": 3_600,
    "table": 1_550,
    "testing": 5_300,
}
TOP = 2_150
"""Modules beside the folders."""

ALL = 76_000
"""Without ``testing/``."""


def lines() -> Counter[str]:
    counted: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).parts
        if parts[0] != "_discovery":
            folder = parts[0] if len(parts) > 1 else "."
            counted[folder] += len(path.read_text(encoding="utf-8").splitlines())
    return counted


@pytest.mark.parametrize("folder", LIMITS)
def test_a_folder_keeps_its_limit(folder: str) -> None:
    assert lines()[folder] <= LIMITS[folder]


def test_the_whole_keeps_its_limit_and_every_folder_has_one() -> None:
    counted = lines()

    assert counted.keys() == {*LIMITS, "."}
    assert counted["."] <= TOP
    assert counted.total() - counted["testing"] <= ALL
