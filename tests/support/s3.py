"""An S3 server in this process, for tests of bookies in buckets. Needs the extra ``test``."""

from __future__ import annotations

import functools
import itertools
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import fsspec

_lock = threading.Lock()

_full_buckets: set[str] = set()

_FULL = """\
<?xml version="1.0" encoding="UTF-8"?>
<Error>
  <Code>XMinioStorageFull</Code>
  <Message>Storage backend has reached its minimum free drive threshold.</Message>
</Error>
"""
"""What MinIO answers to a put when its disks are full, with status 507."""


class S3Server:
    """Speaks S3's protocol on loopback; a context manager.

    Its conditional put is made one step, as S3's own is: the server that it is built on looks
    first and writes afterwards. And clients in this process read the description of S3 once: each
    bookie has one of its own, and half of what a test of three buckets did was to read it again.
    """

    def __init__(self) -> None:
        from botocore.loaders import JSONFileLoader
        from moto.s3.responses import S3Response
        from moto.server import ThreadedMotoServer

        if not hasattr(S3Response, "one_at_a_time"):
            put_object: Any = S3Response.put_object

            def one_at_a_time(response: Any) -> Any:
                if response.bucket_name in _full_buckets:
                    return 507, {"Content-Type": "application/xml"}, _FULL
                with _lock:
                    return put_object(response)

            setattr(S3Response, "put_object", one_at_a_time)  # noqa: B010  (upstream's method)
            setattr(S3Response, "one_at_a_time", True)  # noqa: B010
            read = functools.partial(JSONFileLoader.load_file, JSONFileLoader())
            once = functools.cache(read)
            setattr(JSONFileLoader, "load_file", lambda _, path: once(path))  # noqa: B010
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self._is_running = True
        self._buckets = itertools.count()
        self.storage_options: dict[str, Any] = {
            "key": "test",
            "secret": "test",
            "client_kwargs": {"endpoint_url": f"http://{host}:{port}", "region_name": "eu-west-1"},
            "config_kwargs": {"retries": {"max_attempts": 0}},
        }
        """For ``open_storage`` and fsspec."""

    def __enter__(self) -> S3Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def make_bucket(self) -> str:
        """A new bucket; its name."""
        name = f"bookie-{id(self)}-{next(self._buckets)}"
        self._filesystem.mkdir(name)
        return name

    def remove_bucket(self, name: str) -> None:
        """Remove an empty bucket."""
        self._filesystem.rmdir(name)

    def objects(self, name: str) -> list[str]:
        """The keys of all objects in a bucket."""
        found = self._filesystem.find(name, refresh=True)
        return sorted(path.removeprefix(f"{name}/") for path in found)

    def upload(self, directory: Path, uri: str) -> None:
        """Put a directory and what is below it at an URI."""
        self._filesystem.put(str(directory), uri, recursive=True)

    def fill(self, name: str) -> None:
        """From now on a bucket has no space for another object."""
        _full_buckets.add(name)

    def make_room(self, name: str) -> None:
        """It has space again."""
        _full_buckets.discard(name)

    def stop(self) -> None:
        """Stop answering; idempotent."""
        if self._is_running:
            self._is_running = False
            self._server.stop()

    @functools.cached_property
    def _filesystem(self) -> Any:
        """Made once: to make a client takes longer than to make a bucket."""
        return fsspec.filesystem("s3", skip_instance_cache=True, **self.storage_options)
