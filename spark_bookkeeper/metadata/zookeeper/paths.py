"""The names of all znodes of a cluster.

The tree is Apache BookKeeper's. A ledger id becomes a path in one of two forms ("hierarchical"
layout); each id has only one valid form:

* ids below 2**31 - 1: ten decimal digits split 2-4-4, ``00/0000/L0007``;
* all others: nineteen digits split 3-4-4-4-4, ``000/0000/0021/4748/L3647``.

Source: BookKeeper 4.17 ``util/StringUtils``, ``meta/HierarchicalLedgerManager`` (which form),
``meta/AbstractZkLedgerManager`` (names that are not ledgers), ``util/BookKeeperConstants``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from spark_bookkeeper.protocol.ids import LEDGER_IDS_END, BookieId, LedgerId

LONG_ID_FIRST: Final = (1 << 31) - 1
"""The smallest id in the long form, and the first that the short generator cannot give."""

READONLY: Final = "readonly"

_SHORT_PARENT = re.compile(r"\d{2}")
_LONG_PARENT = re.compile(r"\d{3}")
_MIDDLE = re.compile(r"\d{4}")
_LEAF = re.compile(r"L(\d{4})")


def layout(root: str) -> str:
    """The node that names the ledger manager of the cluster."""
    return f"{root}/LAYOUT"


def instance_id(root: str) -> str:
    """The node with the cluster's random name."""
    return f"{root}/INSTANCEID"


def available(root: str) -> str:
    """The parent of the registrations of writable bookies, and of the read-only ones' parent."""
    return f"{root}/available"


def available_readonly(root: str) -> str:
    """The parent of the registrations of read-only bookies."""
    return f"{root}/available/{READONLY}"


def registration(root: str, bookie_id: BookieId, *, readonly: bool) -> str:
    """The ephemeral node of a live bookie."""
    parent = available_readonly(root) if readonly else available(root)
    return f"{parent}/{bookie_id}"


def cookies(root: str) -> str:
    """The parent of all cookies."""
    return f"{root}/cookies"


def cookie(root: str, bookie_id: BookieId) -> str:
    """The cookie of one bookie."""
    return f"{root}/cookies/{bookie_id}"


def short_ids(root: str) -> str:
    """The parent of the counter that gives ids below ``LONG_ID_FIRST``."""
    return f"{root}/idgen"


def long_ids(root: str) -> str:
    """The parent of the counters of all other ids; exists once the short counter ran out."""
    return f"{root}/idgen-long"


def underreplication(root: str) -> str:
    """The parent of all nodes about ledgers that lack replicas."""
    return f"{root}/underreplication"


def tasks(root: str) -> str:
    """The parent of the tree of under-replicated ledgers."""
    return f"{root}/underreplication/ledgers"


def task(root: str, ledger_id: LedgerId) -> str:
    """The node that lists the replicas that a ledger lacks.

    Its ancestors are the four groups of 16 bits of the id, highest first; its own name is decimal.
    """
    digits = f"{ledger_id:016x}"
    groups = "/".join(digits[start : start + 4] for start in range(0, 16, 4))
    return f"{tasks(root)}/{groups}/urL{ledger_id:010d}"


def task_parents(root: str, ledger_id: LedgerId) -> list[str]:
    """The nodes between ``tasks`` and a task, deepest first."""
    parents = [task(root, ledger_id).rpartition("/")[0]]
    for _ in range(3):
        parents.append(parents[-1].rpartition("/")[0])
    return parents


def locks(root: str) -> str:
    """The parent of the locks of ledgers that are being rereplicated."""
    return f"{root}/underreplication/locks"


def lock(root: str, ledger_id: LedgerId) -> str:
    """The ephemeral node of the client that rereplicates a ledger."""
    return f"{locks(root)}/urL{ledger_id:010d}"


def auditor_election(root: str) -> str:
    """The parent of the nodes of the auditor's election; its data names the present auditor."""
    return f"{root}/underreplication/auditorelection"


def writers(root: str) -> str:
    """The parent of the nodes of living writers, which no tool of BookKeeper reads."""
    return f"{root}/underreplication/spark-bookkeeper-writers"


