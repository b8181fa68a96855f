"""Whether an address is of the machine that this runs on. No name server is asked."""

from __future__ import annotations

import ipaddress
import socket
from functools import cache


@cache
def is_here(address: str) -> bool:
    """Whether ``host:port``, as a bookie id names it, is on this machine.

    A host that is written as numbers is, if a socket can be bound to it: nothing is sent. A name
    is, if it is what the machine calls itself; another name of it is not recognised.
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
