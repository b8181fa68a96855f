"""Clusters for commands to talk to, and a way to call them in this process as a shell would."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import click
import pytest

from spark_bookkeeper.cli import main
from spark_bookkeeper.cli.main import run
from spark_bookkeeper.doctor import machine
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from tests.guests import guests_of
from tests.twins import twins


@dataclass(frozen=True)
class Called:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """stdout, which is one JSON value and nothing else."""
        return json.loads(self.out)


def commands(command: click.Command = main.root, *path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command, each noun before its verbs, by the words that are typed."""
    yield " ".join(("spark-bookkeeper", *path)), command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            child = command.get_command(click.Context(command), name)
            assert child is not None
            yield from commands(child, *path, name)


class Call(Protocol):
    def __call__(self, *arguments: object) -> Called: ...


PREPARED: Final[set[click.Command]] = set()
java_version: Final = functools.cache(machine._java_version)


@pytest.fixture(autouse=True)
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command gets the global options, and Java is asked for its version, only once.

    A process has one command line; here there are hundreds, and this was a tenth of their time.
    """
    monkeypatch.setattr(machine, "_java_version", java_version)
    accept = main._accept_global_options

    def prepare(command: click.Command) -> None:
        if command not in PREPARED:
            PREPARED.add(command)
            accept(command)

    monkeypatch.setattr(main, "_accept_global_options", prepare)


@pytest.fixture(autouse=True)
def metadata(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where the metadata of clusters is: in ZooKeeper for tests marked ``integration``."""
    if is_integration(request):
        with guests_of(request.getfixturevalue("host")):
            yield
    else:
        with twins():
            yield


def is_integration(request: pytest.FixtureRequest) -> bool:
    return request.node.get_closest_marker("integration") is not None


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path_factory.mktemp("twin") / "cluster", bookies=5)
    with twins():
        made.start()
    with made as running:
        yield running


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> LocalCluster:
    """Five bookies or more that all tests share; no test takes one away."""
    found: LocalCluster = request.getfixturevalue("cluster" if is_integration(request) else "twin")
    return found


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Five bookies of which a test may destroy some."""
    with LocalCluster(tmp_path / "cluster", bookies=5) as running:
        yield running


def caller(uri: str, capsys: pytest.CaptureFixture[str]) -> Call:
    def call(*arguments: object) -> Called:
        capsys.readouterr()
        code = run(["--metadata-uri", uri, *map(str, arguments)])
        said = capsys.readouterr()
        assert "Traceback" not in said.err + said.out
        return Called(code, said.out, said.err)

    return call


@pytest.fixture
def call_at(capsys: pytest.CaptureFixture[str]) -> Callable[[str], Call]:
    """Commands to the cluster at a URI."""
    return lambda uri: caller(uri, capsys)


@pytest.fixture
def call(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(cluster.metadata_uri, capsys)


@pytest.fixture
def call_own(own_cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(own_cluster.metadata_uri, capsys)


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """A file of a hundred lines."""
    path = tmp_path / "numbers.txt"
    path.write_text("".join(f"{n}\n" for n in range(100)))
    return path
