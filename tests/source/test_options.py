"""Options of the data source: texts in, values or a sentence out."""

from __future__ import annotations

import pickle
from dataclasses import fields
from datetime import datetime, timezone

import pytest

from spark_bookkeeper.errors import InvalidArgumentError
from spark_bookkeeper.protocol.ids import EntryId, LedgerId
from spark_bookkeeper.protocol.log import Position
from spark_bookkeeper.source.offset_options import EARLIEST, LATEST, Moment
from spark_bookkeeper.source.options import _ELSEWHERE, SourceOptions, Use, option_name


def parse(**options: str) -> SourceOptions:
    return SourceOptions.parse(options)


def test_texts_become_values_whatever_the_case_of_their_names() -> None:
    options = SourceOptions.parse(
        {
            "metadatauri": "zk1:2181",
            "LEDGERS": "7,9-12",
            "startingoffsets": '{"ledger": 7, "entry": 12}',
            "endingOffsets": "latest",
            "openmode": "norecovery",
            "columns": "a, b",
            "maxBytesPerTrigger": "64m",
            "failondataloss": "FALSE",
            "zk.use_ssl": "true",
            "storage.endpoint_url": "http://localhost:9000",
        }
    )

    assert options.metadata_uri == "zk1:2181"
    assert options.ledgers == ((7, 7), (9, 12))
    assert options.starting_offsets == Position(LedgerId(7), EntryId(12))
    assert options.ending_offsets == LATEST
    assert options.open_mode == "noRecovery"
    assert options.columns == ("a", "b")
    assert options.max_bytes_per_trigger == 64 << 20
    assert options.fail_on_data_loss is False
    assert options.zk == {"use_ssl": "true"}
    assert options.storage == {"endpoint_url": "http://localhost:9000"}
    assert pickle.loads(pickle.dumps(options)) == options


def test_what_is_not_given_has_its_default() -> None:
    options = parse(log="orders")

    assert options.given() == {"log"}
    assert (options.open_mode, options.fail_on_data_loss) == ("recover", True)
    assert parse(startingOffsets="EARLIEST").starting_offsets == EARLIEST
    assert parse(startingOffsets="7:12").starting_offsets == Position(LedgerId(7), EntryId(12))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingoffset": "latest"}, "did you mean 'startingOffsets'"),
        ({"legder": "7"}, "did you mean 'ledger'"),
        ({"colour": "red", "log": "x"}, "'colour' is not known"),
        ({"path": "orders"}, r'\.option\("log", \'orders\'\)'),
        ({"ledger": "seven"}, "ledger='seven': it is not a whole number"),
        ({"ledger": "-1"}, "below 0"),
        ({"ledgers": "7-3"}, "no run of ledger ids"),
        ({"ledgers": "7,x"}, "like 7,9-12"),
        ({"view": "legders"}, "did you mean 'ledgers'"),
        ({"startingOffsets": "newest"}, "neither earliest nor latest, nor an entry as 7:12"),
        ({"startingOffsets": '{"ledger": 7'}, "not JSON"),
        ({"startingOffsets": '{"entry": 7}'}, "not of the form"),
        ({"startingOffsets": '{"ledger": -7}'}, "no ledger or entry id"),
        ({"startingOffsets": "7:12:3"}, "within an entry"),
        ({"startingOffsets": '{"time": 1%s}' % ("0" * 30)}, "is no time"),
        ({"startingOffsets": '{"time": 1000000000000000}'}, "is no time"),
        ({"startingOffsets": '{"time": true}'}, "is no time"),
        ({"startingOffsets": '{"a":' * 100_000}, r"^.{0,400}$"),
        ({"columns": "a," * 100_000}, r"^.{0,400}$"),
        ({"includeMetadata": "yes"}, "neither true nor false"),
        ({"maxBytesPerTrigger": "much"}, "size in bytes"),
        ({"maxBytesPerTrigger": "0"}, "below 1"),
        ({"minPartitions": "0"}, "below 1"),
        ({"columns": "a,,b"}, "commas between"),
        ({"columns": "a,a"}, "twice"),
        ({"columns": '["a","a"]'}, "twice"),
        ({"columns": '["a", ""]'}, "nor one of JSON"),
        ({"log": ""}, "it is empty"),
        ({"owner": "me"}, "'owner' is not known"),
        ({"location": "/tmp"}, "'location' is not known"),
        ({"subscribe": "orders"}, "nearest here is 'log'"),
        ({"startingTimestamp": "2026-11-22"}, "nearest here is 'startingOffsets'"),
        ({"kafka.bootstrap.servers": "zk1:2181"}, "nearest here is 'metadataUri'"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_could_be(
    options: dict[str, str], said: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        SourceOptions.parse(options)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (" a , b ", ("a", "b")),
        ('["a,b", " c ", "d"]', ("a,b", " c ", "d")),
        ("[x, y]", ("[x", "y]")),
        ('["a", 7]', ('["a"', "7]")),
        (" []", ("[]",)),
    ],
)
def test_names_of_columns_are_a_list_with_commas_or_one_of_json(
    text: str, names: tuple[str, ...]
) -> None:
    assert parse(columns=text).columns == names


