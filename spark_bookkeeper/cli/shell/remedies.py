"""What is told as a remedy, as it can be typed or pasted."""

from __future__ import annotations

import re
import shlex
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


_NEEDS_CLUSTER: Final = re.compile(
    r"spark-bookkeeper (?=(?:doctor|cluster|bookie|ledger|log|autorecovery)\b)"
)


def pasteable(text: str, metadata_uri: str | None) -> str:
    """Its commands with the URI that this one was given, quoted; ``None``: by the environment."""
    if metadata_uri is None:
        return text
    given = f"spark-bookkeeper --metadata-uri {shlex.quote(metadata_uri)} "
    return _NEEDS_CLUSTER.sub(lambda _: given, text)


def in_commands(message: str) -> str:
    """The message of an error, for whoever typed a command. Calls of an object stay."""
    for call, command in _COMMANDS:
        typed = command.replace("`", "`spark-bookkeeper ", 1)
        message = re.sub(rf"(?<![\w.`]){call}", typed, message)
    return message
