"""An object store that is far away: a process that speaks S3's protocol and answers late.

    python -m tests.benchmarks.object_store     # tells its address, and runs until its input ends

Every request waits, as on a long way, before it is carried out, and any number of them wait
together. Objects are in its memory. It is not the S3 server of the tests, which takes 2 to 4 ms of
the processor for a request: with that one 256 requests under way would wait for a core, and no
longer for the way. It counts what it is asked, so that plain code can ask the same.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
import statistics
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import format_datetime
from typing import Any, Final
from xml.sax.saxutils import escape

from aiohttp import web
from typing_extensions import Self

DELAY_SECONDS: Final = 0.1
"""Of each request. Chosen, plausible for a store on another continent; no vendor's."""

CONTROL: Final = "/-/"
"""No bucket has this name. Nothing asked there is counted, or waits."""

MOST_REFUSALS: Final = 4
"""Of one request, as often as it is repeated: one less than the attempts of s3fs."""

_REGION: Final = "eu-west-1"

_LEDGER: Final = re.compile(r"/([0-9]+-[0-9A-Za-z]+)")
"""In the name of an object: whose it is."""


@dataclass(frozen=True)
class Asked:
    """What a store was asked since it was told to count."""

    kinds: Mapping[str, int]
    """How many requests there were of each kind: its method, and whether it was refused. Those
    that were too many are a kind of their own: ``503``."""
    rounds: int
    """How many were about the same ledger in the same bucket, in the middle of these."""
    most: int
    """On their way together."""
    put_bytes: int
    """Of an object that was put, on average."""
    read_bytes: int
    """The same of one that was read."""

    @property
    def requests(self) -> int:
        return sum(self.kinds.values())


class FarStore:
    """The process, for who uses it; a context manager. It waits when it is told to."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.object_store"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        assert self.address, "it said where it listens"
        self._buckets = 0
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Nobody answers any more; idempotent."""
        if self._process.returncode is None:
            self._process.communicate()  # its input ends

    @property
    def storage_options(self) -> dict[str, Any]:
        return {
            "key": "test",
            "secret": "test",
            "client_kwargs": {"endpoint_url": self.address, "region_name": _REGION},
            "config_kwargs": {"retries": {"max_attempts": 0}},
        }

    def make_bucket(self) -> str:
        """A new bucket; its name."""
        self._buckets += 1
        name = f"bucket-{self._buckets}"
        _answer(urllib.request.Request(f"{self.address}/{name}", method="PUT"))
        return name

    def count(self, delay_seconds: float, refused_share: float = 0) -> None:
        """Count from now on, answer so late, and refuse so many of all requests as too many.

        No request is refused more than ``MOST_REFUSALS`` times, however the dice fall.
        """
        wanted = {"delay_seconds": delay_seconds, "refused_share": refused_share}
        told = json.dumps(wanted).encode()
        _answer(urllib.request.Request(self.address + CONTROL, told, method="POST"))

    def asked(self) -> Asked:
        """What was counted; nobody waits any longer."""
        found = Asked(**json.loads(_answer(urllib.request.Request(self.address + CONTROL))))
        self.count(0)
        return found


def _answer(request: urllib.request.Request) -> bytes:
    with urllib.request.urlopen(request) as answer:
        data: bytes = answer.read()
        return data


@dataclass
class _Counting:
    kinds: Counter[str] = field(default_factory=Counter)
    of_ledgers: Counter[tuple[str, str]] = field(default_factory=Counter)
    under_way: int = 0
    most: int = 0
    put_bytes: int = 0
    read_bytes: int = 0

    def begin(self) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)

    def end(self, request: web.BaseRequest, answer: web.Response) -> None:
        self.under_way -= 1
        bucket, name = _place(request)
        is_listing = request.method == "GET" and not name
        kind = "LIST" if is_listing else request.method
        if answer.status == 503:
            self.kinds["503"] += 1
            return
        is_refused = answer.status >= 300
        self.kinds[f"{kind}, refused" if is_refused else kind] += 1
        ledger = _LEDGER.search("/" + (request.query.get("prefix", "") if is_listing else name))
        if ledger is not None:
            self.of_ledgers[bucket, ledger[1]] += 1
        if is_refused:
            return
        if kind == "PUT":
            self.put_bytes += request.content_length or 0
        elif kind == "GET" and isinstance(answer.body, bytes):
            self.read_bytes += len(answer.body)

    def asked(self) -> Asked:
        return Asked(
            self.kinds,
            rounds=int(statistics.median(self.of_ledgers.values() or [1])),
            most=self.most,
            put_bytes=self.put_bytes // max(1, self.kinds["PUT"]),
            read_bytes=self.read_bytes // max(1, self.kinds["GET"]),
        )


