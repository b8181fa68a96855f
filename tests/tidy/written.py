"""Documents whose blocks are run as somebody who follows them would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest

from spark_bookkeeper.local_cluster.background import stop_detached

ROOT = Path(__file__).resolve().parents[2]

RUN = ("python", "console")
"""Blocks that are run. ``sh`` blocks are the two commands, ``text`` and ``toml`` show something."""

SHOWN = ("sh", "text", "toml", "sql")


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int


def blocks(document: Path) -> list[Block]:
    text = document.read_text(encoding="utf-8")
    return [
        Block(found[1], found[2], text[: found.start()].count("\n") + 1)
        for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


def chapters(document: Path) -> Iterator[tuple[str, str]]:
    """Neighbouring blocks of one language as one script, numbered by their lines."""
    runnable = [block for block in blocks(document) if block.language in RUN]
    for language, found in groupby(runnable, lambda block: block.language):
        lines: list[str] = []
        for block in found:
            lines += [""] * (block.line - len(lines)) if language == "python" else []
            lines += block.text.splitlines()
        yield language, "\n".join(lines) + "\n"


def commands(chapter: str) -> list[str]:
    return [line.removeprefix("$ ") for line in chapter.splitlines()]


def environment(place: Path) -> dict[str, str]:
    """Where somebody works who has the project and its commands at hand."""
    (place / "jobs").symlink_to(ROOT / "jobs")
    (place / "bin").mkdir()
    shim = place / "bin" / "spark-bookkeeper"
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m spark_bookkeeper "$@"\n')
    shim.chmod(0o755)
    here = str(Path(sys.executable).parent)
    made = {
        **os.environ,
        "PATH": os.pathsep.join([str(place / "bin"), here, os.environ.get("PATH", "")]),
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
    }
    made.pop("SPARK_BOOKKEEPER_METADATA_URI", None)
    return made


@contextmanager
def somewhere(place: Path) -> Iterator[dict[str, str]]:
    """The same; a cluster that a page started there, and did not come to stop, is stopped."""
    around = environment(place)
    try:
        yield around
    finally:
        stop_detached(place / "cluster")


def use_jars(place: Path, jars: str) -> None:
    """Have commands archive with a session of Spark that has these jars of Delta."""
    shim = place / "bin" / "spark-bookkeeper"
    shim.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        "import spark_bookkeeper as sbk\n"
        "from spark_bookkeeper.cli.main import main\n"
        "if 'archive' in sys.argv:\n"
        f"    sbk.spark_session(delta=True, spark_jars={jars!r})\n"
        "sys.exit(main())\n"
    )
    _submit_with(place / "bin" / "spark-submit", jars)


def _submit_with(shim: Path, jars: str) -> None:
    """Have ``spark-submit`` take these jars where it is told to fetch them: the same ones."""
    real = Path(sys.executable).with_name("spark-submit")
    shim.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        "arguments = sys.argv[1:]\n"
        "if '--packages' in arguments:\n"
        "    at = arguments.index('--packages')\n"
        "    _, name, version = arguments[at + 1].split(':')\n"
        f"    assert f'/{{name}}-{{version}}.jar' in {jars!r}, arguments[at + 1]\n"
        f"    arguments[at : at + 2] = ['--jars', {jars!r}]\n"
        f"os.execv({str(real)!r}, [{str(real)!r}, *arguments])\n"
    )
    shim.chmod(0o755)


def follow(
    document: Path, place: Path, around: dict[str, str], instead: tuple[str, str] = ("", "")
) -> None:
    """Run its blocks in order; a console block leaves its variables to the next.

    Args:
        instead: a text in blocks of Python, and what stands in its place.
    """
    kept = place / "environment"
    for language, chapter in chapters(document):
        if language == "python":
            script = chapter.replace(*instead) if instead[0] else chapter
            (place / "chapter.py").write_text(script, encoding="utf-8")
            call = [sys.executable, "chapter.py"]
        else:
            lines = ["set -euo pipefail", *commands(chapter), f"env -0 > '{kept}'"]
            call = ["bash", "-c", "\n".join(lines)]
        done = subprocess.run(
            call, cwd=place, env=around, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            pytest.fail(
                f"a {language} chapter of {document.name} ended with {done.returncode}\n"
                f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}",
                pytrace=False,
            )
        if language == "console":
            around = dict(
                pair.split("=", 1) for pair in kept.read_text().split("\0") if "=" in pair
            )
