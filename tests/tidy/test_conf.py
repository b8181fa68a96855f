"""The files in ``conf/`` show every key, its unit and its default, and say the truth."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from spark_bookkeeper.config import AutorecoveryConfig, BookieConfig, ClientConfig, load_conf
from spark_bookkeeper.spark.session import conf_directory
from tests.tidy.test_docs import check_command

CONF = Path(__file__).resolve().parents[2] / "conf"

FILES = {
    "client.toml": ClientConfig,
    "bookie.toml": BookieConfig,
    "autorecovery.toml": AutorecoveryConfig,
}


def test_every_configuration_file_is_known_here() -> None:
    assert {path.name for path in CONF.glob("*.toml")} == set(FILES)


def test_a_file_holds_the_defaults() -> None:
    assert load_conf(CONF / "client.toml").client == ClientConfig()
    assert load_conf(CONF / "bookie.toml").bookie == BookieConfig()
    assert load_conf(CONF / "autorecovery.toml").autorecovery == AutorecoveryConfig()


@pytest.mark.parametrize("name", FILES)
def test_a_file_shows_every_key_below_a_comment_with_its_unit(name: str) -> None:
    text = (CONF / name).read_text(encoding="utf-8")
    shown = re.findall(r"((?:^#.*\n)+)(\w+) = ", text, flags=re.MULTILINE)

    assert [key for _, key in shown] == [field.name for field in fields(FILES[name])]
    for comment, key in shown:
        assert re.search(r"\[[a-z]+.*\]\n$", comment), f"{key}: no [unit] at the end of its comment"


def test_the_installed_library_finds_the_files() -> None:
    assert conf_directory() == CONF


@pytest.mark.parametrize("unit", sorted(CONF.glob("systemd/*")), ids=lambda path: path.stem)
def test_a_unit_runs_a_command_that_there_is_and_starts_it_again_for_ever(unit: Path) -> None:
    text = unit.read_text(encoding="utf-8")
    (command,) = re.findall(r"^ExecStart=(.*)$", text, re.M)
    set_here = dict(re.findall(r"^(\w+)=(.*)$", text, re.M))

    assert command.startswith("/usr/local/bin/spark-bookkeeper bookie start ")
    check_command(command)
    assert set_here["Restart"] == "always"
    assert set_here["StartLimitIntervalSec"] == "0"
    assert int(set_here["LimitNOFILE"]) > 1024
    named = set(re.findall(r"\$\{(\w+)\}", command))
    shown = set(re.findall(r"^#   (\w+)=", text, re.M))
    assert named == shown, "the lines of its environment file"


def test_the_image_runs_a_command_that_there_is() -> None:
    text = (CONF / "Dockerfile").read_text(encoding="utf-8")
    entry, command = (
        json.loads(re.findall(rf"^{kind} (.*)$", text, re.M)[0]) for kind in ("ENTRYPOINT", "CMD")
    )
    by_hand = re.findall(r"^#     (spark-bookkeeper .*)$", text, re.M)

    copied = {name for line in re.findall(r"^COPY (.*) \S+$", text, re.M) for name in line.split()}
    assert copied == {
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "conf",
        "jobs",
        "spark_bookkeeper",
    }, "what a wheel is made of, and no environment, cluster or history that is in the clone"
    assert by_hand
    for said in (shlex.join([*entry, *command]), *by_hand):
        check_command(said)
