"""Explains why no server of ZooKeeper gave a session, from kazoo's errors, with advice."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final, NamedTuple

from kazoo.exceptions import AuthFailedError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.connection import ConnectionDropped

_ADDRESS: Final = (
    "Check the host and port in the metadata URI, that ZooKeeper runs there "
    "(`echo srvr | nc HOST PORT`), and that no firewall is in between"
)
_TLS: Final = (
    "Check that this port is the one for TLS, the options ca, certfile and keyfile, and that the "
    "server's certificate names the host as the metadata URI does (or set check_hostname=false)"
)
_REFUSED: Final = (
    "A server ends connections when one host has as many as its maxClientCnxns (60, unless it is "
    "told otherwise; each program, agent and process of Spark's tasks has one or two), when its "
    "port is for TLS (use_ssl=true) or wants another certificate, and as long as most of the "
    "servers are away: its log says which"
)
_WHO: Final = "Check auth_data and sasl_*, with Kerberos also that there is a ticket (`klist`)"


class _Met(NamedTuple):
    said: str
    advice: str
    is_for_good: bool = False  # waiting cannot repair it: a refusal, or another's certificate


def headline(troubles: Mapping[str, BaseException]) -> str:
    """Return whether any server answers, as the start of a sentence; an address follows."""
    is_answered = any(met(each).advice != _ADDRESS for each in troubles.values())
    return "no session with ZooKeeper" if is_answered else "no ZooKeeper answers"


def why_unreached(troubles: Mapping[str, BaseException]) -> str:
    """Return what each server did, and what to check.

    Args:
        troubles: the error of the last attempt to connect, by ``host:port``; empty if no server's
            name could be resolved.
    """
    if not troubles:
        return f"No name of a server could be resolved. {_ADDRESS}"
    found = {server: met(error) for server, error in troubles.items()}
    said = "; ".join(f"{server} {each.said}" for server, each in found.items())
    return ". ".join([said, *dict.fromkeys(each.advice for each in found.values())])


def met(error: BaseException) -> _Met:
    """Return the outcome of an attempt to connect, from the error that kazoo raised."""
    cause = error.__context__ if isinstance(error, ConnectionDropped) else error
    if isinstance(cause, ssl.SSLError):
        why = getattr(cause, "verify_message", "") or getattr(cause, "reason", "") or cause
        code = getattr(cause, "verify_code", 0)  # 9, 10: not valid yet, or expired, by this clock
        return _Met(f"failed in TLS ({why})", _TLS, code not in (0, 9, 10))
    if cause is None or isinstance(cause, ConnectionError):
        if isinstance(cause, ConnectionRefusedError):
            return _Met("has nothing that listens", _ADDRESS)
        return _Met("took the connection and ended it", _REFUSED)
    if isinstance(cause, AuthFailedError):
        return _Met("refused who this is", _WHO, is_for_good=True)
    if isinstance(cause, FileNotFoundError):
        return _Met("was not asked: a file of TLS is gone", _TLS)
    if isinstance(cause, OSError) and cause.strerror:
        return _Met(f"cannot be reached ({cause.strerror})", _ADDRESS)
    if isinstance(cause, (TimeoutError, KazooTimeoutError)):
        return _Met("gave no answer", _ADDRESS)
    return _Met(f"gave no session ({type(cause).__name__}: {cause})", _WHO)
