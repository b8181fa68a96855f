"""Plain asyncio code that asks an object store as much as we did: the limit of one thread.

The same number of requests of the same kinds, in as many rounds as a ledger has requests in one
bucket: a round begins when the one before has ended, as each request of a ledger needs the
answer before it. It looks at nothing that it is told.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import ClientError

from tests.benchmarks import raw
from tests.benchmarks.object_store import Asked, FarStore

MOST: Final = 256
"""Requests on their way together."""

Send = Callable[[], Awaitable[Any]]


def ask_the_same(store: FarStore, asked: Asked, delay_seconds: float) -> float:
    """Seconds. What a client costs before it sends its first request is not in them."""
    return asyncio.run(_ask(store, asked, delay_seconds))


async def _ask(store: FarStore, asked: Asked, delay_seconds: float) -> float:
    options = store.storage_options
    config = AioConfig(max_pool_connections=MOST, retries={"max_attempts": 0})
    bucket = store.make_bucket()
    async with get_session().create_client(
        "s3",
        **options["client_kwargs"],
        aws_access_key_id=options["key"],
        aws_secret_access_key=options["secret"],
        config=config,
    ) as client:
        kinds = _kinds(client, bucket, asked)
        for name in ("there", "listed/0", "listed/1"):
            await client.put_object(Bucket=bucket, Key=name, Body=raw.noise(asked.read_bytes))
        sends = [kinds[kind] for kind, count in asked.kinds.items() for _ in range(count)]
        store.count(delay_seconds)
        started = time.perf_counter()
        for number in range(asked.rounds):
            await at_once(iter(sends[number :: asked.rounds]))
        seconds = time.perf_counter() - started
    again = store.asked()
    assert again.kinds == asked.kinds, (again, asked)
    return seconds


def _kinds(client: Any, bucket: str, asked: Asked) -> Mapping[str, Send]:
    """How a request of each kind is sent."""
    body = raw.noise(asked.put_bytes)

    async def put(name: str) -> None:
        await client.put_object(Bucket=bucket, Key=name, Body=body, IfNoneMatch="*")

    async def get(name: str) -> None:
        answer = await client.get_object(Bucket=bucket, Key=name)
        await answer["Body"].read()

    async def head(name: str) -> None:
        await client.head_object(Bucket=bucket, Key=name)

    def refused(send: Callable[[str], Awaitable[None]], name: str) -> Send:
        async def sent() -> None:
            with suppress(ClientError):
                await send(name)

        return sent

    return {
        "PUT": lambda: put(secrets.token_hex(16)),
        "PUT, refused": refused(put, "there"),
        "GET": lambda: get("there"),
        "GET, refused": refused(get, "absent"),
        "HEAD": lambda: head("there"),
        "HEAD, refused": refused(head, "absent"),
        "LIST": lambda: client.list_objects_v2(Bucket=bucket, Prefix="listed/", Delimiter="/"),
    }


async def at_once(sends: Iterator[Send]) -> None:
    """All of them; who has an answer sends the next."""

    async def sender() -> None:
        for send in sends:
            await send()

    await asyncio.gather(*(sender() for _ in range(MOST)))
