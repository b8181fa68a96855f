"""The blocks of the pages in ``docs`` run as they stand, and the README leads to all of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest

import spark_bookkeeper as sbk
from spark_bookkeeper.cli.main import NOUNS, root
from spark_bookkeeper.config import AutorecoveryConfig, BookieConfig, ClientConfig
from spark_bookkeeper.local_cluster.background import status
from tests.tidy import reference, written
from tests.tidy.written import ROOT, RUN, SHOWN, blocks

DOCS = ROOT / "spark_bookkeeper" / "docs"
PAGES = sorted(DOCS.glob("*.md"))

TEXTS = [ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "spark_bookkeeper" / "CHANGELOG.md"]
"""That name commands as well."""

WITH_DELTA = [page for page in PAGES if "delta=True" in "".join(b.text for b in blocks(page))]
PLAIN = [page for page in PAGES if page not in WITH_DELTA]


@pytest.fixture
def around(tmp_path: Path) -> Iterator[dict[str, str]]:
    with written.somewhere(tmp_path) as environment:
        yield environment


def test_the_readme_leads_to_the_index_and_the_index_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    index = (DOCS / "README.md").read_text(encoding="utf-8")

    assert "(spark_bookkeeper/docs/README.md)" in readme
    assert "(SECURITY.md)" in readme
    assert [page.name for page in PAGES if f"({page.name})" not in index] == ["README.md"]


def test_the_readme_is_read_in_ten_minutes() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 170


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_is_of_a_kind_that_is_run_or_shown(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= {*RUN, *SHOWN}


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PLAIN, ids=lambda page: page.stem)
def test_a_page_works_as_written(page: Path, tmp_path: Path, around: dict[str, str]) -> None:
    written.follow(page, tmp_path, around)


@pytest.mark.slow
@pytest.mark.delta
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", WITH_DELTA, ids=lambda page: page.stem)
def test_a_page_about_tables_works_as_written(
    page: Path, tmp_path: Path, around: dict[str, str], delta_jars: list[Path]
) -> None:
    """With the jars at hand: each session would fetch them."""
    jars = ",".join(str(jar) for jar in delta_jars)
    with_jars = ("delta=True", f"delta=True, spark_jars={jars!r}")
    written.use_jars(tmp_path, jars)
    written.follow(page, tmp_path, around, with_jars)


@pytest.mark.slow
@pytest.mark.integration
def test_a_page_that_fails_leaves_no_cluster_running(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    lines = (
        "$ spark-bookkeeper local start --directory ./cluster --bookies 1",
        "$ spark-bookkeeper local status --directory ./cluster --uri > uri",
        "$ false",
    )
    page.write_text("\n".join(["```console", *lines, "```", ""]))

    with pytest.raises(pytest.fail.Exception), written.somewhere(tmp_path) as around:
        written.follow(page, tmp_path, around)

    assert (tmp_path / "uri").read_text().startswith("zk"), "it ran"
    assert not status(tmp_path / "cluster").is_running


def test_the_reference_of_the_api_is_the_one_that_docstrings_make() -> None:
    """``python -m tests.tidy.reference`` writes it anew."""
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page()


def test_every_public_name_is_in_the_reference() -> None:
    assert set(sbk.__all__) - reference.shown() == set()


def called(page: Path) -> Iterator[str]:
    """Commands in the running text and in the blocks of a page."""
    text = page.read_text(encoding="utf-8")
    yield from re.findall(r"`(spark-bookkeeper [^`|\n]+)`", text)
    short = re.findall(rf"`((?:{'|'.join(NOUNS)}) [a-z-][^`|=\n]*)`", text)
    yield from (f"spark-bookkeeper {each}" for each in short)
    yield from re.findall(
        r"\b(spark-bookkeeper [a-z][^|`)\n]*)",
        "\n".join(block.text for block in blocks(page) if block.language in ("console", "sh")),
    )


def check_command(said: str) -> None:
    """That there is such a command, with all of these options."""
    context = click.Context(root)
    command: click.Command = root
    options = {"--help": False}
    words = iter(shlex.split(said)[1:])
    for word in words:
        for each in command.params:
            options |= dict.fromkeys((*each.opts, *each.secondary_opts), takes_value(each))
        if word.startswith("--"):
            assert word in options, said
            if options[word]:
                next(words, None)
        elif isinstance(command, click.Group) and not word.startswith("-"):
            found = command.get_command(context, word)
            assert found is not None, said
            command = found


def takes_value(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Option) and not (parameter.is_flag or parameter.count)


@pytest.mark.parametrize("page", [*TEXTS, *PAGES], ids=lambda page: page.stem)
def test_a_command_that_a_page_names_is_one(page: Path) -> None:
    for said in called(page):
        check_command(said)


def test_settings_that_stand_beside_those_of_bookkeeper_are_there() -> None:
    page = (ROOT / "spark_bookkeeper" / "docs" / "from-bookkeeper.md").read_text(encoding="utf-8")
    table = page[page.index("## The settings") : page.index("All of them are in")]
    named = set(re.findall(r" \| `([a-z_]+)` \| ", table))
    there = {
        f.name for kind in (ClientConfig, BookieConfig, AutorecoveryConfig) for f in fields(kind)
    }

    assert len(named) > 15
    assert named - there == set()
