"""``/metrics`` and ``/health`` of an agent over HTTP, for Prometheus, balancers and people.

Its threads are daemons, so it keeps no process from ending. A port that is taken costs the pages,
never the bookie: the agent goes on without.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from typing_extensions import Self, override

from spark_bookkeeper.cluster.agent import BookieAgent
from spark_bookkeeper.config import BookieConfig
from spark_bookkeeper.metrics import Metrics

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.1
"""Between two looks whether it is to end; questions are heard at once."""


class HealthServer:
    """Serves the pages of one agent until it is closed; a context manager.

    Args:
        agent: may be started and stopped meanwhile.
        config: where, or nowhere.
    """

    def __init__(self, agent: BookieAgent, config: BookieConfig) -> None:
        self._beside: list[Metrics] = []
        self.address: tuple[str, int] | None = None
        """Where it listens; ``None`` when it does not."""
        self._server: ThreadingHTTPServer | None = None
        if not config.http_host:
            return
        port = config.http_port or int(agent.bookie_id.rpartition(":")[2])
        try:
            self._server = _Server((config.http_host, port), _handler_of(agent, self._beside))
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

    def show_also(self, metrics: Metrics) -> None:
        """``/metrics`` shows these too: what runs in this process beside the agent."""
        self._beside.append(metrics)

    def close(self) -> None:
        """Listen no more; idempotent."""
        server, self._server, self.address = self._server, None, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def health(agent: BookieAgent) -> dict[str, Any]:
    """What ``/health`` says: the agent's state, why it is so, and how its duties go."""
    status = agent.status
    published = status.published
    return {
        "bookie_id": status.bookie_id,
        "state": status.state,
        "reason": status.problem if published is None else published.readonly_reason,
        "root_uri": status.root_uri,
        "incarnation": status.incarnation,
        "seconds_since_good_probe": status.seconds_since_good_probe,
        "free_bytes": status.free_bytes,
        "total_bytes": status.total_bytes,
        "duties": [
            {
                "name": duty.name,
                "interval_ms": duty.interval_ms,
                "is_running": duty.is_running,
                "runs": duty.runs,
                "failures": duty.failures,
                "last_run_ms": duty.last_run_ms,
                "last_error": duty.last_error,
            }
            for duty in status.duties
        ],
    }


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # somebody who does not read an answer keeps nobody waiting


def _handler_of(agent: BookieAgent, beside: Sequence[Metrics]) -> type[BaseHTTPRequestHandler]:
    class Pages(BaseHTTPRequestHandler):
        timeout = 10  # seconds; who connects and asks nothing is left

        def do_GET(self) -> None:
            page = self.path.partition("?")[0]
            if page == "/metrics":
                self._answer(200, CONTENT_TYPE_LATEST, agent.metrics.exposition(*beside))
            elif page == "/health":
                told = health(agent)
                code = 503 if told["state"] == "unregistered" else 200
                self._answer(code, "application/json", json.dumps(told, indent=2).encode())
            else:
                self._answer(404, "text/plain", b"there are /metrics and /health\n")

        def _answer(self, code: int, kind: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        @override
        def log_message(self, format: str, *args: Any) -> None:
            log.debug(format, *args)

    return Pages
