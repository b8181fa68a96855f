"""What a client counts of what it does: each thing once, and nobody else's."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import generate_latest

from spark_bookkeeper.client import lifecycle
from spark_bookkeeper.client.context import ClientContext
from spark_bookkeeper.client.recover.recovery import recover_ledger
from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.errors import LedgerFencedError, NoSuchLedgerError, RecoveryUndecidedError
from spark_bookkeeper.metrics import BookieMetrics, ClientMetrics
from spark_bookkeeper.protocol.ids import BookieId
from spark_bookkeeper.protocol.quorum import Quorum
from spark_bookkeeper.replication.recover_bookie import BookieRecovery, recover_bookie
from spark_bookkeeper.replication.runner import LocalRunner
from spark_bookkeeper.testing.ground import Ground
from spark_bookkeeper.testing.hanging import Hang
from tests.client.gates import hangs_at
from tests.support.rows import wait_for_every_copy
from tests.worlds import USUAL


def counted(context: ClientContext, name: str) -> float:
    return context.metrics.as_dict()[name]


def test_acknowledged_entries_and_bytes_are_counted_and_each_group_is_timed_once(
    ground: Ground,
) -> None:
    with lifecycle.create_ledger(ground.context, USUAL) as writer:
        for payload in (b"a", b"bc", b"def"):
            writer.append(payload)

    assert counted(ground.context, "bookkeeper_client_ADD_ENTRIES_total") == 3
    assert counted(ground.context, "bookkeeper_client_ADD_BYTES_total") == writer.length_bytes == 6
    assert counted(ground.context, "bookkeeper_client_ADD_ENTRY_count") == 3
    assert counted(ground.context, "bookkeeper_client_ADD_ENTRY_sum") > 0


def test_two_clients_in_one_process_do_not_mix(ground: Ground) -> None:
    other = ground.client()
    with lifecycle.create_ledger(ground.context, USUAL) as writer:
        writer.append(b"a")

    list(lifecycle.open_ledger(other, writer.ledger_id).entries())

    assert counted(other, "bookkeeper_client_ADD_ENTRIES_total") == 0
    assert counted(other, "bookkeeper_client_READ_ENTRIES_total") == 1
    assert counted(ground.context, "bookkeeper_client_READ_ENTRIES_total") == 0


def test_what_is_read_is_counted_however_it_is_read(ground: Ground) -> None:
    with lifecycle.create_ledger(ground.context, USUAL) as writer:
        for _ in range(4):
            writer.append(b"abc")
    reader = lifecycle.open_ledger(ground.context, writer.ledger_id)

    list(reader.entries(0, 1))
    assert counted(ground.context, "bookkeeper_client_READ_ENTRIES_total") == 2
    reader.read_arrow()

    assert counted(ground.context, "bookkeeper_client_READ_ENTRIES_total") == 6
    assert counted(ground.context, "bookkeeper_client_READ_BYTES_total") == 18
    assert counted(ground.context, "bookkeeper_client_read_retries_total") == 0


def test_an_entry_that_one_bookie_cannot_deliver_is_a_retry(ground: Ground) -> None:
    with lifecycle.create_ledger(ground.context, USUAL) as writer:
        writer.append(b"abc")
        wait_for_every_copy(writer)
    for bookie in writer.metadata.last_fragment.ensemble[:2]:
        ground.stop(bookie)

    for _ in range(3):  # readers begin at bookies that differ
        list(lifecycle.open_ledger(ground.context, writer.ledger_id).entries())

    assert counted(ground.context, "bookkeeper_client_read_retries_total") > 0
    assert counted(ground.context, "bookkeeper_client_READ_ENTRIES_total") == 3


def test_a_change_of_the_ensemble_is_counted(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, Quorum(3, 3, 3))
    writer.append(b"a")
    ground.stop(writer.metadata.last_fragment.ensemble[0])
    writer.append(b"b")
    writer.close()

    assert len(writer.metadata.fragments) == 2
    assert counted(ground.context, "bookkeeper_client_NUM_ENSEMBLE_CHANGE_total") == 1


def test_a_recovery_counts_its_fences_and_its_writer_that_it_was_fenced(ground: Ground) -> None:
    other = ground.client()
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"a")

    recover_ledger(other, writer.ledger_id)
    with pytest.raises(LedgerFencedError):
        writer.append(b"b")

    assert counted(other, "bookkeeper_client_fences_total") >= 2
    assert counted(other, 'bookkeeper_client_LEDGER_RECOVER_count{success="true"}') == 1
    assert counted(ground.context, "bookkeeper_client_writers_fenced_total") == 1


def test_a_recovery_that_fails_is_counted_as_such(ground: Ground) -> None:
    writer = lifecycle.create_ledger(ground.context, USUAL)
    writer.append(b"a")
    for bookie in writer.metadata.last_fragment.ensemble:
        ground.stop(bookie)

    with pytest.raises(RecoveryUndecidedError):
        recover_ledger(ground.client(), writer.ledger_id)
    other = ground.client()
    with pytest.raises(RecoveryUndecidedError):
        recover_ledger(other, writer.ledger_id)

    assert counted(other, 'bookkeeper_client_LEDGER_RECOVER_count{success="false"}') == 1
    assert counted(other, 'bookkeeper_client_LEDGER_RECOVER_count{success="true"}') == 0


def test_a_silent_bookie_is_shown_while_it_is_one_and_a_second_question_is_counted(
    tmp_path: Path,
) -> None:
    config = ClientConfig(bookie_timeout_ms=600_000, read_hedge_ms=300)
    ground = Ground(tmp_path, bookies=3, config=config)
    with lifecycle.create_ledger(ground.context, USUAL) as writer:
        writer.append(b"a")
        wait_for_every_copy(writer)
    hang = Hang(ground.runtime)
    silent = writer.metadata.last_fragment.ensemble[0]
    client = ground.client(None, hangs_at(silent, hang))
    reader = lifecycle.open_ledger(client, writer.ledger_id)
    assert counted(client, "bookkeeper_client_silent_bookies") == 0

    while not hang.stuck:  # each read begins with another bookie
        assert [entry.payload for entry in reader.entries()] == [b"a"]

    assert counted(client, "bookkeeper_client_SPECULATIVE_READ_COUNT_total") >= 1
    assert counted(client, "bookkeeper_client_silent_bookies") == 1
    hang.release()
    ground.until(lambda: counted(client, "bookkeeper_client_silent_bookies") == 0)


def test_copies_are_counted_with_their_bytes(ground: Ground) -> None:
    with lifecycle.create_ledger(ground.context, USUAL) as writer:
        writer.append(b"abc")
        wait_for_every_copy(writer)
    lost = writer.metadata.last_fragment.ensemble[0]
    ground.stop(lost, destroy=True)
    client = ground.client()

    wish = BookieRecovery((BookieId(lost),))
    assert recover_bookie(client, LocalRunner(client), wish).is_complete

    assert counted(client, "replication_worker_copies_total") == 1
    assert counted(client, "replication_worker_NUM_BYTES_WRITTEN_total") == 3


def test_values_are_named_as_prometheus_reads_them_and_have_no_buckets() -> None:
    metrics = ClientMetrics()
    metrics.added_entries.inc(5)
    metrics.add_latency_ms.observe(3)

    told = metrics.as_dict()
    text = metrics.exposition().decode()

    assert told["bookkeeper_client_ADD_ENTRIES_total"] == 5
    assert not [name for name in told if "_bucket" in name or "_created" in name]
    assert "bookkeeper_client_ADD_ENTRIES_total 5.0" in text
    assert 'bookkeeper_client_ADD_ENTRY_bucket{le="5.0"} 1.0' in text
    assert "_created" not in text


def test_what_never_happened_is_shown_as_0() -> None:
    metrics = ClientMetrics()
    metrics.added_entries.inc()

    asked = metrics.registry.restricted_registry(["bookkeeper_client_fences_total"])

    assert b"bookkeeper_client_fences_total 0.0" in generate_latest(asked)
    assert metrics.as_dict().keys() == ClientMetrics().as_dict().keys()


def test_every_metric_says_what_it_is_and_no_name_has_two_meanings() -> None:
    client = {m.name: m.documentation for m in ClientMetrics().registry.collect()}
    bookie = {m.name: m.documentation for m in BookieMetrics().registry.collect()}

    assert all({**client, **bookie}.values())
    shared = client.keys() & bookie.keys()
    both = ("zookeeper_client_", "bookkeeper_log_consumer_")
    assert [name for name in shared if not name.startswith(both)] == []
    assert all(client[name] == bookie[name] for name in shared)


def test_ledgers_that_are_created_opened_and_deleted_are_timed_apart_from_failures(
    ground: Ground,
) -> None:
    with lifecycle.create_ledger(ground.context, USUAL) as writer:
        pass
    lifecycle.open_ledger(ground.context, writer.ledger_id)
    lifecycle.delete_ledger(ground.context, writer.ledger_id)
    with pytest.raises(NoSuchLedgerError):
        lifecycle.open_ledger(ground.context, writer.ledger_id)

    counts = {
        (verb, success): counted(
            ground.context, f'bookkeeper_client_LEDGER_{verb}_count{{success="{success}"}}'
        )
        for verb in ("CREATE", "OPEN", "DELETE")
        for success in ("true", "false")
    }
    assert {key for key, count in counts.items() if count == 1} == {
        ("CREATE", "true"),
        ("OPEN", "true"),
        ("OPEN", "false"),
        ("DELETE", "true"),
    }
