"""How trouble is told to Spark: the name of its condition in brackets, then what happened."""

from __future__ import annotations

from spark_bookkeeper.errors import BookKeeperError


class told:  # noqa: N801  (used as ``with told():``)
    """Errors of ours begin with their condition: only the text reaches the driver.

    With all frames that it has, so it has few: none of ``contextlib``, and no cause.
    """

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, *more: object) -> None:
        if not isinstance(error, BookKeeperError):
            return
        if not error.message.startswith(f"[{error.condition}]"):
            raise type(error)(error.for_worker(), **error.facts) from None
