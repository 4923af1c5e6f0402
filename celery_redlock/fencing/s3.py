"""
A fence for objects in S3 and in stores with its protocol.
"""

from __future__ import annotations

import inspect
import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery_redlock.errors import ConfigurationError, FenceRecordCorrupt
from celery_redlock.fencing.arguments import refuse, stale, token_in, token_or_current

_FENCE_METADATA = "redlock-fencing-token"
_WRITE_METADATA = "redlock-write"
_METHODS = ("get_object", "head_object", "put_object")
_MAX_ATTEMPTS = 100
_CONFLICT_CODES = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}


@dataclass(frozen=True, slots=True)
class _Stored:
    """An object as it was read; a missing one has no etag."""

    token: int
    etag: str | None
    write: str | None
    body: bytes | None


class S3Fence:
    """
    Writes objects, and refuses a token older than the one with which an object was written.

    The token is in the object's metadata. A write reads it, and then puts the object on the
    condition that it has not changed since (`If-Match`, `If-None-Match`); if it has, the write
    starts again. The store must honour these conditions, as S3 and recent versions of MinIO, Ceph
    and R2 do.

    Limits: a deleted object has no token, so write an empty object instead of deleting. Also, the
    condition compares ETags, which most stores compute from the content alone: if a newer holder
    writes exactly the bytes that were there before, the store accepts the put of an older writer
    that was paused after it had read the token. Where that can happen, make the token a part of the
    body.

    Args:
        client: a boto3 S3 client.
        bucket: the bucket's name.

    Raises:
        ConfigurationError: the client is not boto3's for S3, or the bucket is not a name.

    Example:
        >>> fence = S3Fence(boto3.client("s3"), "reports")
        >>> fence.put("daily.json", b"{}", lease.fencing_token, ContentType="application/json")
    """

    def __init__(self, client: Any, bucket: str) -> None:
        remedy = 'Give it boto3.client("s3").'
        # aiobotocore's clients have the same methods; only `_make_api_call` shows the difference.
        awaits = inspect.iscoroutinefunction(getattr(client, "_make_api_call", None))
        if awaits or not all(callable(getattr(client, name, None)) for name in _METHODS):
            raise refuse("S3Fence", "a blocking boto3 client of S3", client, remedy)
        if not isinstance(bucket, str) or not bucket or "/" in bucket:
            raise ConfigurationError(
                f"bucket={bucket!r:.80} is not the name of a bucket. Give the name alone, as text, "
                "without s3:// and without a path."
            )
        self.client = client
        self.bucket = bucket

    def get(self, key: str) -> bytes:
        """Return an object's content. To change it, use `update`."""
        body: bytes = self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return body

    def seen(self, key: str) -> int | None:
        """Return the token with which an object was written, for monitoring."""
        return self._read_object(key, with_body=False).token or None

    def put(self, key: str, body: bytes, token: int | None = None, **options: Any) -> None:
        """
        Create or replace an object, unless it was written with a newer token.

        Args:
            key: the object's key.
            body: the new content.
            token: a fencing token; the current lease's if not given.
            options: further arguments of boto3's `put_object`.

        Raises:
            StaleFencingToken: the object was written with a newer token; it is unchanged.
            InvalidFencingToken: the token is invalid, or none was given outside of a lease.
            FenceRecordCorrupt: the token in the object's metadata is not a number.
        """
        self._write(key, lambda _: body, token, options, with_body=False)

    def update(
        self,
        key: str,
        change: Callable[[bytes | None], bytes],
        token: int | None = None,
        **options: Any,
    ) -> None:
        """
        Replace an object with `change(content)`; the content is None if there is no object.

        If another write comes in between, `change` is called again with the new content. The rest
        is as for `put`.
        """
        self._write(key, change, token, options, with_body=True)

    def _write(
        self,
        key: str,
        change: Callable[[bytes | None], bytes],
        token: int | None,
        options: dict[str, Any],
        *,
        with_body: bool,
    ) -> None:
        number = token_or_current(token)
        # boto3 sends a put again if the reply was lost. This number identifies our own put.
        write = secrets.token_hex(8)
        metadata = {
            **options.pop("Metadata", {}),
            _FENCE_METADATA: str(number),
            _WRITE_METADATA: write,
        }
        for remaining in reversed(range(_MAX_ATTEMPTS)):
            stored = self._read_object(key, with_body=with_body)
            if stored.write == write:
                return
            if stored.token > number:
                raise stale(self._url(key), stored.token, number)
            condition = {"IfMatch": stored.etag} if stored.etag else {"IfNoneMatch": "*"}
            try:
                self.client.put_object(
                    Bucket=self.bucket,
                    Key=key,
                    Body=change(stored.body),
                    Metadata=metadata,
                    **options,
                    **condition,
                )
            except self.client.exceptions.ClientError as exc:
                code = exc.response["Error"]["Code"]
                gone = code == "NoSuchKey" and stored.etag
                if not remaining or not (gone or code in _CONFLICT_CODES):
                    raise
                time.sleep(random.uniform(0.0, 0.02))  # noqa: S311  # no secret
            else:
                return

    def _read_object(self, key: str, *, with_body: bool) -> _Stored:
        read = self.client.get_object if with_body else self.client.head_object
        try:
            found = read(Bucket=self.bucket, Key=key)
        except self.client.exceptions.ClientError as exc:
            # A reply to HEAD has no body, so it does not name the error.
            if exc.response["Error"]["Code"] in {"NoSuchKey", "404"}:
                return _Stored(0, None, None, None)
            raise
        metadata = found["Metadata"]
        return _Stored(
            self._parse_token(key, metadata.get(_FENCE_METADATA)),
            found["ETag"],
            metadata.get(_WRITE_METADATA),
            found["Body"].read() if with_body else None,
        )

    def _parse_token(self, key: str, token: str | None) -> int:
        if token is None:
            return 0
        if known := token_in(token):
            return known
        raise FenceRecordCorrupt(
            f"The metadata {_FENCE_METADATA!r} of {self._url(key)} is not a fencing token, so "
            "nothing was written. Copy the object onto itself, and set that metadata to the "
            "highest token that has written the object.",
            self._url(key),
        )

    def _url(self, key: str) -> str:
        return f"s3://{self.bucket}/{key}"
