"""What is done for ledgers together is seen by what is not done for each of them."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest


class Alone:
    """Notes for which ledgers a function of a module was called: each by itself.

    Args:
        ledger_id_of: the ledger, by the arguments of such a call.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        module: ModuleType,
        function: str,
        ledger_id_of: Callable[..., int],
    ) -> None:
        self.ledger_ids: list[int] = []
        by_itself = getattr(module, function)

        def noted(*arguments: Any, **named: Any) -> Any:
            self.ledger_ids.append(ledger_id_of(*arguments))
            return by_itself(*arguments, **named)

        monkeypatch.setattr(module, function, noted)
