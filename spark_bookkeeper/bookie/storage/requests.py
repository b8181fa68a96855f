"""Requests to one object store that are on their way together.

Calls for many files share the connections. Each call asks for one more at a time, and calls take
turns: none of them waits for more than what the others have on their way, however many files they
are for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

OF_ONE_CALL: Final = 32
"""Requests on their way. Each of them holds a connection, and its content in memory."""


class Requests:
    """Those of one storage, all of them in one event loop.

    Args:
        most: on their way together, of all calls.
    """

    def __init__(self, most: int) -> None:
        self._free = asyncio.Semaphore(most)

    async def ask(
        self, requests: Sequence[Callable[[], Awaitable[T]]], progress: Callable[[], None]
    ) -> list[T | BaseException]:
        """One call: answers in order, and errors in their places.

        After the first error, of a request or of ``progress``, which is called after each answer,
        nothing more is sent, and the list may be shorter. What is on its way has ended.
        """
        free_of_call = asyncio.Semaphore(OF_ONE_CALL)
        has_failed = asyncio.Event()

        async def one(request: Callable[[], Awaitable[T]]) -> T:
            try:
                answer = await request()
                progress()
            except BaseException:
                has_failed.set()
                raise
            finally:
                self._free.release()
                free_of_call.release()
            return answer

        sent: list[asyncio.Task[T]] = []
        for request in requests:
            await free_of_call.acquire()
            await self._free.acquire()
            if has_failed.is_set():
                self._free.release()
                break
            sent.append(asyncio.create_task(one(request)))
        return await asyncio.gather(*sent, return_exceptions=True)
