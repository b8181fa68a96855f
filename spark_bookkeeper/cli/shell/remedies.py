"""What is told as a remedy, as it can be typed or pasted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from spark_bookkeeper.runtime.private_files import holds_a_secret

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
    r"spark-bookkeeper (doctor|(cluster(?! back)|bookie( cookie)?|ledger|log|autorecovery) [a-z-]+)"
)
"""Not so a backup: who restores one is told of it, and it is of another cluster."""


def pasteable(text: str, typed: Sequence[str]) -> str:
    """Its commands with the URI and the options that were typed for this one, but for secrets."""
    words = [part for each in typed for part in each.split("=", int(each[:2] == "--"))]
    given = dict(pairwise(words))
    command = "spark-bookkeeper "
    if uri := given.get("--metadata-uri"):
        command += f"--metadata-uri {shlex.quote(uri)} "
    if conf := given.get("--conf"):  # which stands behind a verb; its variable stands before
        command = f"SPARK_BOOKKEEPER_CONF={shlex.quote(conf)} {command}"
    options = ""
    for option, pair in pairwise(words):
        name, separator, value = pair.partition("=")
        if separator and option in ("--zk-option", "--storage-option"):
            shown = "..." if holds_a_secret({name: value}) else value
            options += f" {option} {shlex.quote(f'{name}={shown}')}"
    return _NEEDS_CLUSTER.sub(lambda found: f"{command}{found[1]}{options}", text)


def in_commands(message: str) -> str:
    """The message of an error, for whoever typed a command. Calls of an object stay."""
    for call, command in _COMMANDS:
        typed = command.replace("`", "`spark-bookkeeper ", 1)
        message = re.sub(rf"(?<![\w.`]){call}", typed, message)
    return message
