"""The table of options in documents is the one that the code makes, and all of it is tried."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.source.options import SourceOptions, Use, option_name, options_table
from tests.spark.source_cases import CASES, EVERYWHERE

ROOT = Path(__file__).resolve().parents[2]
HEAD = options_table().splitlines()[0]


@pytest.mark.parametrize("name", ["spark_bookkeeper/source/OPTIONS.md", "README.md"])
def test_a_document_that_shows_the_options_shows_those_there_are(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")

    assert HEAD not in text or options_table() in text
    assert HEAD in text or name == "README.md"


def test_every_option_is_tried_on_spark_wherever_it_can_be_used() -> None:
    tried = {(case.use, name) for case in CASES.values() for name in (*case.options, *EVERYWHERE)}
    tried = {(use, re.sub(r"^(zk|storage)\..*", r"\1.*", name)) for use, name in tried}

    wanted = {
        (use, option_name(field.name))
        for field in fields(SourceOptions)
        for use in Use
        if use & field.metadata["use"] and (use, option_name(field.name)) not in NOT_TRIED
    }
    assert wanted - tried == set()
    assert tried - wanted == set(), "it can be tried, or means nothing there"


NOT_TRIED = {(Use.STREAM_WRITE, "password"): "a stream is written to a log, which has its own"}
"""What is refused where the table says that it can be used, and why."""


@pytest.mark.parametrize(
    "word",
    [
        *["availableNow=", "processingTime=", "once=", "continuous="],
        *['"append"', '"overwrite"', '"error"', '"ignore"', '"complete"', '"update"'],
    ],
)
def test_every_trigger_and_mode_is_tried_on_spark(word: str) -> None:
    assert word in on_spark()


NEVER_MET = {
    "BOOKKEEPER_ERROR": "the root of the tree; only its subclasses are raised",
    "BOOKKEEPER_LEDGER": "a branch of the tree",
    "BOOKKEEPER_LOG": "a branch of the tree",
    "BOOKKEEPER_BOOKIE": "a branch of the tree",
    "BOOKKEEPER_METADATA": "a branch of the tree",
    "BOOKKEEPER_LOG_EXISTS": "the data source makes a log only where there is none",
    "BOOKKEEPER_APPEND_FAILED": "of a writer's own appends; here tasks write and one call seals",
    "BOOKKEEPER_LEDGER_CLOSED": "of a writer's own close; whoever finds a write's ledger closed "
    "tells that it was fenced, and a write to a log goes on in a new one",
    "BOOKKEEPER_LOG_OWNERSHIP_LOST": "after twenty writes of others in a row between two steps; "
    "tests/logs/test_atomic.py has it",
    "BOOKKEEPER_VERSION_CONFLICT": "every compare-and-swap is repeated in one loop, which ends",
    "BOOKKEEPER_BOOKIE_FULL": "one bookie's answer: told among the causes of the error that is met",
    "BOOKKEEPER_BOOKIE_READ_ONLY": "one bookie's answer, as above",
    "BOOKKEEPER_SLOT_TAKEN": "one bookie's answer, as above",
    "BOOKKEEPER_CORRUPT_ENTRY": "one bookie's answer, as above",
    "BOOKKEEPER_PROCESS_LIMIT": "of a process that may open no more files; "
    "tests/storage/test_local.py has it",
    "BOOKKEEPER_COOKIE_MISMATCH": "of an agent that starts",
    "BOOKKEEPER_UNSUITABLE_STORAGE": "of a partition that is formatted",
    "BOOKKEEPER_MISSING_REQUIREMENT": "of Spark 4.0 alone, where it is a Python error of "
    "register_source; test_source_reads.py has it",
}
"""Conditions that no read or write on Spark ends with, and why."""


def test_every_condition_is_met_on_spark_or_it_is_said_why_it_cannot_be() -> None:
    text = on_spark()
    conditions = {kind.condition for kind in kinds(BookKeeperError)}
    short = {condition: condition.removeprefix("BOOKKEEPER_") for condition in conditions}
    met = {
        condition
        for condition, name in short.items()
        if re.search(rf'(BOOKKEEPER_|"){name}\b(?!_)', text)
    }

    assert conditions - met - NEVER_MET.keys() == set()
    assert met & NEVER_MET.keys() == set(), "it is met, so it need not be excused"
    assert NEVER_MET.keys() - conditions == set()


def kinds(kind: type[BookKeeperError]) -> set[type[BookKeeperError]]:
    """A class with all below it."""
    return {kind}.union(*(kinds(each) for each in kind.__subclasses__() if is_ours(each)))


def is_ours(kind: type[BookKeeperError]) -> bool:
    return kind.__module__ == BookKeeperError.__module__


def on_spark() -> str:
    """The tests of the data source on Spark, as a text."""
    tests = (ROOT / "tests" / "spark").glob("*source_*.py")
    return "".join(path.read_text(encoding="utf-8") for path in tests)
