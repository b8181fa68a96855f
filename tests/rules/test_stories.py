"""Each rule of data safety is taken out of the real code, and a small story goes wrong.

Every scenario runs twice: with the rule it must succeed, without it the same assertions must fail.
The simulation does the same with whole lifetimes; here are the rules it meets rarely, those of
layers above it, and the smallest story that shows why a rule is there.

Source: SLOT-LOG, "Rules"; the names are those in brackets there, or the rule's number.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.testing.ground import Ground
from tests.rules import ledger_stories, recovery_stories, writer_stories
from tests.rules.story import RULES, Rule

STORIES: Final = (writer_stories, recovery_stories, ledger_stories)
"""What they tell is in ``RULES``."""


@pytest.fixture
def ground(case: Rule, tmp_path: Path) -> Ground:
    return Ground(tmp_path, bookies=case.bookies)


@pytest.mark.parametrize("case", RULES, ids=lambda case: case.name)
def test_with_the_rule_the_story_goes_well(case: Rule, ground: Ground) -> None:
    case.story(ground)


@pytest.mark.parametrize("case", RULES, ids=lambda case: case.name)
def test_without_the_rule_the_story_goes_wrong(
    case: Rule, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.take_out(monkeypatch)

    with pytest.raises((AssertionError, BookKeeperError)):
        case.story(ground)
