"""Junk for every kind of node in ZooKeeper: what is left of real bytes, and bytes that never were.

All of it follows a ``random.Random``, so that whatever is found can be had again from its seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from spark_bookkeeper.client.ledger import ENCODING, INCARNATIONS, SCHEMA
from spark_bookkeeper.metadata.formats import (
    BookieServiceInfoFormat,
    CookieFormat,
    LedgerMetadataFormat,
    format_text,
)
from spark_bookkeeper.metadata.zookeeper import paths
from spark_bookkeeper.protocol.ids import BookieId, LedgerId
from spark_bookkeeper.protocol.metadata import NONCE

ABSURD: Final = (
    *(0, 1, -1, 2, -2, -102, 7, 127, 128, 255, 256, 10**4, 2**30, 10**9, 10**12),
    *(2**31 - 1, 2**31, -(2**31), 2**32, 2**40, 2**53, 2**62, 2**63 - 1, 2**63, -(2**63), 2**64),
    *(10**19, 10**30, -(10**30)),
)
"""Numbers at which something ends: a type, a calendar, a memory."""

TEXTS: Final = (
    *(
        "",
        " ",
        "a",
        "/",
        "..",
        "../../x",
        "a/b",
        "readonly",
        "L0001",
        "\n",
        "\t",
        "\r\n",
        "%s",
        "{}",
    ),
    *("10.0.0.1", "10.0.0.1:99999", "host:port", ":", "é", "\u2028", "\U0001f600", "x" * 300),
    *(
        "[bold]",
        "\x1b[31m",
        "NaN",
        "1e999",
        "٣",
        "-0",
        "null",
        "true",
        "[]",
        '{"a":1}',
        "memory://x",
    ),
    *("file://host/x", "file:///" + "y" * 300, "s3://", "nosuch://a/b", "://", "#incarnation="),
    *("http://[", "file:///a\x00b", "/a\x00b"),
)

_HEADER: Final = b"BookieMetadataFormatVersion\t"


def text(dice: random.Random) -> str:
    """Text that somebody may have written, or not."""
    return dice.choice(TEXTS)


def number(dice: random.Random) -> int:
    """A number that makes no sense, mostly."""
    return dice.choice(ABSURD)


def noise(dice: random.Random, most: int = 60) -> bytes:
    """Bytes, sometimes none."""
    return dice.randbytes(dice.randrange(most))


def mutated(dice: random.Random, data: bytes, other: bytes = b"") -> bytes:
    """Bytes with something done to them: bits, a cut, a splice, a piece twice, or all else."""
    if not data:
        return noise(dice)
    at, to = sorted((dice.randrange(len(data) + 1), dice.randrange(len(data) + 1)))
    kind = dice.randrange(8)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + noise(dice, 12) + data[to:]
    if kind == 2:
        return data[:to] + data[at:]
    if kind == 3:
        return data[:at] + other[dice.randrange(len(other) + 1) :]
    if kind == 4:
        return noise(dice, 200)
    flipped = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 8))):
        flipped[dice.randrange(len(flipped))] ^= 1 << dice.randrange(8)
    return bytes(flipped)


# Protobuf, as it travels


def varint(value: int) -> bytes:
    """As protobuf writes it, of any size."""
    value &= (1 << 70) - 1
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def message(dice: random.Random, fields: Sequence[int], depth: int = 0) -> bytes:
    """A protobuf message of which every field holds something, if seldom what it should."""
    data = b""
    for field in fields:
        kind = dice.choice((0, 0, 2, 2, 5, 1))
        data += varint(field << 3 | kind)
        if kind == 0:
            data += varint(number(dice))
        elif kind == 2:
            inside = noise(dice)
            if depth < 3 and dice.random() < 0.4:
                inside = message(dice, [1, 2], depth + 1)
            elif dice.random() < 0.5:
                inside = text(dice).encode()
            data += varint(len(inside)) + inside
        else:
            data += dice.randbytes(4 if kind == 5 else 8)
    return data


def _raw_text(dice: random.Random) -> str:
    """A string of protobuf text that may not be UTF-8."""
    return dice.choice((r"\377\376", r"\355\240\200", r"\ud800", r"\xff", r"\000", "a:1", "é"))


# Ledger metadata


def ledger(dice: random.Random, real: bytes) -> bytes:
    """What may stand in the node of a ledger.

    Args:
        real: the metadata of a ledger of ours in format 3.
    """
    makers: Sequence[Callable[[random.Random, bytes], bytes]] = (
        mutated,
        _with_absurd_fields,
        _with_absurd_fields,
        _with_absurd_custom,
        _with_absurd_custom,
        _as_text,
        _as_lines,
        _random_message,
        lambda dice, _: noise(dice, 100),
    )
    return dice.choice(makers)(dice, real)


def parsed(real: bytes) -> Any:
    """The message in the metadata of a ledger in format 3."""
    body = real.partition(b"\n")[2]
    size, shift, start = 0, 0, 0
    while True:
        byte = body[start]
        size |= (byte & 0x7F) << shift
        start, shift = start + 1, shift + 7
        if byte < 0x80:
            break
    return LedgerMetadataFormat.FromString(body[start : start + size])


def in_format_3(body: bytes) -> bytes:
    """The bytes of a ledger's node around a message."""
    return _HEADER + b"3\n" + varint(len(body)) + body


