"""The table of options in documents is the one that the code makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_bookkeeper.source.options import options_table

ROOT = Path(__file__).resolve().parents[2]
HEAD = options_table().splitlines()[0]


@pytest.mark.parametrize("name", ["spark_bookkeeper/source/OPTIONS.md", "README.md"])
def test_a_document_that_shows_the_options_shows_those_there_are(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")

    assert HEAD not in text or options_table() in text
    assert HEAD in text or name == "README.md"
