"""Whether a bookie is on this machine, without asking a name server."""

from __future__ import annotations

import socket

import pytest

from spark_bookkeeper.runtime.own_machine import is_here


@pytest.mark.parametrize(
    "address", ["127.0.0.1:3181", "localhost:1", f"{socket.gethostname()}:3181"]
)
def test_numbers_and_the_own_name_are_here(address: str) -> None:
    assert is_here(address)


@pytest.mark.parametrize(
    "address", ["192.0.2.1:3181", "[2001:db8::1]:3181", "nobody.example:3181", "a-name-alone", ""]
)
def test_other_numbers_and_names_are_not(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a name server was asked")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert not is_here(address)
