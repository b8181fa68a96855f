"""What tests of whole clusters share: a session of the shared cluster, and an S3 server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.session import BookKeeper
from tests.support.s3 import S3Server
from tests.support.sessions import connect_without_spark


@pytest.fixture(scope="module")
def bk(cluster: LocalCluster) -> Iterator[BookKeeper]:
    """A session of the shared cluster, which the tests leave as it is."""
    with connect_without_spark(cluster.metadata_uri) as connected:
        yield connected


@pytest.fixture(scope="session")
def server() -> Iterator[S3Server]:
    """For buckets; each test makes its own."""
    with S3Server() as running:
        yield running
