"""An HTTP server for pages: it limits connections in number and time, to bound their cost."""

from __future__ import annotations

import logging
import socket
import sys
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from typing_extensions import override

log = logging.getLogger(__name__)

AT_ONCE: Final = 32
"""Connections that are served at one time; further ones are closed, and may retry."""

SECONDS: Final = 30.0
"""Limit on the time of a connection: far more than an agent needs to answer."""


class PageServer(ThreadingHTTPServer):
    """Serves each connection in a thread; limits their number, and ends each after ``SECONDS``."""

    daemon_threads = True
    block_on_close = False  # a client that does not read its answer must not delay the end

    def __init__(self, address: tuple[str, int], handler: type[PageHandler]) -> None:
        self._begun: dict[Any, float] = {}
        """When each connection was accepted."""
        super().__init__(address, handler)

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._begun) >= AT_ONCE:
            self.shutdown_request(request)
            return
        self._begun[request] = time.monotonic()
        super().process_request(request, client_address)

    @override
    def shutdown_request(self, request: Any) -> None:
        self._begun.pop(request, None)  # every connection ends here
        super().shutdown_request(request)

    @override
    def service_actions(self) -> None:
        """End connections that take too long; the loop of the base class calls this."""
        now = time.monotonic()
        for request, begun in list(self._begun.items()):
            if now - begun > SECONDS:
                with suppress(OSError):  # it has just ended by itself
                    request.shutdown(socket.SHUT_RDWR)

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # else the client closed the connection
            log.exception("a page could not be shown")


class PageHandler(BaseHTTPRequestHandler):
    """Hides the versions of installed software, and logs requests at level DEBUG only."""

    timeout = 10  # seconds of silence; ends connections without a request

    @override
    def version_string(self) -> str:
        return "spark-bookkeeper"

    @override
    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)

    def answer(self, code: int, kind: str, body: bytes) -> None:
        """Send an answer; to HEAD without its body."""
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
