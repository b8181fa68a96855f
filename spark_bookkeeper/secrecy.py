"""Passwords in URIs: what is said to people, logged or noted for others shows none."""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "***"
"""What stands where a password was."""

_IN_URI = re.compile(r"(://[^\s/:@]*:)[^\s/]*@")
"""``://user:password@``. It ends at the last ``@``: a password may have some too."""


def without_passwords(text: str) -> str:
    """A text in which every ``scheme://user:password@host`` is ``scheme://user:***@host``.

    What has none is returned as it is, and hiding twice is hiding once.
    """
    return _IN_URI.sub(rf"\g<1>{HIDDEN}@", text) if "@" in text else text
