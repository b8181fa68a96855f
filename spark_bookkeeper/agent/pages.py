"""Pages over HTTP: few askers at a time, each for a while, so that none costs the others much."""

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
"""Connections that are served at one time; the others are ended, and may come again."""

SECONDS: Final = 30.0
"""A connection is ended after so long: far more than an agent needs to answer."""


class PageServer(ThreadingHTTPServer):
    """A thread for each of a few connections, which end in time whatever is asked on them."""

    daemon_threads = True
    block_on_close = False  # somebody who does not read an answer keeps nobody waiting

    def __init__(self, address: tuple[str, int], handler: type[PageHandler]) -> None:
        self._begun: dict[Any, float] = {}
        """When each connection was taken."""
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
        self._begun.pop(request, None)  # each ends here, whatever came of it
        super().shutdown_request(request)

    @override
    def service_actions(self) -> None:
        """Called all the time: end what takes too long, as a request of one byte at a time."""
        now = time.monotonic()
        for request, begun in list(self._begun.items()):
            if now - begun > SECONDS:
                with suppress(OSError):  # it has just ended by itself
                    request.shutdown(socket.SHUT_RDWR)

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # else somebody hung up
            log.exception("a page could not be shown")


class PageHandler(BaseHTTPRequestHandler):
    """Says nothing of what is installed, and logs requests for who debugs alone."""

    timeout = 10  # seconds of silence; who connects and asks nothing is left

    @override
    def version_string(self) -> str:
        return "spark-bookkeeper"

    @override
    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)

    def answer(self, code: int, kind: str, body: bytes) -> None:
        """Send an answer, to HEAD without its body."""
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