def _absurd(dice: random.Random, found: Any) -> Any:
    """The message with some fields set to what makes no sense, as far as their types let them."""
    names = [
        "quorumSize",
        "ensembleSize",
        "ackQuorumSize",
        "length",
        "lastEntryId",
        "ctime",
        "state",
    ]
    for name in dice.sample(names, dice.randrange(1, 4)):
        try:
            setattr(found, name, number(dice) if name != "state" else dice.randrange(1, 4))
        except ValueError:
            continue  # outside the type
    kind = dice.randrange(6)
    if kind == 0:
        found.segment.add(ensembleMember=[text(dice)], firstEntryId=dice.choice((0, 5, -1, 2**62)))
    elif kind == 1 and found.segment:
        found.segment[0].firstEntryId = dice.choice((-1, 1, 2**62))
    elif kind == 2 and found.segment:
        members = found.segment[0].ensembleMember
        members[:] = [dice.choice((text(dice), members[0])) for _ in members]
    elif kind == 3 and found.segment:
        found.segment.add().CopyFrom(found.segment[0])
        found.segment[-1].firstEntryId = dice.choice((0, 1, 10**9, 2**62, 2**63 - 1))
    return found


def _with_absurd_fields(dice: random.Random, real: bytes) -> bytes:
    return in_format_3(_absurd(dice, parsed(real)).SerializePartialToString())


def _with_absurd_custom(dice: random.Random, real: bytes) -> bytes:
    found = parsed(real)
    by_key = {item.key: item for item in found.customMetadata}
    key = dice.choice((NONCE, SCHEMA, SCHEMA, INCARNATIONS, ENCODING))
    if key not in by_key or dice.random() < 0.1:
        del found.customMetadata[:]
    elif key == SCHEMA:
        by_key[key].value = dice.choice((mutated(dice, by_key[key].value), odd_schema(dice)))
    elif dice.random() < 0.3:
        by_key[key].value = mutated(dice, by_key[key].value)
    else:
        by_key[key].value = odd_json(dice) if key != NONCE else text(dice).encode()
    return in_format_3(found.SerializePartialToString())


