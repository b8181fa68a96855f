"""The table of options in documents is the one that the code makes."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from spark_bookkeeper.source.options import SourceOptions, option_name, options_table

ROOT = Path(__file__).resolve().parents[2]
HEAD = options_table().splitlines()[0]


@pytest.mark.parametrize("name", ["spark_bookkeeper/source/OPTIONS.md", "README.md"])
def test_a_document_that_shows_the_options_shows_those_there_are(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")

    assert HEAD not in text or options_table() in text
    assert HEAD in text or name == "README.md"


def test_every_option_is_tried_on_spark() -> None:
    tests = (ROOT / "tests" / "spark").glob("test_source_*.py")
    text = "".join(path.read_text(encoding="utf-8") for path in tests)

    names = [option_name(field.name).removesuffix("*") for field in fields(SourceOptions)]
    assert [name for name in names if name not in text] == []