def test_what_other_sources_call_otherwise_leads_to_an_option_that_there_is() -> None:
    assert set(_ELSEWHERE.values()) <= {option_name(f.name) for f in fields(SourceOptions)}


def test_a_place_can_be_told_as_a_time() -> None:
    time = datetime(2026, 11, 22, 6, 30, tzinfo=timezone.utc)
    for text in ('"2026-11-22T06:30:00Z"', '"2026-11-22T06:30:00"', "1795329000000"):
        assert parse(startingOffsets=f'{{"time": {text}}}').starting_offsets == Moment(time)
    with pytest.raises(InvalidArgumentError, match="startingOffsets"):
        parse(startingOffsets='{"time": "soon"}')


def test_secrets_are_in_no_text() -> None:
    options = parse(password="hush", log="x", **{"zk.auth_data": "digest:me:hush"})

    assert "hush" not in repr(options) + str(options)


@pytest.mark.parametrize(
    ("options", "use", "said"),
    [
        ({"log": "x", "maxEntriesPerTrigger": "5"}, Use.READ, "it is for spark.readStream"),
        ({"log": "x", "endingOffsets": "latest"}, Use.STREAM, "it is for spark.read"),
        ({"log": "x", "txnAppId": "5"}, Use.READ, "df.write and df.writeStream"),
        ({"log": "x", "ledger": "5"}, Use.READ, "ledger and log were given"),
        ({}, Use.READ, "none was given"),
        ({"view": "logs", "ledger": "7"}, Use.READ, "ledger means nothing to view=logs"),
        ({"view": "slots", "ledger": "7", "log": "x"}, Use.READ, "were given"),
        ({"view": "slots", "columns": "a"}, Use.READ, "columns means nothing to view=slots"),
        ({"ledger": "7", "consumer": "etl"}, Use.STREAM, "consumer=.* is for logs"),
        ({"log": "x", "startingOffsets": "7:2", "endingOffsets": "7:1"}, Use.READ, "behind its"),
    ],
)
def test_an_option_that_means_nothing_there_is_refused(
    options: dict[str, str], use: Use, said: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        SourceOptions.parse(options).check_reading(use)


def test_what_spark_adds_itself_is_no_option_of_ours() -> None:
    assert not parse(checkpointLocation="/tmp/x", queryName="q").given()
    assert not parse(path="file:/x", provider="bookkeeper", owner="me").given()


def test_a_missing_cluster_is_told_with_every_way_to_name_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(InvalidArgumentError, match=r"metadataUri is missing.*INTO t WITH") as told:
        parse(log="x").connection()
    assert "spark.bookkeeper.metadataUri" in str(told.value)

    monkeypatch.setenv("SPARK_BOOKKEEPER_METADATA_URI", "zk1:2181")
    assert parse(log="x").connection().metadata_uri == "zk1:2181"
    with pytest.raises(InvalidArgumentError, match="metadataUri"):
        parse(log="x", metadataUri="").connection()
