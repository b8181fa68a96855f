"""Every verb explains itself, with an example that names it."""

from __future__ import annotations

import pytest

from spark_bookkeeper.cli.main import NOUNS, run
from tests.cli.conftest import commands

ALL = dict(commands())


def test_every_noun_is_there() -> None:
    assert {f"spark-bookkeeper {noun}" for noun in NOUNS} <= ALL.keys()


@pytest.mark.parametrize("name", ALL)
def test_a_command_has_a_sentence_and_an_example(name: str) -> None:
    command = ALL[name]
    epilog = command.epilog or ""

    assert command.help
    assert epilog.startswith("Example: ")
    assert name.split()[-1] in epilog


def test_a_list_of_commands_cuts_no_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """click ends a sentence after 45 characters with three dots, just where it gets interesting."""
    for noun in NOUNS:  # `demo` and `doctor` have none
        assert run([noun, "--help"]) == 0

        _, _, listed = capsys.readouterr().out.partition("Commands:")
        assert "..." not in listed.replace("BOOKIE...", ""), noun


def test_an_option_that_a_command_refuses_is_not_offered(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["log", "create", "--help"]) == 0

    shown = capsys.readouterr().out
    assert "--ensemble-size" in shown
    assert [each for each in ("--name", "--owner", "--label") if each in shown] == []
