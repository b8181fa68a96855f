"""A command imports what it needs and no more: held by the names of modules, never by a clock."""

from __future__ import annotations

import subprocess
import sys

import pytest

from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from tests.cli.conftest import Call

OF_OTHERS = ("delta", "fsspec", "pandas", "py4j", "pyarrow.compute", "pyspark", "tornado")
"""What takes long to import, and has no part in looking at ledgers."""

OF_OURS = ("autorecovery", "backup", "cluster", "delta", "source", "spark", "table")
"""Layers of this package that only jobs and DataFrames need."""


def imported_by(*arguments: str) -> set[str]:
    """The modules that a process has at the end of a command; packages by their names, too."""
    script = (
        "import sys; from spark_bookkeeper.cli.main import run; code = run(sys.argv[1:]);"
        "print(code, *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True
    )
    code, *modules = done.stdout.splitlines()[-1].split()

    assert code == "0", done.stderr
    return set(modules)


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_import_next_to_nothing(option: str) -> None:
    modules = imported_by(option)

    assert modules.isdisjoint(
        {*OF_OTHERS, "kazoo", "numpy", "prometheus_client", "pyarrow", "rich"}
    )
    ours = {name for name in modules if name.startswith("spark_bookkeeper.")}
    assert {name.split(".")[1] for name in ours} == {"cli", "errors", "runtime", "secrecy"}


@pytest.mark.integration
def test_a_list_of_ledgers_imports_neither_spark_nor_jobs(
    cluster: LocalCluster, call: Call
) -> None:
    call("ledger", "create", "--ensemble-size", "3")
    modules = imported_by("--metadata-uri", cluster.metadata_uri, "ledger", "list")

    assert modules.isdisjoint({*OF_OTHERS, *(f"spark_bookkeeper.{name}" for name in OF_OURS)})


@pytest.mark.full
def test_a_session_is_imported_without_spark() -> None:
    script = (
        "import spark_bookkeeper.opening, spark_bookkeeper.spark.frames, sys;"
        "print([m for m in ('pyspark', 'py4j', 'pandas', 'delta') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert done.stdout.strip() == "[]"
