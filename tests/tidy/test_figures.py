"""Published figures are those of the runs that are kept; no missed target is passed over."""

from __future__ import annotations

import inspect

from tests.benchmarks import published
from tests.benchmarks.run import POINTS
from tests.benchmarks.table import figures, read


def test_readme_and_page_show_the_runs_that_are_kept() -> None:
    """``python -m tests.benchmarks.published`` writes them anew."""
    for path, text in published.documents(published.runs()).items():
        assert path.read_text(encoding="utf-8") == text, path.name


def test_each_missed_target_is_accounted_for() -> None:
    missed = set(published.missed(published.runs()))

    assert missed - published.accounted(published.PAGE.read_text(encoding="utf-8")) == set()


def test_runs_of_small_sizes_are_not_published() -> None:
    assert not any(run["quick"] for run in read(published.runs()))


def test_a_line_that_no_run_has_is_left_out_until_one_has_it() -> None:
    measured = figures(read(published.runs()))
    absent = [each for each in published.CHOSEN if (each.point, each.what) not in measured]

    shown = published.short(published.runs())
    for chosen in absent:
        assert chosen.words not in shown
        module = inspect.getmodule(POINTS[chosen.point])
        assert module is not None
        assert f'"{chosen.what}"' in inspect.getsource(module), "it is measured by this name"
