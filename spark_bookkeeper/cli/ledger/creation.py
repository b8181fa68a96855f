"""Options of commands that create a ledger, and its creation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import click
import pyarrow as pa

from spark_bookkeeper.cli.shell.cluster_options import pairs
from spark_bookkeeper.cli.shell.parameters import WholeNumber
from spark_bookkeeper.client.ledger import DEFAULT_ENTRY_TARGET_BYTES
from spark_bookkeeper.client.write.writer import LedgerWriter
from spark_bookkeeper.errors import NotEnoughBookiesError
from spark_bookkeeper.session import BookKeeper

Command = TypeVar("Command", bound=Callable[..., Any])

_SIZE: Final = WholeNumber(min=1)

password_option = click.option(
    "--password", envvar="SPARK_BOOKKEEPER_PASSWORD", default="", help="The ledger's password."
)


def new_ledger_options(command: Command) -> Command:
    """Give a command the options of a new ledger, passed as ``wish``, for ``create_ledger``."""

    @click.option(
        "--ensemble-size",
        "-e",
        type=_SIZE,
        default=3,
        show_default=True,
        help="E: bookies that share its entries.",
    )
    @click.option(
        "--write-quorum-size", "-w", type=_SIZE, help="Qw: copies of each entry.  [default: 3]"
    )
    @click.option(
        "--ack-quorum-size",
        "-a",
        type=_SIZE,
        help="Qa: copies that an append waits for.  [default: 2]",
    )
    @click.option("--name", help="A label to find it by.")
    @click.option("--owner", help="A label: whose it is.")
    @click.option(
        "--label", "labels", multiple=True, metavar="KEY=VALUE", help="Any other; repeatable."
    )
    @click.option(
        "--digest-type",
        type=click.Choice(["CRC32C", "CRC32", "MAC", "DUMMY"], case_sensitive=False),
        default="CRC32C",
        show_default=True,
        help="How entries are verified.",
    )
    @click.option("--compression", type=click.Choice(["lz4", "zstd"]), help="Of the entries.")
    @click.option(
        "--entry-target-bytes",
        type=_SIZE,
        default=DEFAULT_ENTRY_TARGET_BYTES,
        show_default=True,
        help="About how large entries of rows get.",
    )
    @password_option
    @functools.wraps(command)
    def with_wish(
        *arguments: Any,
        ensemble_size: int,
        write_quorum_size: int | None,
        ack_quorum_size: int | None,
        labels: Sequence[str],
        password: str,
        name: str | None,
        owner: str | None,
        digest_type: str,
        compression: str | None,
        entry_target_bytes: int,
        **named: Any,
    ) -> Any:
        copies = min(3, ensemble_size) if write_quorum_size is None else write_quorum_size
        wish = {
            "ensemble_size": ensemble_size,
            "write_quorum_size": copies,
            "ack_quorum_size": min(2, copies) if ack_quorum_size is None else ack_quorum_size,
            "name": name,
            "owner": owner,
            "digest_type": digest_type,
            "compression": compression,
            "entry_target_bytes": entry_target_bytes,
            "password": password.encode(),
            "custom_metadata": {
                k: v.encode()
                for k, v in pairs("--label", labels, "team=flights", is_secret=False).items()
            },
        }
        return command(*arguments, wish=wish, **named)

    return with_wish  # type: ignore[return-value]  # click sees only that it is callable


def create_ledger(
    bk: BookKeeper, wish: Mapping[str, Any], schema: pa.Schema | None
) -> LedgerWriter:
    """Create a ledger with these options.

    Raises:
        NotEnoughBookiesError: with the fact that nothing was changed; other errors as they are.
    """
    try:
        return bk.create_ledger(schema=schema, **wish)
    except NotEnoughBookiesError as error:
        raise NotEnoughBookiesError(error.message, **error.facts, nothing_changed=True) from error
