"""Parameters of which the plain run takes the first, and CI all."""

from __future__ import annotations

from typing import Any

import pytest


def in_full(*values: Any) -> list[Any]:
    """The first value as it is; the others are marked ``full``: they show the same once more."""
    first, *others = values
    marked = [
        pytest.param(*(other if isinstance(other, tuple) else (other,)), marks=pytest.mark.full)
        for other in others
    ]
    return [first, *marked]