def odd_json(dice: random.Random) -> bytes:
    """JSON of another form than any that is looked for, or nearly JSON."""
    value: Any = dice.choice(
        (
            *(None, True, 0, 1.5, "", [], [1, [2]], {}, {"a": None}, {"compression": []}),
            {"compression": None, "entry_target_bytes": number(dice)},
            {"compression": text(dice), "entry_target_bytes": 1},
            {"compression": None, "entry_target_bytes": text(dice)},
            {text(dice): number(dice)},
            {"10.0.0.1:3181": None, "127.0.0.1:3181": [1]},
            [["127.0.0.1:3181", "x"]],
        )
    )
    data = json.dumps(value).encode()
    return dice.choice((data, data, data[:-1], b"[" * 100_000, b"NaN", b'"\\ud800"', b"1" * 5000))


def odd_schema(dice: random.Random) -> bytes:
    """An Arrow schema that no ledger has."""
    kind: pa.DataType = dice.choice(
        (
            *(
                pa.null(),
                pa.decimal128(38, -5),
                pa.large_binary(),
                pa.duration("ns"),
                pa.time64("ns"),
            ),
            pa.dictionary(pa.int8(), pa.string()),
            pa.run_end_encoded(pa.int32(), pa.string()),
            pa.dense_union([pa.field("a", pa.dictionary(pa.int8(), pa.string()))]),
            pa.list_(pa.dictionary(pa.int8(), pa.string())),
            pa.list_(pa.int8(), 2**31 - 1),
        )
    )
    fields = [pa.field(text(dice), kind) for _ in range(dice.randrange(4))]
    return bytes(pa.schema(fields, metadata={b"\xff": b"\xfe"}).serialize().to_pybytes())


def _as_text(dice: random.Random, real: bytes) -> bytes:
    shown = format_text(_absurd(dice, parsed(real)))
    lines = shown.splitlines(keepends=True)
    for _ in range(dice.randrange(3)):
        at = dice.randrange(len(lines) + 1)
        lines.insert(
            at,
            dice.choice(
                (
                    f"ctime: {number(dice)}\n",
                    f"length: {number(dice)}\n",
                    f'segment {{ ensembleMember: "{_raw_text(dice)}" firstEntryId: 3 }}\n',
                    f'customMetadata {{ key: "{_raw_text(dice)}" value: "x" }}\n',
                    "unknown { " * 3000,
                    "# nothing\n",
                )
            ),
        )
    data = "".join(lines).encode("utf-8", "surrogatepass")
    if dice.random() < 0.3:
        data = mutated(dice, data)
    return _HEADER + b"2\n" + data


def _as_lines(dice: random.Random, real: bytes) -> bytes:
    found = parsed(real)
    names = list(found.segment[0].ensembleMember)
    rows = [
        str(dice.choice((len(names), number(dice)))),
        str(dice.choice((len(names), len(names), number(dice)))),
        str(dice.choice((0, 100, number(dice)))),
    ]
    for _ in range(dice.randrange(4)):
        rows.append("\t".join([str(number(dice)), *dice.choice((names, [text(dice)], names[:1]))]))
    if dice.random() < 0.6:
        rows.append(f"{number(dice)}\tCLOSED")
    data = "\n".join(rows).encode("utf-8", "surrogatepass")
    if dice.random() < 0.3:
        data = mutated(dice, data)
    return _HEADER + b"1\n" + data


def _random_message(dice: random.Random, _: bytes) -> bytes:
    body = message(dice, range(1, 13))
    return dice.choice((in_format_3(body), _HEADER + b"3\n" + varint(number(dice)) + body))


# What bookies say of themselves


def cookie(dice: random.Random, real: bytes, other: bytes) -> bytes:
    """What may stand in a cookie; ``other`` is that of another bookie."""
    kind = dice.randrange(5)
    if kind == 0:
        return mutated(dice, real, other)
    if kind == 1:
        return other
    if kind == 2:
        return b"3\n" + text(dice).encode() + b"\n" + noise(dice)
    if kind == 3:
        fields = {name: text(dice) for name in ("bookieHost", "journalDir", "ledgerDirs")}
        made = CookieFormat(**fields, instanceId=text(dice))
        return f"{dice.choice((5, 4, 3, -1, 10**30))}\n{format_text(made)}".encode()
    lines = "".join(
        f'{name}: "{_raw_text(dice)}"\n' for name in ("bookieHost", "journalDir", "ledgerDirs")
    )
    return f"5\n{lines}".encode("utf-8", "surrogatepass")


