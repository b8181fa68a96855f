"""The two ways to open a cluster: connect to a running one, or run one here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spark_bookkeeper.config import ClientConfig
from spark_bookkeeper.connection import Connection
from spark_bookkeeper.connection import metadata_uri as given_or_environment
from spark_bookkeeper.local_cluster.local_cluster import LocalCluster
from spark_bookkeeper.session import BookKeeper
from spark_bookkeeper.spark.session import check_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def connect(
    metadata_uri: str | None = None,
    spark: SparkSession | None = None,
    *,
    config: ClientConfig | None = None,
    storage_options: Mapping[str, Any] | None = None,
    zk_options: Mapping[str, Any] | None = None,
) -> BookKeeper:
    """Connect to a cluster.

    Args:
        metadata_uri: ``zk+hierarchical://zk1:2181,zk2:2181/ledgers``, ``zk://...`` or plain
            ``zk1:2181``; ``None`` is the environment's ``SPARK_BOOKKEEPER_METADATA_URI``.
        spark: the session for DataFrames and jobs; ``None`` takes the active one, or starts one,
            when it is needed: bytes and Arrow tables need none.
        config: how ledgers are written and read.
        storage_options: for fsspec, for bookies that are not on a local or mounted disk.
        zk_options: for the ZooKeeper client: TLS, credentials, access rules.

    Raises:
        InvalidArgumentError: no URI, or a wrong one; ``spark`` is no session.
        MetadataUnavailableError, MetadataError: no ZooKeeper answers; all refuse permanently.
        NoClusterError: it answers, and holds no BookKeeper cluster.
    """
    check_session(spark)
    connection = Connection(
        given_or_environment(metadata_uri),
        config or ClientConfig(),
        dict(storage_options or {}),
        dict(zk_options or {}),
        _application(spark),
    )
    bk = BookKeeper(connection, spark)
    try:
        bk.context.store.require_cluster()
    except BaseException:
        bk.close()
        raise
    return bk


def local(
    directory: str | os.PathLike[str] | None = None,
    bookies: int = 4,
    spark: SparkSession | None = None,
) -> BookKeeper:
    """Run a whole cluster on this machine, ZooKeeper and bookies included, and connect to it.

    ``close`` ends it, and so does the end of the interpreter.

    Args:
        directory: the cluster's directory; one that holds a cluster starts that one again.
            ``None`` is a temporary one, removed at the end.
        bookies: the number of bookies of a new cluster.
        spark: as in ``connect``.

    Raises:
        InvalidArgumentError: ``spark`` is no session.
        MissingRequirementError: no Java on this machine; the text says how to get one.
        MetadataUnavailableError: another process runs the cluster in this directory.
    """
    check_session(spark)
    cluster = LocalCluster(directory, bookies).start()
    try:
        connection = Connection(cluster.metadata_uri, application=_application(spark))
        return BookKeeper(connection, spark, cluster)
    except BaseException:
        cluster.close()
        raise


def _application(spark: SparkSession | None) -> str | None:
    """Return Spark's name of the application, if it is known without a call to a server."""
    return getattr(getattr(spark, "sparkContext", None), "appName", None)
