"""Arguments that several commands take."""

from __future__ import annotations

import copy
import re
from typing import Any

import click
from typing_extensions import override


class LedgerIdType(click.IntRange):
    """A ledger id; refused under that name."""

    name = "ledger id"

    def __init__(self) -> None:
        super().__init__(min=0, max=(1 << 63) - 1)

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        # Python would take "1_0" for 10, and a slip would delete another ledger.
        if isinstance(value, str) and not re.fullmatch(r"-?[0-9]+", value):
            self.fail(f"{value!r} is not a valid {self.name}.", param, ctx)
        return super().convert(value, param, ctx)


_EMPTY = "it is empty; is a variable not set that should hold it?"


class _FilledText(click.types.StringParamType):
    """Text that says something."""

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self.fail(_EMPTY, param, ctx) if value == "" else super().convert(value, param, ctx)


class _FilledPath(click.Path):
    """A path that was given: an empty one would be the directory that one happens to be in."""

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self.fail(_EMPTY, param, ctx) if value == "" else super().convert(value, param, ctx)


def refuse_empty(command: click.Command) -> None:
    """Have a command refuse every text and path that is empty, unless that is its default."""
    for parameter in command.params:
        if parameter.default == "":
            continue
        if isinstance(parameter.type, click.Path):
            filled = copy.copy(parameter.type)
            filled.__class__ = _FilledPath
            parameter.type = filled
        elif parameter.type is click.STRING:
            parameter.type = _FilledText()
