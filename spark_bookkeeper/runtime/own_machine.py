"""Whether an address belongs to this machine, found out without a name server."""

from __future__ import annotations

import ipaddress
import socket
from functools import cache


@cache
def is_here(address: str) -> bool:
    """Whether ``host:port``, as in a bookie id, is on this machine.

    A numeric host is, if a socket can be bound to it; nothing is sent. A name is, if it is the
    machine's own name for itself; other names of the machine are not recognised.
    """
    host = address.rpartition(":")[0].strip("[]").lower()
    own = socket.gethostname().lower()
    if host in {"localhost", own, own.partition(".")[0]}:
        return True
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return False
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True
