"""Which seeds a test tries: few in the plain run, more with the marks for that."""

from __future__ import annotations

import pytest
from _pytest.mark import ParameterSet


def tiers(*, plain: int, full: int, exhaustive: int, block: int = 10_000) -> list[ParameterSet]:
    """Ranges of seeds for ``parametrize``, each of at most ``block``.

    Those below ``plain`` have no mark, those below ``full`` have that mark, and those below
    ``exhaustive`` have that one.
    """
    marked: tuple[tuple[range, list[pytest.MarkDecorator]], ...] = (
        (range(plain), []),
        (range(plain, full), [pytest.mark.full]),
        (range(full, exhaustive), [pytest.mark.exhaustive]),
    )
    return [
        pytest.param(some := seeds[at : at + block], id=f"{some.start}-{some.stop}", marks=marks)
        for seeds, marks in marked
        for at in range(0, len(seeds), block)
    ]