class _Store:
    """The buckets, and who is answered what."""

    def __init__(self) -> None:
        self._buckets: dict[str, dict[str, bytes]] = {}
        self._counting = _Counting()
        self._delay_seconds = 0.0
        self._refused_share = 0.0
        self._dice = random.Random(0)
        self._refusals: Counter[tuple[str, str]] = Counter()

    async def handle(self, request: web.BaseRequest) -> web.Response:
        if request.path == CONTROL:
            return await self._controlled(request)
        counting = self._counting
        counting.begin()
        if "Expect" in request.headers and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        data = await request.content.read()
        if self._delay_seconds:
            await asyncio.sleep(self._delay_seconds)
        key = (request.method, request.path_qs)
        if self._refusals[key] < MOST_REFUSALS and self._dice.random() < self._refused_share:
            self._refusals[key] += 1
            answer = _refusal(503, "SlowDown")
        else:
            answer = self._answer(request, data)
        counting.end(request, answer)
        return answer

    async def _controlled(self, request: web.BaseRequest) -> web.Response:
        if request.method == "POST":
            told = await request.json()
            self._delay_seconds = told["delay_seconds"]
            self._refused_share = told["refused_share"]
            self._refusals.clear()
            self._counting = _Counting()
        return web.json_response(vars(self._counting.asked()))

    def _answer(self, request: web.BaseRequest, data: bytes) -> web.Response:
        bucket, name = _place(request)
        if not name and request.method == "PUT":
            self._buckets.setdefault(bucket, {})
            return web.Response()
        objects = self._buckets.get(bucket)
        if objects is None:
            return _refusal(404, "NoSuchBucket")
        method = request.method
        if not name:
            if method == "GET":
                return _listing(objects, request.query)
            if method == "HEAD":
                return web.Response()
            if method == "POST" and "delete" in request.query:
                for key in re.findall(r"<Key>([^<]*)</Key>", data.decode()):
                    objects.pop(key, None)
                return _xml("<DeleteResult/>")
        elif method == "PUT" and not request.query:
            if "If-None-Match" in request.headers and name in objects:
                return _refusal(412, "PreconditionFailed")
            objects[name] = data
            return web.Response(headers=_facts(data))
        elif method == "DELETE":
            objects.pop(name, None)
            return web.Response(status=204)
        elif name not in objects:
            return _refusal(404, "NoSuchKey")
        elif method == "HEAD":
            told = {**_facts(objects[name]), "Content-Length": str(len(objects[name]))}
            return web.Response(headers=told)
        elif method == "GET":
            return _content(objects[name], request.headers.get("Range"))
        return _refusal(501, "NotImplemented")


def _place(request: web.BaseRequest) -> tuple[str, str]:
    """Bucket and object."""
    bucket, _, name = request.path.removeprefix("/").partition("/")
    return bucket, name


def _content(data: bytes, span: str | None) -> web.Response:
    if span is None:
        return web.Response(body=data, headers=_facts(data))
    first, _, last = span.removeprefix("bytes=").partition("-")
    start = int(first) if first else max(0, len(data) - int(last))
    end = int(last) + 1 if first and last else len(data)
    if start >= len(data):
        return _refusal(416, "InvalidRange")
    piece = data[start:end]
    told = f"bytes {start}-{start + len(piece) - 1}/{len(data)}"
    return web.Response(status=206, body=piece, headers={**_facts(data), "Content-Range": told})


def _listing(objects: Mapping[str, bytes], query: Mapping[str, str]) -> web.Response:
    """All on one page."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    names: list[str] = []
    below: dict[str, None] = {}
    for name in sorted(name for name in objects if name.startswith(prefix)):
        end = name.find(delimiter, len(prefix)) if delimiter else -1
        if end < 0:
            names.append(name)
        else:
            below[name[: end + len(delimiter)]] = None
    said = [
        f"<Contents><Key>{escape(name)}</Key><Size>{len(objects[name])}</Size>"
        f"<LastModified>{_NOW.isoformat()}</LastModified></Contents>"
        for name in names
    ]
    said += [f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in below]
    count = len(names) + len(below)
    return _xml(
        f"<ListBucketResult><IsTruncated>false</IsTruncated><KeyCount>{count}</KeyCount>"
        f"{''.join(said)}</ListBucketResult>"
    )


_NOW: Final = datetime.now(tz=timezone.utc).replace(microsecond=0)


def _facts(data: bytes) -> dict[str, str]:
    sum_of = hashlib.md5(data, usedforsecurity=False).hexdigest()
    return {"ETag": f'"{sum_of}"', "Last-Modified": format_datetime(_NOW, usegmt=True)}


def _refusal(status: int, code: str) -> web.Response:
    return _xml(f"<Error><Code>{code}</Code><Message>{code}</Message></Error>", status)


def _xml(text: str, status: int = 200) -> web.Response:
    return web.Response(status=status, text=text, content_type="application/xml")


async def _serve(tell: Callable[[str], None], until: Callable[[], Awaitable[object]]) -> None:
    store = _Store()
    runner = web.ServerRunner(web.Server(store.handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    host, port = runner.addresses[0][:2]
    tell(f"http://{host}:{port}")
    await until()
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(
        _serve(
            lambda address: print(address, flush=True),
            lambda: asyncio.to_thread(sys.stdin.read),
        )
    )
