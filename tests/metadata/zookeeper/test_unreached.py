"""What is said of servers that give no session: what each did, as far as anybody knows."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from kazoo.exceptions import EXCEPTIONS, AuthFailedError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.connection import ConnectionDropped, ConnectionHandler

from spark_bookkeeper.errors import MetadataError, MetadataUnavailableError
from spark_bookkeeper.metadata.zookeeper.client import Handler
from spark_bookkeeper.metadata.zookeeper.link import Link
from spark_bookkeeper.metadata.zookeeper.unreached import headline, met, why_unreached


def dropped(cause: OSError | None) -> ConnectionDropped:
    """As kazoo makes it."""
    error = ConnectionDropped("socket connection error")
    error.__context__ = cause
    return error


def not_verified() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] (_ssl.c:1006)")
    error.verify_code = 62
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
    (dropped(FileNotFoundError(2, "No such file")), "a file of TLS is gone", "ca, certfile"),
    (dropped(ssl.SSLError(1, "[SSL] unknown ca")), "failed in TLS", "ca, certfile and keyfile"),
    (AuthFailedError(), "refused who this is", "auth_data"),
    (RuntimeError("no SASL there"), "gave no session (RuntimeError: no", "klist"),
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


FOR_GOOD = (AuthFailedError, ssl.SSLCertVerificationError)


@pytest.mark.parametrize("error", [error for error, *_ in [*ANSWERS, *REFUSALS]])
def test_only_what_waiting_does_not_mend_is_for_good(error: Exception) -> None:
    assert met(error).is_for_good == isinstance(error.__context__ or error, FOR_GOOD)


@pytest.mark.parametrize("code", [9, 10])
def test_a_certificate_may_be_valid_by_a_clock_that_is_set_later(code: int) -> None:
    error = not_verified()
    error.verify_code = code

    assert not met(dropped(error)).is_for_good


def told(connection: socket.socket) -> bytes:
    size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
    return connection.recv(size, socket.MSG_WAITALL)


def tell(connection: socket.socket, answer: bytes) -> None:
    connection.sendall(len(answer).to_bytes(4, "big") + answer)


def greet(connection: socket.socket) -> None:
    """As ZooKeeper begins a session, with whomever."""
    told(connection)
    tell(connection, struct.pack(">iiqi16s?", 0, 10_000, 7, 16, b"", False))


def refuse(connection: socket.socket) -> None:
    """As ZooKeeper tells who is not known to it."""
    greet(connection)
    number = told(connection)[:4]
    tell(connection, number + struct.pack(">qi", 0, AuthFailedError.code))


def welcome(connection: socket.socket) -> None:
    """As ZooKeeper tells who is known to it; until the first request, whereupon it hangs up."""
    greet(connection)
    tell(connection, told(connection)[:4] + struct.pack(">qi", 0, 0))
    told(connection)


def know_no_sasl(connection: socket.socket) -> None:
    greet(connection)
    while request := told(connection):
        tell(connection, request[:4] + struct.pack(">qii", 0, 0, -1))


def hang_up(connection: socket.socket) -> None:
    greet(connection)
    told(connection)


ANN = {"sasl_mechanism": "DIGEST-MD5", "sasl_username": "ann", "sasl_password": "secret"}


@pytest.mark.parametrize(
    "options", [{"auth_data": "digest:ann:secret"}, ANN, {**ANN, "sasl_username": "GSSAPI"}]
)
def test_who_is_refused_by_every_server_is_told_at_once(options: dict[str, str]) -> None:
    with server(refuse) as one, server(refuse) as other:
        with pytest.raises(MetadataError, match="refused who this is") as caught:
            Link(f"{one},{other}", session_timeout_ms=60_000, patience_ms=300_000, options=options)

    assert not isinstance(caught.value, MetadataUnavailableError), "nobody waits for it"
    assert "secret" not in caught.value.message


def test_a_server_whose_name_is_not_resolved_yet_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with server(refuse) as address:
        host, port = address.split(":")
        addresses = [(host, host, int(port))] * 2  # as of a name that stands for several
        monkeypatch.setattr(ConnectionHandler, "_expand_client_hosts", lambda _: addresses)

        with pytest.raises(MetadataUnavailableError, match="refused who this is"):
            Link(f"{address},zk2:1", session_timeout_ms=60_000, patience_ms=500, options=ANN)


def test_who_is_refused_while_it_runs_gives_its_session_up_and_begins_another() -> None:
    manners = iter([welcome, refuse, refuse, welcome])
    with server(lambda connection: next(manners)(connection)) as address:
        session = Link(
            address,
            session_timeout_ms=60_000,
            patience_ms=60_000,
            options={"auth_data": "digest:ann:secret"},
        )
        connected, lost = threading.Event(), threading.Semaphore(0)
        session.on_connected(connected.set)
        session.on_session_lost(lost.release)
        session.client.exists_async("/")

        assert connected.wait(60)
        assert next(manners, None) is None
        assert lost.acquire(timeout=60)
        assert not lost.acquire(blocking=False), "once"
        session.close()


def test_a_certificate_that_names_another_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def connect(*_: object, **__: object) -> None:
        raise not_verified()

    monkeypatch.setattr(Handler, "create_connection", connect)

    with pytest.raises(MetadataError, match="Hostname mismatch") as caught:
        Link("127.0.0.1:1", session_timeout_ms=60_000, patience_ms=300_000, options={})

    assert not isinstance(caught.value, MetadataUnavailableError), "nobody waits for it"


@pytest.mark.parametrize(
    ("serve", "said"),
    [(know_no_sasl, "does not complete SASL"), (hang_up, "took the connection and ended it")],
)
def test_where_servers_differ_another_attempt_is_made(
    serve: Callable[[socket.socket], None], said: str
) -> None:
    message = ""
    with server(refuse) as one, server(serve) as other:
        for patience_ms in (500, 5_000, 30_000):  # a busy machine may need more for one attempt
            with pytest.raises(MetadataUnavailableError) as caught:
                Link(
                    f"{one},{other}",
                    session_timeout_ms=60_000,
                    patience_ms=patience_ms,
                    options=ANN,
                )
            message = caught.value.message
            if said in message and f"{one} refused who this is" in message:
                break

    assert said in message
    assert f"{one} refused who this is" in message


def test_a_server_that_demands_sasl_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Link, "__init__", lambda *_: None)
    session = Link.__new__(Link)
    session.hosts, session.patience, session._is_closed = "zk1:2181", 1.0, False
    session._owner = os.getpid()
    session.client = type("Client", (), {"handler": type("Handler", (), {"sleep_func": None})})

    def ask() -> None:
        raise EXCEPTIONS[-124]

    with pytest.raises(MetadataError, match="give sasl_mechanism"):
        session.insist("read", ask)
