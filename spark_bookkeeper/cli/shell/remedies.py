"""What is told as a remedy, as it can be typed or pasted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import pairwise
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
    r"spark-bookkeeper (?=(?:doctor|cluster(?! backup)|bookie|ledger|log|autorecovery)\b)"
)
"""Not so a backup: who restores one is told of it, and it is of another cluster."""


def pasteable(text: str, typed: Sequence[str]) -> str:
    """Its commands with the URI and the file of options that were typed for this one, quoted."""
    words = [part for each in typed for part in each.split("=", int(each[:2] == "--"))]
    given = dict(pairwise(words))
    command = "spark-bookkeeper "
    if uri := given.get("--metadata-uri"):
        command += f"--metadata-uri {shlex.quote(uri)} "
    if conf := given.get("--conf"):  # which stands behind a verb; its variable stands before
        command = f"SPARK_BOOKKEEPER_CONF={shlex.quote(conf)} {command}"
    return _NEEDS_CLUSTER.sub(lambda _: command, text)


def in_commands(message: str) -> str:
    """The message of an error, for whoever typed a command. Calls of an object stay."""
    for call, command in _COMMANDS:
        typed = command.replace("`", "`spark-bookkeeper ", 1)
        message = re.sub(rf"(?<![\w.`]){call}", typed, message)
    return message
