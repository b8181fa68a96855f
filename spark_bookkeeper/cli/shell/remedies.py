"""Remedies in messages, as commands that can be typed or pasted."""

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
"""Calls in messages, and the commands that a person types instead, after ``spark-bookkeeper``."""


_NEEDS_CLUSTER: Final = re.compile(
    r"spark-bookkeeper (doctor|(cluster(?! back)|bookie( cookie)?|ledger|log|autorecovery) [a-z-]+)"
)
"""Commands that need this cluster's URI. A message may suggest ``cluster backup`` for another."""


def pasteable(text: str, typed: Sequence[str]) -> str:
    """Add the URI and options of this command line, except secrets, to the commands in a text."""
    words = [part for each in typed for part in each.split("=", int(each[:2] == "--"))]
    given = dict(pairwise(words))
    command = "spark-bookkeeper "
    if uri := given.get("--metadata-uri"):
        command += f"--metadata-uri {shlex.quote(uri)} "
    if conf := given.get("--conf"):  # valid only after the verb; its variable goes first
        command = f"SPARK_BOOKKEEPER_CONF={shlex.quote(conf)} {command}"
    options = ""
    for option, pair in pairwise(words):
        name, separator, value = pair.partition("=")
        if separator and option in ("--zk-option", "--storage-option"):
            shown = "..." if holds_a_secret({name: value}) else value
            options += f" {option} {shlex.quote(f'{name}={shown}')}"
    return _NEEDS_CLUSTER.sub(lambda found: f"{command}{found[1]}{options}", text)


def in_commands(message: str) -> str:
    """Replace calls in an error message by commands. Calls of an object stay."""
    for call, command in _COMMANDS:
        typed = command.replace("`", "`spark-bookkeeper ", 1)
        message = re.sub(rf"(?<![\w.`]){call}", typed, message)
    return message
