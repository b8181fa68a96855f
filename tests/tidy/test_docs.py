"""The blocks of the pages in ``docs`` run as they stand, and the README leads to each page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tidy import written
from tests.tidy.written import ROOT, RUN, SHOWN, blocks

PAGES = sorted((ROOT / "spark_bookkeeper" / "docs").glob("*.md"))


def test_the_readme_leads_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    assert PAGES
    assert [page.name for page in PAGES if f"spark_bookkeeper/docs/{page.name}" not in readme] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_is_of_a_kind_that_is_run_or_shown(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= {*RUN, *SHOWN}


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_works_as_written(page: Path, tmp_path: Path) -> None:
    written.follow(page, tmp_path, written.environment(tmp_path))
