"""Published figures are those of the runs that are kept; no missed target is passed over."""

from __future__ import annotations

from tests.benchmarks import published
from tests.benchmarks.table import read


def test_readme_and_page_show_the_runs_that_are_kept() -> None:
    """``python -m tests.benchmarks.published`` writes them anew."""
    for path, text in published.documents(published.runs()).items():
        assert path.read_text(encoding="utf-8") == text, path.name


def test_each_missed_target_is_accounted_for() -> None:
    missed = set(published.missed(published.runs()))

    assert missed - published.accounted(published.PAGE.read_text(encoding="utf-8")) == set()


def test_runs_of_small_sizes_are_not_published() -> None:
    assert not any(run["quick"] for run in read(published.runs()))
