"""Spark finds the data source of an installed package by a module at the top of site-packages."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

LOOK = """
import sys
from pkgutil import iter_modules

assert "pyspark_bookkeeper" in [info.name for info in iter_modules()]
from pyspark.sql.datasource import DataSource

of_spark = set(sys.modules)
import pyspark_bookkeeper

assert issubclass(pyspark_bookkeeper.DefaultSource, DataSource)
assert pyspark_bookkeeper.DefaultSource.name() == "bookkeeper"
heavy = {"pyarrow", "pandas", "kazoo", "numpy"} & (set(sys.modules) - of_spark)
assert not heavy, heavy

# What a task imports that reads: each worker process pays for it, before its first row.
import spark_bookkeeper.source.reading
import spark_bookkeeper.spark.frames
import spark_bookkeeper.spark.runner

heavy = {"kazoo", "google.protobuf", "rich", "click", "pandas"} & set(sys.modules)
assert not heavy, heavy
"""

MISSED = """
import pyspark_bookkeeper

assert not hasattr(pyspark_bookkeeper, "DefaultSource")
"""


@pytest.mark.full
@pytest.mark.parametrize("kind", ["wheel:standard", "wheel:editable"])
def test_every_install_has_the_module_at_the_top_and_once(kind: str, tmp_path: Path) -> None:
    if kind.endswith("editable"):
        pytest.importorskip("editables", reason="hatchling builds no editable wheel without it")
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)

    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    found = [name for name in names if name.endswith("pyspark_bookkeeper.py")]
    assert found == ["pyspark_bookkeeper.py"]


def test_the_module_is_found_and_neither_it_nor_a_task_imports_anything_heavy() -> None:
    path = f"{ROOT / 'spark_bookkeeper' / '_discovery'}:{ROOT}"
    done = subprocess.run(
        [sys.executable, "-c", LOOK], env={"PYTHONPATH": path}, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr


def test_the_module_never_raises_whatever_is_missing(tmp_path: Path) -> None:
    copy = tmp_path / "pyspark_bookkeeper.py"
    copy.write_text((ROOT / "spark_bookkeeper" / "_discovery" / copy.name).read_text())
    (tmp_path / "spark_bookkeeper.py").write_text("raise RuntimeError('half installed')")

    done = subprocess.run(
        [sys.executable, "-c", MISSED],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
