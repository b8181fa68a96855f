"""What cannot be meant is refused at once, by name and with what to write instead."""

from __future__ import annotations

import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from spark_bookkeeper.errors import InvalidArgumentError, NoSuchLogError
from spark_bookkeeper.logs import truncation
from spark_bookkeeper.logs.consumers import show_lag
from spark_bookkeeper.logs.log import Log
from spark_bookkeeper.logs.logs import create_log, open_log
from spark_bookkeeper.metadata import logs
from spark_bookkeeper.session.arguments import list_of
from spark_bookkeeper.testing.ground import Ground
from tests.logs.conftest import USUAL, payloads


def test_an_answer_in_place_of_a_question_is_refused_before_anybody_is_fenced(log: Log) -> None:
    writer = log.become_writer()
    with log.elect() as vote:
        wrong: Any = vote.is_leader
        with pytest.raises(InvalidArgumentError, match=r"is_leader=lambda: vote\.is_leader"):
            log.become_writer(is_leader=wrong)
        with pytest.raises(InvalidArgumentError, match="apply="):
            log.stand_by(vote, None)  # type: ignore[arg-type]
    writer.append(b"is the writer still")


def test_a_standby_has_a_vote_of_its_own_log(ground: Ground, log: Log) -> None:
    other = create_log(ground.context, "other", USUAL)
    with other.elect() as vote:
        for wrong in (vote, "vote", None):
            with pytest.raises(InvalidArgumentError, match="no vote of log 'orders'"):
                log.stand_by(wrong, print)  # type: ignore[arg-type]


def test_an_identity_is_bytes(log: Log) -> None:
    with pytest.raises(InvalidArgumentError, match="identity='me' is a str"):
        log.elect("me")  # type: ignore[arg-type]
    assert log.leader() is None


def test_a_wait_may_be_as_long_as_a_number_can_say(ground: Ground, log: Log) -> None:
    first, second = log.elect(), open_log(ground.client(), "orders").elect()
    assert first.wait(10**400)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(second.wait, sys.maxsize)
        first.leave()
        assert waiting.result()


@pytest.mark.parametrize("option", ["roll_bytes", "roll_entries", "roll_seconds", "retain_seconds"])
def test_a_limit_beyond_all_numbers_is_refused(option: str) -> None:
    limits: dict[str, Any] = {option: 10**5000}
    with pytest.raises(InvalidArgumentError, match=option):
        replace(USUAL, **limits)


@pytest.mark.parametrize("option", ["roll_bytes", "roll_entries", "roll_seconds", "retain_seconds"])
def test_a_log_that_an_earlier_version_made_with_such_a_limit_goes_on(
    ground: Ground, log: Log, option: str
) -> None:
    logs.change_log(
        ground.context.store.registers,
        "orders",
        log._nonce,
        lambda old: replace(old, options={**old.options, option: 1 << 70}),
    )
    with open_log(ground.client(), "orders").become_writer() as writer:
        writer.append(b"a")
        writer.roll()
        writer.append(b"b")
    log.write(pa.table({"payload": pa.array([b"c"], pa.binary())}))
    assert payloads(log) == [b"a", b"b", b"c"]


def test_a_text_is_no_list_of_texts() -> None:
    with pytest.raises(InvalidArgumentError, match=r"\['etl'\]"):
        list_of("retain_for", "etl")


def test_gauges_of_a_log_that_cannot_be_are_refused_at_once(ground: Ground) -> None:
    with pytest.raises(InvalidArgumentError, match="log name"):
        show_lag(ground.context, "a b")


def test_what_is_held_of_a_log_stays_in_its_process(log: Log) -> None:
    with log.become_writer() as writer, log.elect() as vote:
        for held, remedy in (
            (log, "open_log('orders')"),
            (writer, "become_writer()"),
            (vote, "elect"),
        ):
            with pytest.raises(InvalidArgumentError) as told:
                pickle.dumps(held)
            assert remedy in str(told.value)


def test_who_holds_a_log_whose_name_was_used_again_is_told_so(ground: Ground, log: Log) -> None:
    truncation.delete(ground.context, "orders")
    with pytest.raises(NoSuchLogError, match="deleted or never existed"):
        log.ledgers()
    create_log(ground.context, "orders", USUAL)
    with pytest.raises(NoSuchLogError, match="another one was made under its name"):
        log.ledgers()


def test_a_deleted_log_leaves_nothing_of_its_followers(ground: Ground, log: Log) -> None:
    log.publish("etl", "0:0")
    truncation.delete(ground.context, "orders")

    assert ground.context.store.registers.names("consumers/orders") == []
