"""A cluster for commands to talk to, and a way to call them as a shell would."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from spark_bookkeeper.cli.main import run
from spark_bookkeeper.cluster.local import LocalCluster


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


class Call(Protocol):
    def __call__(self, *arguments: object) -> Called: ...


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Five bookies; no test takes one away."""
    with LocalCluster(tmp_path_factory.mktemp("cli") / "cluster", bookies=5) as running:
        yield running


@pytest.fixture
def own_cluster(tmp_path: Path, guests: None) -> Iterator[LocalCluster]:
    """Five bookies of which a test may destroy some, on a ZooKeeper that others use."""
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
