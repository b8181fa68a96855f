"""The page of a cluster over HTTP, on this machine only: read, never changed."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final

from spark_bookkeeper.cli.cluster_facts import look
from spark_bookkeeper.cli.cluster_page import render
from spark_bookkeeper.cluster.pages import PageHandler, PageServer
from spark_bookkeeper.errors import BookKeeperError, InvalidArgumentError
from spark_bookkeeper.session import BookKeeper

REFRESH_SECONDS: Final = 10
"""The browser asks again so often."""


POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Nothing comes from elsewhere, and nothing goes there."""


@contextmanager
def served(bk: BookKeeper, port: int) -> Iterator[str]:
    """The URL under which the page is, each time as the cluster is then.

    Args:
        bk: the cluster.
        port: on the loopback address; 0 takes a free one.

    Raises:
        InvalidArgumentError: the port is taken.
    """
    looking = threading.Lock()  # one look at a time, however many browsers ask

    class Handler(PageHandler):
        def do_GET(self) -> None:
            # Under another name it is asked for by the page of a stranger in the same browser.
            asked = self.headers.get("Host", "").rpartition(":")[0]
            if asked not in ("127.0.0.1", "localhost"):
                self.send_error(HTTPStatus.FORBIDDEN, "ask for 127.0.0.1 or localhost")
                return
            if self.path != "/":
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            try:
                with looking:
                    page = render(look(bk), REFRESH_SECONDS).encode()
            except BookKeeperError as error:
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "no answer", error.message)
                return
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(page)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Content-Security-Policy", POLICY)
            self.end_headers()
            self.wfile.write(page)

    try:
        server = PageServer(("127.0.0.1", port), Handler, math.inf)  # a look may take minutes
    except OSError as error:
        raise InvalidArgumentError(
            f"port {port} cannot be used: {error}; give another with --port, or 0 for a free one"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="cluster-page", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
