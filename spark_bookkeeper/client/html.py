"""Objects in a notebook: a small table of names and values, without any I/O."""

from __future__ import annotations

import html
from collections.abc import Mapping


def fields_table(fields: Mapping[str, object]) -> str:
    """Return one row for each field that has a value."""
    cells = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>"
        for name, value in fields.items()
        if value is not None
    )
    return f"<table>{cells}</table>"