def clock(root: str, token: str) -> str:
    """A short-lived node for reading the store's clock; BookKeeper lists no nodes here."""
    return f"{root}/underreplication/spark-bookkeeper-clock-{token}"


def writer(root: str, ledger_id: LedgerId, token: str) -> str:
    """The ephemeral node that shows that a ledger's writer lives.

    Args:
        token: of this life of the ledger; the writer of an earlier life has another.
    """
    return f"{writers(root)}/{ledger_id}-{token}"


def ours(root: str, instance: str) -> str:
    """The parent of this library's own nodes, for the cluster with an INSTANCEID.

    Below a counter of ids it would use up a number, and elsewhere BookKeeper would list it.
    """
    return f"{all_of_ours(root)}/cluster-{instance}"


def all_of_ours(root: str) -> str:
    """The parent of ``ours`` for this cluster and for the clusters formatted before it."""
    return f"{root}/underreplication/spark-bookkeeper"


def name_of(path: str) -> str:
    """Return the last part of a path."""
    return path.rpartition("/")[2]


def used_id(folder: str, ledger_id: LedgerId) -> str:
    """The mark of a chosen id, which stays when the ledger is deleted."""
    return ledger(f"{folder}/used-ids", ledger_id)


def register(folder: str, name: str) -> str:
    """A value of ours, such as the head of a log."""
    return f"{folder}/registers/{name}"


def election(folder: str, path: str) -> str:
    """The parent of the candidate nodes of one of our elections."""
    return f"{folder}/elections/{path}"


def ledger(root: str, ledger_id: LedgerId) -> str:
    """The node that holds a ledger's metadata."""
    if ledger_id < LONG_ID_FIRST:
        digits = f"{ledger_id:010d}"
        return f"{root}/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
    digits = f"{ledger_id:019d}"
    middle = "/".join(digits[start : start + 4] for start in (3, 7, 11))
    return f"{root}/{digits[:3]}/{middle}/L{digits[15:]}"


def ledger_parents(root: str, ledger_id: LedgerId) -> list[str]:
    """Return the nodes between the root and a ledger, deepest first."""
    parts = ledger(root, ledger_id)[len(root) + 1 :].split("/")[:-1]
    return [f"{root}/{'/'.join(parts[:depth])}" for depth in range(len(parts), 0, -1)]


def ledgers_below(root: str, parent: str, names: Iterable[str]) -> Iterator[LedgerId]:
    """Yield the ledgers among the children of one node, ascending; skip all other children.

    A path of the wrong form for its id (short instead of long, or the reverse) is no ledger's:
    BookKeeper would never look there.
    """
    digits, ids = parent[len(root) + 1 :].replace("/", ""), ids_below(root, parent)
    if not ids or len(digits) not in (6, 15):
        return
    base = int(digits) * 10_000
    for name in sorted(names):
        if name.isascii() and _LEAF.fullmatch(name) and base + int(name[1:]) in ids:
            yield LedgerId(base + int(name[1:]))


def ids_below(root: str, parent: str) -> range:
    """Return the ids of the ledgers that may be anywhere below a node; empty if none may be."""
    parts = parent[len(root) + 1 :].split("/")
    digits = "".join(parts)
    if not digits.isascii() or not is_parent_name(parts):
        return range(0)
    if len(parts[0]) == 2:
        each, first, end = 10 ** (10 - len(digits)), 0, LONG_ID_FIRST
    else:
        each, first, end = 10 ** (19 - len(digits)), LONG_ID_FIRST, LEDGER_IDS_END
    base = int(digits) * each
    return range(max(first, base), min(end, base + each))


def is_parent_name(parts: list[str]) -> bool:
    """Return whether these names, from the root down, can lead to ledgers."""
    first, *rest = parts or [""]
    if _SHORT_PARENT.fullmatch(first):
        depth = 2
    elif _LONG_PARENT.fullmatch(first):
        depth = 4
    else:
        return False
    return len(parts) <= depth and all(_MIDDLE.fullmatch(name) for name in rest)
