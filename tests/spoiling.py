"""Files that are damaged."""

from __future__ import annotations

import random
from pathlib import Path


def spoil(path: Path, offset: int | None = None) -> None:
    """One bit is another one: of the byte at an offset, or of the one in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if offset is None else offset] ^= 1
    path.write_bytes(bytes(data))


def spoil_at_random(path: Path, dice: random.Random) -> None:
    """Bits are other ones, or the file is cut."""
    data = bytearray(path.read_bytes())
    if dice.random() < 0.3:
        data = data[: dice.randrange(len(data))]
    else:
        for _ in range(dice.randint(1, 30)):
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    path.write_bytes(bytes(data))
