"""Driver and executors with different versions of the library: said at once, in plain words."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark.errors import PySparkException

import spark_bookkeeper as sbk
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.connection import Connection
from spark_bookkeeper.errors import MissingRequirementError

CONNECTION = Connection(
    "zk://zk1:2181/ledgers",
    ClientConfig(read_threads=3),
    {"key": "secret"},
    {"auth_data": "digest:a:b"},
    "orders",
)


def test_a_connection_arrives_as_it_was_sent() -> None:
    assert pickle.loads(pickle.dumps(CONNECTION)) == CONNECTION


def test_a_connection_of_another_version_is_refused_with_both_and_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = sbk.__version__
    monkeypatch.setattr(sbk, "__version__", "9.9.9")
    sent = pickle.dumps(CONNECTION)
    monkeypatch.undo()

    with pytest.raises(MissingRequirementError) as caught:
        pickle.loads(sent)

    told = caught.value.message
    assert "driver has spark_bookkeeper 9.9.9" in told
    assert f"has {here}" in told
    assert "pip install spark-bookkeeper==9.9.9" in told
    assert "secret" not in told


@pytest.mark.spark
def test_a_task_says_that_its_executor_has_another_version(
    bk: sbk.BookKeeper, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bk.create_ledger(schema=spark.range(1).schema) as writer:
        writer.append(spark.range(10))
    monkeypatch.setattr(sbk, "__version__", "9.9.9")

    with pytest.raises((PySparkException, sbk.BookKeeperError), match=r"pip install .*==9\.9\.9"):
        bk.open_ledger(writer.ledger_id).read().collect()
