"""What a process of autorecovery counts, over HTTP."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any, cast
from urllib.request import urlopen

from spark_bookkeeper.cli.autorecovery.group import _served_metrics
from spark_bookkeeper.metrics import Metrics


def test_its_metrics_are_served_as_those_of_agents_are() -> None:
    told: list[str] = []
    settings = cast(Any, SimpleNamespace(output=SimpleNamespace(note=told.append)))
    bk = cast(Any, SimpleNamespace(metrics_registry=Metrics().registry))

    with _served_metrics(settings, bk, 0):
        (said,) = told
        address = said.removeprefix("its /metrics are at ")
        with urlopen(address + "/metrics", timeout=60) as answer:
            assert answer.headers["Server"] == "spark-bookkeeper"
            assert b"# TYPE" in answer.read()


def test_a_port_that_is_taken_costs_the_page_alone() -> None:
    told: list[str] = []
    settings = cast(Any, SimpleNamespace(output=SimpleNamespace(note=told.append)))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with _served_metrics(settings, cast(Any, None), port):
            assert f"no metrics are served: port {port}" in told[0]