def registration(dice: random.Random, real: bytes, other: bytes) -> bytes:
    """What may stand in a registration; ``other`` is that of another bookie."""
    kind = dice.randrange(5)
    if kind == 0:
        return mutated(dice, real, other)
    if kind == 1:
        return message(dice, [6, 7, 7, 9])
    if kind == 2:
        return noise(dice)
    found = BookieServiceInfoFormat.FromString(real)
    for item in found.properties:
        if dice.random() < 0.5:
            item.value = str(number(dice)) if dice.random() < 0.3 else text(dice)
        if kind == 3 and dice.random() < 0.3:
            item.value = "9" * 5000
    return bytes(found.SerializePartialToString())


def node_name(dice: random.Random) -> str:
    """The name of a node that has no business where it is; such as ZooKeeper takes."""
    return dice.choice(
        (
            *(
                "x",
                "L",
                "L0001",
                "0000",
                "00",
                "é",
                "٠٠٠٠",
                "L٠٠٠٠",
                "-1",
                "readonly2",
                "999",
                "000",
            ),
            *("a b", "10.0.0.1", "10.0.0.1:99999", "HOB-", "HOB-x", "HOB-99999999999999", "ID-x"),
            *("abcd12", "HOB-0000000001x", "x" * 300, "[bold]"),
        )
    )


# Nodes of every kind at once

ROOT: Final = "/ledgers"

STRANGERS: Final = [BookieId(f"10.0.0.{n}:3181") for n in range(1, 4)]
"""Bookies of which there is nothing but junk."""

LEDGERS: Final = [LedgerId(n) for n in (50, 51, 52, 53, 1 << 33)]


def nodes(
    dice: random.Random,
    node: Mapping[str, bytes],
    ledger_ids: Sequence[LedgerId],
    alive: Sequence[BookieId],
    lost: BookieId,
) -> dict[str, bytes]:
    """Junk for nodes of every kind, made from what real nodes hold."""
    real = [node[paths.ledger(ROOT, i)] for i in ledger_ids]
    cookies = [node[paths.cookie(ROOT, b)] for b in alive]
    registrations = [node[paths.registration(ROOT, b, readonly=False)] for b in alive]
    planted = {paths.ledger(ROOT, i): ledger(dice, dice.choice(real)) for i in LEDGERS}
    for stranger in STRANGERS:
        planted[paths.cookie(ROOT, stranger)] = cookie(dice, *dice.sample(cookies, 2))
        planted[paths.registration(ROOT, stranger, readonly=dice.random() < 0.3)] = registration(
            dice, *dice.sample(registrations, 2)
        )
    parents = (
        *(ROOT, f"{ROOT}/00", f"{ROOT}/00/0000", f"{ROOT}/available", f"{ROOT}/cookies"),
        *(f"{ROOT}/available/readonly", f"{ROOT}/idgen", f"{ROOT}/idgen-long", f"{ROOT}/000"),
    )
    for parent in dice.sample(parents, 3):
        odd = f"{parent}/{node_name(dice)}"
        data = dice.choice(
            (
                noise(dice),
                ledger(dice, real[0]),
                registration(dice, *registrations[:2]),
            )
        )
        if odd not in node:
            planted[odd] = data
    if dice.random() < 0.3:
        planted[f"{ROOT}/999/9999/9999/9999/L9999"] = ledger(dice, real[0])
    if dice.random() < 0.3:
        planted[f"{ROOT}/idgen"] = noise(dice)
    if dice.random() < 0.3:
        planted[paths.instance_id(ROOT)] = noise(dice) + b"\xff"  # never another cluster's
    if dice.random() < 0.3:
        planted[paths.cookie(ROOT, lost)] = noise(dice)
    return planted
