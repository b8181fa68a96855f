"""Passwords in URIs: they are hidden in messages, logs and notes."""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "***"
"""The text in place of a password."""

_IN_URI = re.compile(r"(://[^\s/:@]*:)[^\s/]*@")
"""``://user:password@``. It ends at the last ``@``: a password may contain some."""


def without_passwords(text: str) -> str:
    """Return the text with every ``scheme://user:password@host`` as ``scheme://user:***@host``.

    A text without passwords is returned unchanged, and so is a text that was returned before.
    """
    return _IN_URI.sub(rf"\g<1>{HIDDEN}@", text) if "@" in text else text
