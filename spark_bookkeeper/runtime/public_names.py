"""What tab completion offers of an object that people hold."""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override


class PublicNames:
    """Offers what is for users: no name with an underscore in front, and none of ``_INTERNALS``.

    Those can still be called, by the other layers of this library.
    """

    __slots__ = ()

    _INTERNALS: ClassVar[frozenset[str]] = frozenset()
    """Names without an underscore that are for the other layers only."""

    @override
    def __dir__(self) -> list[str]:
        names = object.__dir__(self)
        return [name for name in names if name[0] != "_" and name not in self._INTERNALS]
