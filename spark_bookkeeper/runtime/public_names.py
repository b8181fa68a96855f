"""The names that tab completion offers for an object that users hold."""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override


class PublicNames:
    """Offers names for users only: none that begins with an underscore or is in ``_INTERNALS``.

    The other layers of this library can still use those.
    """

    __slots__ = ()

    _INTERNALS: ClassVar[frozenset[str]] = frozenset()
    """Names without an underscore that only other layers use."""

    @override
    def __dir__(self) -> list[str]:
        names = object.__dir__(self)
        return [name for name in names if name[0] != "_" and name not in self._INTERNALS]
