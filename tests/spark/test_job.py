"""What is made of the errors of jobs; no Spark is started."""

from __future__ import annotations

import traceback
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JJavaError
from typing_extensions import override

from spark_bookkeeper.spark import runner
from spark_bookkeeper.spark.job import shortened

STACK = "\n\tat java.base/java.lang.Thread.run(Thread.java:840)" * 500


class FromJava(Py4JJavaError):  # type: ignore[misc]  # py4j has no types
    """As py4j makes one, without a JVM to ask for its text."""

    def __init__(self, text: str) -> None:
        java_exception: Any = SimpleNamespace(_target_id="o1")
        super().__init__("An error occurred while calling o90.collectToPython.\n", java_exception)
        self.text = text

    @override
    def __str__(self) -> str:
        return f"{self.errmsg}: {self.text}"


@pytest.mark.parametrize(
    "what",
    [
        "java.lang.InterruptedException",
        "java.nio.channels.ClosedByInterruptException",
        "org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 3 cancelled part of cancelled "
        "job group 1dcf342c-e1b3-4cf2-ad26-facfc19e8d9a",
    ],
)
def test_the_error_of_an_interrupted_job_has_what_spark_looks_for_and_no_stack(what: str) -> None:
    short = shortened(FromJava(what + STACK))
    assert isinstance(short, Py4JJavaError)
    text = "".join(traceback.format_exception_only(short))
    assert "py4j.protocol.Py4JJavaError: An error occurred while calling" in text
    assert f": {what}" in text
    assert len(text) < 300


def test_an_interrupt_that_is_the_cause_of_another_error_counts_as_for_spark() -> None:
    caused = (
        "java.lang.RuntimeException: no" + STACK + "\nCaused by: java.io.InterruptedIOException"
    )
    short = shortened(FromJava(caused + STACK))
    assert ": java.io.InterruptedIOException" in str(short)


@pytest.mark.parametrize(
    "error", [FromJava("java.lang.IllegalStateException" + STACK), Py4JError("no"), ValueError()]
)
def test_any_other_error_keeps_its_stack(error: Exception) -> None:
    assert shortened(error) is None


def test_the_jvm_is_asked_for_tasks_where_no_interrupt_meets_who_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    class Tasks:
        def parallelize(self, items: list[Any], count: int) -> Tasks:
            asked.append("parallelize")
            return self

        def mapPartitionsWithIndex(self, work: Any) -> Tasks:
            return self

        def collect(self) -> list[tuple[int, bytes]]:
            return [(0, b"")]

    def run_jobs(spark: Any, work: Any, *_: object) -> Any:
        assert not asked
        return work()

    monkeypatch.setattr(runner, "run_jobs", run_jobs)
    spark: Any = SimpleNamespace(sparkContext=Tasks())

    assert runner.run_tasks(spark, [Counter()], lambda _: (), "nothing", lambda *_: None) == [
        (0, b"")
    ]
    assert asked
