"""The form of errors for Spark: the name of the condition in brackets, then the message."""

from __future__ import annotations

from spark_bookkeeper.errors import BookKeeperError


class told:  # noqa: N801  (used as ``with told():``)
    """Puts the condition before the message of our errors: only text reaches the driver.

    The text has all stack frames. To keep them few, this uses no ``contextlib``, and no cause.
    """

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, *more: object) -> None:
        if not isinstance(error, BookKeeperError):
            return
        if not error.message.startswith(f"[{error.condition}]"):
            raise type(error)(error.for_worker(), **error.facts) from None
