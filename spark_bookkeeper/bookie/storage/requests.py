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

OF_ONE_CALL: Final = 64
"""Requests on their way. Each of them holds a connection, and its content in memory."""


class Requests:
    """Those of one storage, all of them in one event loop.

    Args:
        most: on their way together, of all calls.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._free = asyncio.Semaphore(most)

    async def ask(
        self, requests: Sequence[Callable[[], Awaitable[T]]], progress: Callable[[], None]
    ) -> list[T]:
        """One call: answers in order. An error is the call's: nothing more is sent after it, and it
        is raised when what was on its way has ended.

        Args:
            progress: called before each request is sent, which has not been silent before that,
                and after each answer. It raises when nobody waits for the call any more.
        """
        free_of_call = asyncio.Semaphore(OF_ONE_CALL)
        has_failed = asyncio.Event()

        async def one(request: Callable[[], Awaitable[T]]) -> T:
            try:
                progress()  # the call may have waited long for this place
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
        await asyncio.gather(*sent, return_exceptions=True)
        return [task.result() for task in sent]
