"""What is said of servers that give no session: what each did, as far as anybody knows."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from kazoo.exceptions import EXCEPTIONS, AuthFailedError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.connection import ConnectionDropped

from spark_bookkeeper.errors import MetadataError, MetadataUnavailableError
from spark_bookkeeper.metadata.zookeeper.link import Link
from spark_bookkeeper.metadata.zookeeper.unreached import headline, why_unreached


def dropped(cause: OSError | None) -> ConnectionDropped:
    """As kazoo makes it."""
    error = ConnectionDropped("socket connection error")
    error.__context__ = cause
    return error


def not_verified() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] (_ssl.c:1006)")
    error.verify_message = "Hostname mismatch, certificate is not valid for 'zk1'"
    return error


ANSWERS = [
    (dropped(ConnectionRefusedError()), "has nothing that listens", "Check the host and port"),
    (TimeoutError(), "gave no answer", "Check the host and port"),
    (KazooTimeoutError("socket time-out during read"), "gave no answer", "firewall"),
    (dropped(TimeoutError("timed out")), "gave no answer", "firewall"),
    (dropped(OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))), "unreachable", "host"),
]
"""What is met, what is said of it, and the advice: nobody answers."""

REFUSALS = [
    (dropped(None), "took the connection and ended it", "maxClientCnxns"),
    (dropped(ConnectionResetError()), "took the connection and ended it", "use_ssl=true"),
    (dropped(not_verified()), "(Hostname mismatch, certificate is not", "check_hostname=false"),
    (dropped(ssl.SSLError(1, "[SSL] unknown ca")), "failed in TLS", "ca, certfile and keyfile"),
    (AuthFailedError(), "refused who this is", "auth_data"),
]
"""Somebody does."""


@pytest.mark.parametrize(("error", "said", "advice"), [*ANSWERS, *REFUSALS])
def test_what_a_server_did_is_said_with_what_to_look_at(
    error: Exception, said: str, advice: str
) -> None:
    told = why_unreached({"zk1:2181": error})

    assert told.startswith("zk1:2181 ")
    assert said in told
    assert advice in told


def test_each_server_is_named_and_each_advice_given_once() -> None:
    refused, ended = ANSWERS[0][0], REFUSALS[0][0]
    told = why_unreached({"zk1:2181": refused, "zk2:2181": ended, "zk3:2181": refused})

    assert [told.count(f"zk{n}:2181") for n in (1, 2, 3)] == [1, 1, 1]
    assert told.count("Check the host and port") == 1
    assert told.count("maxClientCnxns") == 1
    assert headline({"zk1:2181": refused, "zk2:2181": ended}) == "no session with ZooKeeper"
    assert headline({"zk1:2181": refused}) == headline({}) == "no ZooKeeper answers"
    assert "No name of a server could be resolved" in why_unreached({})


@contextmanager
def server(serve: Callable[[socket.socket], object]) -> Iterator[str]:
    """Something else than ZooKeeper; its address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with suppress(OSError):
            while True:
                with listener.accept()[0] as connection:
                    serve(connection)

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def test_a_server_that_ends_every_connection_is_told_from_none() -> None:
    said = ""
    with server(lambda connection: connection.recv(1)) as address:
        for patience_ms in (300, 3_000, 30_000):  # a busy machine may need more for one attempt
            with pytest.raises(MetadataUnavailableError) as caught:
                Link(address, session_timeout_ms=60_000, patience_ms=patience_ms, options={})
            said = caught.value.message
            if f"{address} took the connection and ended it" in said:
                break

    assert said.startswith("no session with ZooKeeper")


def test_a_server_that_demands_sasl_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Link, "__init__", lambda *_: None)
    session = Link.__new__(Link)
    session.hosts, session.patience, session._is_closed = "zk1:2181", 1.0, False
    session._owner = os.getpid()
    session.client = type("Client", (), {"handler": type("Handler", (), {"sleep_func": None})})

    def ask() -> None:
        raise EXCEPTIONS[-124]

    with pytest.raises(MetadataError, match="proves itself by SASL"):
        session.insist("read", ask)
