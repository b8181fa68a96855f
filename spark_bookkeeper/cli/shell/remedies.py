"""Calls that the library's errors name as remedies, as the commands that do the same."""

from __future__ import annotations

import re
from typing import Final

_COMMANDS: Final = (
    (r"open_log\(['\"]([^'\"]+)['\"]\) opens it", r"`log show \1` shows it"),
    (r"create_log\(\)", "`log create`"),
    (r"logs\(\)", "`log list`"),
    (r"bookies\(\)", "`bookie list`"),
    (r"ask for fewer: ensemble_size=", "ask for fewer: --ensemble-size "),
    (r"recover_ledgers\(\)", "`ledger recover`"),
)
"""What a message says, and what a person types behind ``spark-bookkeeper``."""


def in_commands(message: str) -> str:
    """The message of an error, for whoever typed a command. Calls of an object stay."""
    for call, command in _COMMANDS:
        typed = command.replace("`", "`spark-bookkeeper ", 1)
        message = re.sub(rf"(?<![\w.`]){call}", typed, message)
    return message
