"""``/metrics`` and ``/health`` of agents over HTTP, for Prometheus, load balancers and operators.

If one process serves several bookies, ``/health`` lists them, ``/health/BOOKIE`` shows one of them,
and every metric has a label with the bookie's id.

Its threads are daemons, so it does not keep the process alive. If the port is taken, the agent runs
without the pages.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric, generate_latest
from typing_extensions import Self, override

from spark_bookkeeper.agent.agent import AgentStatus
from spark_bookkeeper.agent.pages import PageHandler, PageServer
from spark_bookkeeper.config import BookieConfig
from spark_bookkeeper.metrics import BookieMetrics, Metrics
from spark_bookkeeper.protocol.ids import BookieId

log = logging.getLogger(__name__)

SERVED: Final = ("writable", "readonly")
STATES: Final = (*SERVED, "unregistered")
"""All states of a bookie."""


class Watched(Protocol):
    """The view of a bookie's agent that the pages need: ``BookieAgent``, ``ServedPartition``."""

    @property
    def bookie_id(self) -> BookieId: ...

    @property
    def status(self) -> AgentStatus: ...

    @property
    def metrics(self) -> BookieMetrics: ...


_LOOK_SECONDS = 0.1
"""The interval at which the server checks whether to end; requests are answered at once."""


class HealthServer:
    """Serves the pages of the agents of one process until it is closed; a context manager.

    Args:
        agents: at least one; they may start and stop meanwhile.
        config: the address, if any. Without ``http_port`` the port is that of the first id.
        shared: the metrics that all agents share, if there are several agents.
    """

    def __init__(
        self, agents: Sequence[Watched], config: BookieConfig, shared: Metrics | None = None
    ) -> None:
        agent = agents[0]
        self._beside: dict[BookieId, list[Metrics]] = {}
        self.address: tuple[str, int] | None = None
        """The address that it listens at; ``None`` when it does not listen."""
        self._server: PageServer | None = None
        if not config.http_host:
            return
        port = config.http_port or int(agent.bookie_id.rpartition(":")[2])
        try:
            self._server = PageServer(
                (config.http_host, port), _handler_of(agents, shared, self._beside)
            )
        except OSError as error:
            log.warning(
                "bookie %s serves no /metrics and /health: cannot listen at %s:%s (%s). Set "
                'http_host and http_port in its configuration, or http_host = "" for nowhere',
                agent.bookie_id,
                config.http_host,
                port,
                error.strerror or error,
            )
            return
        self.address = (config.http_host, self._server.server_address[1])
        threading.Thread(
            target=self._server.serve_forever,
            args=(_LOOK_SECONDS,),
            name=f"health-{agent.bookie_id}",
            daemon=True,
        ).start()

    def show_also(self, bookie_id: BookieId, metrics: Metrics) -> None:
        """Show these on ``/metrics`` too: metrics of other work in this process for that agent."""
        self._beside.setdefault(bookie_id, []).append(metrics)

    def close(self) -> None:
        """Stop listening; idempotent."""
        server, self._server, self.address = self._server, None, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_alive(told: Mapping[str, Any]) -> bool:
    """Whether the agent needs no restart: a restart cannot repair ZooKeeper."""
    return told["state"] in SERVED or told["zookeeper_problem"] is not None


def health_of_all(agents: Sequence[Watched]) -> dict[str, Any]:
    """Return the content of ``/health`` for several agents: a count per state, and each agent."""
    told = [agent.status.as_dict() for agent in agents]
    states = Counter(each["state"] for each in told)
    return {**{state: states[state] for state in STATES}, "bookies": told}


def exposition(
    agents: Sequence[Watched],
    shared: Metrics | None = None,
    beside: Mapping[BookieId, Sequence[Metrics]] | None = None,
) -> bytes:
    """Return the content of ``/metrics``; with several agents each metric has the id as a label.

    Args:
        shared: the metrics that all agents share.
        beside: the metrics of other work in this process, by agent.
    """
    beside = beside or {}
    if len(agents) == 1 and shared is None:
        return agents[0].metrics.exposition(*beside.get(agents[0].bookie_id, ()))
    return generate_latest(_Merged(agents, shared, beside))


class _Merged(CollectorRegistry):
    """The registries of several agents as one."""

    def __init__(
        self,
        agents: Sequence[Watched],
        shared: Metrics | None,
        beside: Mapping[BookieId, Sequence[Metrics]],
    ) -> None:
        super().__init__()
        self._agents = agents
        self._shared = shared
        self._beside = beside

    @override
    def collect(self) -> Iterator[Metric]:
        ours = {} if self._shared is None else {m.name: m for m in self._shared.registry.collect()}
        yield from ours.values()
        merged: dict[str, Metric] = {}
        for agent in self._agents:
            others = self._beside.get(agent.bookie_id, ())
            for metric in agent.metrics.together(*others).collect():
                if metric.name in ours:
                    continue  # the session is shared by all of them
                labelled = [
                    sample._replace(labels={"bookie": str(agent.bookie_id), **sample.labels})
                    for sample in metric.samples
                ]
                merged.setdefault(metric.name, _empty(metric)).samples += labelled
        yield from merged.values()


def _empty(metric: Metric) -> Metric:
    return Metric(metric.name, metric.documentation, metric.type, metric.unit)


def _handler_of(
    agents: Sequence[Watched], shared: Metrics | None, beside: Mapping[BookieId, Sequence[Metrics]]
) -> type[PageHandler]:
    by_page = {f"/health/{agent.bookie_id}": agent for agent in agents}
    pages = ", ".join(["/metrics", "/health", *by_page])

    class Pages(PageHandler):
        def do_GET(self) -> None:
            page = self.path.partition("?")[0]
            if page == "/metrics":
                self.answer(200, CONTENT_TYPE_LATEST, exposition(agents, shared, beside))
            elif page == "/health" and len(agents) > 1:
                told = health_of_all(agents)
                self._tell(told, any(map(_is_alive, told["bookies"])))
            elif page == "/health" or page in by_page:
                told = by_page.get(page, agents[0]).status.as_dict()
                self._tell(told, _is_alive(told))
            else:
                self.answer(404, "text/plain", f"there are {pages}\n".encode())

        def do_HEAD(self) -> None:
            self.do_GET()  # its answer leaves out the body

        def _tell(self, told: dict[str, Any], is_alive: bool) -> None:
            body = json.dumps(told, indent=2).encode()
            self.answer(200 if is_alive else 503, "application/json", body)

    return Pages
