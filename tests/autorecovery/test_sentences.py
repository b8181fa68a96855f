"""``SENTENCES.md`` names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import spark_bookkeeper

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
CONFORMANCE = Path(spark_bookkeeper.__file__).parent / "testing" / "conformance"


def test_every_sentence_is_shown_by_tests_that_exist() -> None:
    page = (HERE / "SENTENCES.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    promises = [row for row in rows if not row.startswith("| sentence |")]
    suite = _tests_in(
        "\n".join(path.read_text(encoding="utf-8") for path in CONFORMANCE.glob("*.py"))
    )
    missing: list[str] = []

    assert len(promises) > 50
    for row in promises:
        named = re.findall(r"`([\w/]+\.py)::(\w+)(?:\[(\w+)\])?`", row.split("|")[2])
        shared = re.findall(r"conformance `(\w+)`", row)
        if not named and not shared:
            missing.append(row)
        for file, function, rule in named:
            path = TESTS / file
            text = path.read_text(encoding="utf-8") if path.is_file() else ""
            if function not in _tests_in(text) or (f"def {rule}(" not in text and rule):
                missing.append(f"{file}::{function}[{rule}]")
        missing += [name for name in shared if name not in suite]

    assert missing == []


def _tests_in(text: str) -> set[str]:
    """The functions that pytest would take for tests."""
    return set(re.findall(r"^ *def (test_\w+)\(", text, re.MULTILINE))
