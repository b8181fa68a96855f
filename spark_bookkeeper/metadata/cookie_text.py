"""Cookies as text, in the form that Apache BookKeeper keeps.

The first line is the layout version, 5; the rest is a ``CookieFormat`` message as protobuf text.
BookKeeper's directory fields describe our one storage partition:

* ``journalDir`` is ``<root>#incarnation=<incarnation>``. BookKeeper compares this field for
  equality but lets ``ledgerDirs`` grow under some settings. So the incarnation is in the one field
  where BookKeeper, too, reports another incarnation as a mismatch. A URI fragment is opaque text to
  its ``cookie`` commands, which copy it unchanged.
* ``ledgerDirs`` is ``1<TAB><root>``, the count of directories and their names.

Source: BookKeeper 4.17 ``bookie/Cookie`` (``parse``, ``toString``, ``verifyInternal``,
``encodeDirPaths``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spark_bookkeeper.errors import InvalidArgumentError, MetadataFormatError
from spark_bookkeeper.metadata.formats import CookieFormat, format_text, parse_text
from spark_bookkeeper.metadata.store import Cookie
from spark_bookkeeper.protocol.ids import read_bookie_id

_LAYOUT: Final = 5
_READABLE_LAYOUTS: Final = (4, 5)
_INCARNATION: Final = "#incarnation="


@dataclass(frozen=True, slots=True)
class CookieText:
    """The fields of a cookie, as any program wrote them."""

    bookie_host: str
    """The bookie id."""
    journal_dir: str
    """The journal directories, joined by commas."""
    ledger_dirs: str
    """``count<TAB>directory<TAB>directory...``."""
    instance_id: str | None = None
    index_dirs: str | None = None
    """In the form of ``ledger_dirs``; ``None`` if the directories are the same."""


def format_cookie(fields: CookieText) -> bytes:
    """Return the bytes of a cookie, always in the newest layout, as BookKeeper does."""
    message = CookieFormat(
        bookieHost=fields.bookie_host, journalDir=fields.journal_dir, ledgerDirs=fields.ledger_dirs
    )
    if fields.instance_id is not None:
        message.instanceId = fields.instance_id
    if fields.index_dirs is not None:
        message.indexDirs = fields.index_dirs
    return f"{_LAYOUT}\n{format_text(message)}".encode()


def parse_cookie(data: bytes, path: str) -> CookieText:
    """Return the fields of a cookie.

    Raises:
        MetadataFormatError: it is not a cookie of layout 3, 4 or 5.
    """
    try:
        first, _, body = data.decode().partition("\n")
        if int(first) == 3:
            return _parse_lines(body)
        if int(first) not in _READABLE_LAYOUTS:
            raise ValueError(f"layout version {first} is not one of 3, 4 and 5")
        message = parse_text(body, CookieFormat())
    except Exception as error:
        raise _refused(path, error) from error
    return CookieText(
        bookie_host=message.bookieHost,
        journal_dir=message.journalDir,
        ledger_dirs=message.ledgerDirs,
        instance_id=message.instanceId if message.HasField("instanceId") else None,
        index_dirs=message.indexDirs if message.HasField("indexDirs") else None,
    )


def encode_cookie(cookie: Cookie) -> bytes:
    """Return the bytes of a cookie of ours.

    Raises:
        InvalidArgumentError: the root or the incarnation would be read back differently.
    """
    root = cookie.root_uri
    ambiguous = _INCARNATION in root and not cookie.incarnation
    if ambiguous or "\t" in root or "\n" in root or "#" in cookie.incarnation:
        raise InvalidArgumentError(
            f"a cookie cannot hold the root {root!r} with the incarnation "
            f"{cookie.incarnation!r}: the one must be free of tabs and line ends, the other of #"
        )
    fragment = f"{_INCARNATION}{cookie.incarnation}" if cookie.incarnation else ""
    return format_cookie(
        CookieText(
            bookie_host=cookie.bookie_id,
            journal_dir=f"{cookie.root_uri}{fragment}",
            ledger_dirs=f"1\t{cookie.root_uri}",
            instance_id=cookie.instance_id,
        )
    )


def decode_cookie(data: bytes, path: str) -> Cookie:
    """Return a cookie of ours, or one of Apache BookKeeper in our terms.

    The first of several ledger directories counts as the root; such a cookie has no incarnation.
    """
    fields = parse_cookie(data, path)
    try:
        bookie_id = read_bookie_id(fields.bookie_host)
    except InvalidArgumentError as error:
        raise _refused(path, error) from error
    _, _, incarnation = fields.journal_dir.rpartition(_INCARNATION)
    directories = fields.ledger_dirs.split("\t")[1:]
    return Cookie(
        bookie_id=bookie_id,
        root_uri=directories[0] if directories else "",
        incarnation=incarnation if _INCARNATION in fields.journal_dir else "",
        instance_id=fields.instance_id,
    )


def unreadable_cookie(path: str, why: str) -> MetadataFormatError:
    """Return the error for a cookie that cannot be decoded, with the way to write it again."""
    bookie_id = path.rpartition("/")[2]
    return MetadataFormatError(
        f"{path} {why}. Nothing was changed. BookKeeper's `cookie_get` command shows it. While the "
        f"bookie is down, `spark-bookkeeper bookie cookie delete {bookie_id}` removes it; starting "
        "the bookie then says how it is written again",
        path=path,
    )


def _refused(path: str, error: Exception) -> MetadataFormatError:
    return unreadable_cookie(path, f"holds no cookie that this version can read: {error}")


def _parse_lines(body: str) -> CookieText:
    """Parse layout 3: the three required fields, one a line."""
    host, journal, ledgers, *_ = body.split("\n")
    return CookieText(host, journal, ledgers)
