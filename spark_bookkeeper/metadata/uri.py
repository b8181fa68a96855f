"""Metadata URIs: the address of a cluster's metadata.

All of these mean the same cluster::

    zk+hierarchical://zk1:2181,zk2:2181/ledgers
    zk://zk1:2181;zk2:2181/ledgers
    zk1:2181,zk2:2181

Source: BookKeeper 4.17 ``meta/zk/ZKMetadataDriverBase`` (scheme, the separator ``;``) and
``conf/AbstractConfiguration`` (the root ``/ledgers``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.secrecy import HIDDEN

DEFAULT_ROOT: Final = "/ledgers"
DEFAULT_PORT: Final = 2181

_EXAMPLE: Final = "for example zk+hierarchical://zk1:2181,zk2:2181/ledgers, or zk1:2181"
_SCHEMES: Final = frozenset({"zk", "zk+hierarchical", "zk+null"})
_LABEL: Final = r"[A-Za-z0-9_\-]{1,63}"  # no resolver takes a longer or an empty one
_HOST = re.compile(
    rf"(?P<name>\[[0-9A-Fa-f:.%]+\]|{_LABEL}(?:\.{_LABEL})*\.?)(?::(?P<port>\d{{1,5}}))?"
)


@dataclass(frozen=True, slots=True)
class MetadataUri:
    """The servers of a ZooKeeper ensemble and the root of a cluster in it."""

    servers: tuple[str, ...]
    """``host:port`` of each server, in the order given."""
    root: str = DEFAULT_ROOT
    """An absolute path without a trailing slash."""

    @property
    def hosts(self) -> str:
        """The servers in the form that ZooKeeper clients take."""
        return ",".join(self.servers)

    def __str__(self) -> str:
        return f"zk+hierarchical://{self.hosts}{self.root}"


def parse_metadata_uri(text: str) -> MetadataUri:
    """Parse a metadata URI.

    Raises:
        InvalidArgumentError: it is not a metadata URI; the message shows the wrong part and a
            correct example.
    """
    scheme, separator, rest = text.strip().partition("://")
    if rest == "" and scheme[:1] in ("/", ".", "~") and "@" not in scheme:
        raise InvalidArgumentError(
            f"{text!r} is a directory, and no metadata URI; {_EXAMPLE}. "
            f"spark_bookkeeper.local({text!r}) runs a cluster there, and `spark-bookkeeper local "
            "status --directory DIRECTORY --uri` prints the URI of one that runs"
        )
    if not separator:
        scheme, rest = "zk", text.strip()
    _refuse_user(scheme, rest)
    if scheme.lower() not in _SCHEMES:
        raise InvalidArgumentError(
            f"metadata URI {text!r}: the scheme {scheme!r} is not one of "
            f"{', '.join(sorted(_SCHEMES))}; {_EXAMPLE}"
        )
    authority, slash, path = rest.partition("/")
    root = f"/{path.rstrip('/')}" if path.strip("/") else DEFAULT_ROOT
    if slash and re.search(r"//|/\.{1,2}(/|$)|[?#\s\x00-\x1f]", root):
        raise InvalidArgumentError(
            f"metadata URI {text!r}: the root {root!r} is no path of ZooKeeper; {_EXAMPLE}"
        )
    names = re.split(r"[,;]", authority)
    return MetadataUri(tuple(_server(name.strip(), text) for name in names), root)


def _refuse_user(scheme: str, rest: str) -> None:
    """Raise ``InvalidArgumentError``, without the password, if the URI has ``user:password@``."""
    user, at, servers = rest.rpartition("@")
    authority = rest.partition("/")[0]  # of `user:pass/word@zk1` the part before the slash
    if not at or all(_HOST.fullmatch(name.strip()) for name in re.split(r"[,;]", authority)):
        return  # a root may contain an @
    shown = f"{scheme}://{user.partition(':')[0]}:{HIDDEN}@{servers}"
    raise InvalidArgumentError(
        f"metadata URI {shown!r}: user and password are no part of it; leave them out and give "
        'zk_options={"auth_data": "digest:user:password"}, on the command line '
        "--zk-option auth_data=digest:user:password, and the data source zk.auth_data"
    )


def _server(name: str, text: str) -> str:
    matched = _HOST.fullmatch(name)
    port = int(matched.group("port") or DEFAULT_PORT) if matched else 0
    if matched is None or not 0 < port < 65536:
        raise InvalidArgumentError(
            f"metadata URI {text!r}: {name!r} is not of the form host:port; {_EXAMPLE}"
        )
    return f"{matched.group('name')}:{port}"
