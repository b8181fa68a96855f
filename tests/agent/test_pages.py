"""Who asks slowly, hangs up or comes in crowds costs the pages, and nobody else."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from spark_bookkeeper.agent import pages
from spark_bookkeeper.agent.pages import PageHandler, PageServer


class Page(PageHandler):
    is_wrong = False

    def do_GET(self) -> None:
        if self.is_wrong:
            raise ValueError("a mistake of ours")
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"well" * 1_000_000)


@pytest.fixture
def server() -> Iterator[PageServer]:
    server = PageServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def ask(server: PageServer, request: bytes = b"GET / HTTP/1.0\r\n\r\n") -> socket.socket:
    address = ("127.0.0.1", server.server_port)
    connection = socket.create_connection(address, timeout=60)
    connection.sendall(request)
    return connection


def head(connection: socket.socket) -> str:
    """What comes before the page, if anything does."""
    with connection, connection.makefile("rb") as answer:
        return answer.read().partition(b"\r\n\r\n")[0].decode()


def until_none_is_served(server: PageServer) -> None:
    ended = threading.Event()
    while server._begun:
        assert not ended.wait(0.001)


def test_an_answer_does_not_say_what_is_installed(server: PageServer) -> None:
    assert "\r\nServer: spark-bookkeeper\r\n" in head(ask(server))
    assert "Python" not in head(ask(server, b"PUT / HTTP/1.0\r\n\r\n"))


def test_more_than_are_served_at_once_are_ended_and_may_come_again(
    server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "AT_ONCE", 3)
    with ExitStack() as idle:
        for _ in range(3):
            idle.enter_context(ask(server, b"GET"))
        with ask(server, b"") as fourth:
            assert fourth.recv(1) == b""
    until_none_is_served(server)

    assert "200 OK" in head(ask(server))


def test_a_connection_is_ended_after_a_while_whoever_is_still_asking(
    server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ask(server, b"GET") as slow:
        monkeypatch.setattr(pages, "SECONDS", 0.0)
        assert slow.recv(1) == b""
    until_none_is_served(server)


def test_who_hangs_up_is_passed_over_and_a_mistake_of_ours_is_logged(
    server: PageServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ask(server) as hung_up:
        hung_up.recv(1)  # and leaves the rest
    until_none_is_served(server)
    assert caplog.messages == []

    monkeypatch.setattr(Page, "is_wrong", True)
    head(ask(server))
    until_none_is_served(server)

    assert caplog.messages == ["a page could not be shown"]
    assert "Exception occurred during processing" not in capsys.readouterr().err
