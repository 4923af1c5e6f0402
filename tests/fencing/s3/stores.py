"""Object stores to write to: moto, and a small one that keeps S3's conditions under concurrency."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import boto3
from botocore.config import Config
from moto import mock_aws

_CREDENTIALS = {
    "aws_access_key_id": "key",
    "aws_secret_access_key": "secret",
    "region_name": "us-east-1",
}
_META = "x-amz-meta-"


@contextmanager
def moto_store() -> Iterator[Any]:
    """Give a client of a fresh moto with one bucket, `bank`."""
    with mock_aws():
        client = boto3.client("s3", **_CREDENTIALS)
        client.create_bucket(Bucket="bank")
        yield client
        client.close()


@dataclass(frozen=True, slots=True)
class _Object:
    body: bytes
    metadata: dict[str, str]

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.body).hexdigest()}"'


class ConformingStore(ThreadingHTTPServer):
    """
    The part of S3 that a guard needs: GET, HEAD and PUT with conditions, each in one step.

    Attributes:
        answers_to_lose: how many of the next puts are done, but answered by closing the connection.
    """

    daemon_threads = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, _Object] = {}
        self.step = threading.Lock()
        self.answers_to_lose = 0

    def put(self, path: str, stored: _Object, headers: Any) -> tuple[int, str]:
        """Store an object if its conditions hold; return status and error code."""
        with self.step:
            found = self.objects.get(path)
            if_match, if_none_match = headers["If-Match"], headers["If-None-Match"]
            if if_match and found is None:
                return 404, "NoSuchKey"
            if if_match and found and if_match != found.etag:
                return 412, "PreconditionFailed"
            if if_none_match == "*" and found:
                return 412, "PreconditionFailed"
            self.objects[path] = stored
            return 200, ""


class _Handler(BaseHTTPRequestHandler):
    server: ConformingStore
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.read_object(with_body=True)

    def do_HEAD(self) -> None:
        self.read_object(with_body=False)

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        metadata = {
            name.lower(): value
            for name, value in self.headers.items()
            if name.lower().startswith(_META)
        }
        stored = _Object(body, metadata)
        status, code = self.server.put(self.path, stored, self.headers)
        if status == 200 and self.server.answers_to_lose:
            self.server.answers_to_lose -= 1
            self.close_connection = True
            return
        self.answer(status, {"ETag": stored.etag}, self.error(code))

    def read_object(self, *, with_body: bool) -> None:
        with self.server.step:
            found = self.server.objects.get(self.path)
        if found is None:
            self.answer(404, {}, self.error("NoSuchKey") if with_body else b"")
            return
        self.answer(200, {"ETag": found.etag, **found.metadata}, found.body, send=with_body)

    def error(self, code: str) -> bytes:
        return f"<Error><Code>{code}</Code></Error>".encode() if code else b""

    def answer(
        self, status: int, headers: dict[str, str], body: bytes, *, send: bool = True
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        # Kept connections would have their threads outlive the test.
        self.send_header("Connection", "close")
        self.end_headers()
        if send:
            self.wfile.write(body)


@contextmanager
def serving() -> Iterator[ConformingStore]:
    """Run a store on a port of its own."""
    store = ConformingStore()
    thread = threading.Thread(target=store.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield store
    finally:
        store.shutdown()
        thread.join()
        store.server_close()


def client_of(store: ConformingStore) -> Any:
    """Return a boto3 client of a store."""
    return boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{store.server_address[1]}",
        config=Config(
            s3={"addressing_style": "path"}, request_checksum_calculation="when_required"
        ),
        **_CREDENTIALS,
    )


@contextmanager
def conforming_store() -> Iterator[Any]:
    """Give a client of a fresh store."""
    with serving() as store:
        client = client_of(store)
        yield client
        client.close()
